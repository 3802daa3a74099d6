"""What one choice says, token by token: its reasoning, its text and its calls, each by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from engine.request import Completion, FinishReason, TokenEvent
from engine.server.calls import CallDelta, CallParser, Heard, continued
from engine.server.forms import Piece
from engine.server.protocol import Call

CALLED = "tool_calls"
"""The finish reason of a choice that ended by itself and called something."""


class Kind(Enum):
    """What a token is part of."""

    REASONING = auto()
    TEXT = auto()
    CALLS = auto()
    UNKNOWN = auto()


@dataclass(slots=True)
class Run:
    """What is said in one kind."""

    kind: Kind
    tokens: list[TokenEvent] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: tuple[CallDelta, ...] = ()


class Voice:
    """One choice, from what its row is told.

    Args:
        row: which of the call's choices.
    """

    def __init__(self, row: int, call: Call) -> None:
        self._row = row
        self._wants_ids = call.return_token_ids
        self._wants_reasoning = call.include_reasoning
        self._wants_entries = call.top_logprobs is not None
        self._parser = None if call.call_syntax is None else CallParser(call.call_syntax)

    def hear(self, events: Iterable[TokenEvent], record: Completion | None) -> list[Piece]:
        """Return what events make certain: pieces of one kind each, and the end by itself.

        A token that says nothing yet belongs to what is said next.

        Args:
            record: of the row, where these events are its last.
        """
        runs: list[Run] = []
        silent: list[TokenEvent] = []
        for event in events:
            if event.token_id is not None:
                silent.append(event)
            for said in self._said(event):
                said.tokens, silent = silent, []
                _append(runs, said)
        if record is not None and self._parser is not None:
            for said in _spoken(self._parser.finish()):
                _append(runs, said)
        if silent:
            runs.append(Run(Kind.UNKNOWN, silent))
        pieces = [piece for piece in map(self._piece, runs) if _has_something(piece)]
        if record is not None:
            pieces.append(Piece(self._row, finish_reason=self._finish_reason(record)))
        return pieces

    def _said(self, event: TokenEvent) -> Iterator[Run]:
        """Return what one token makes certain."""
        if event.reasoning or event.position < event.reasoning_tokens:
            yield Run(Kind.REASONING, texts=[event.reasoning])
        if self._parser is not None:
            yield from _spoken(self._parser.push(event.text))
        elif event.text:
            yield Run(Kind.TEXT, texts=[event.text])

    def _piece(self, run: Run) -> Piece:
        said = "".join(run.texts)
        is_reasoning = run.kind is Kind.REASONING
        entries = [event.logprobs for event in run.tokens if event.logprobs is not None]
        ids = [event.token_id for event in run.tokens if event.token_id is not None]
        return Piece(
            self._row,
            text="" if is_reasoning else said,
            entries=entries if self._wants_entries else None,
            token_ids=ids if self._wants_ids else None,
            reasoning=said if is_reasoning and self._wants_reasoning else "",
            calls=run.calls,
            is_reasoning=is_reasoning,
        )

    def _finish_reason(self, record: Completion) -> str:
        """Return why the choice ended; one that was cut or stopped ended for no call's sake."""
        has_ended = record.finish_reason is FinishReason.STOP and not record.met_stop_text
        has_called = self._parser is not None and self._parser.num_complete > 0
        return CALLED if has_ended and has_called else str(record.finish_reason)


def _spoken(heard: Iterable[Heard]) -> Iterator[Run]:
    for item in heard:
        if item.text:
            yield Run(Kind.TEXT, texts=[item.text])
        if item.calls:
            yield Run(Kind.CALLS, calls=item.calls)


def _append(runs: list[Run], said: Run) -> None:
    """Add to the last run, where that is of the same kind, or begin one."""
    last = runs[-1] if runs else None
    if last is None or last.kind is not said.kind:
        runs.append(said)
        return
    last.tokens += said.tokens
    last.texts += said.texts
    last.calls = continued(last.calls, said.calls)


def _has_something(piece: Piece) -> bool:
    return bool(piece.text or piece.reasoning or piece.calls or piece.entries or piece.token_ids)
