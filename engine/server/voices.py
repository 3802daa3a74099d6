"""What one choice says, token by token: its reasoning, its text and its calls, each by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from engine.request import Completion, FinishReason, TokenEvent
from engine.server.calls import CallParser, Heard, continued
from engine.server.forms import Piece
from engine.server.protocol import Call

CALLED = "tool_calls"
"""The finish reason of a choice that ended by itself and called something."""

T = TypeVar("T")


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
        pieces: list[Piece] = []
        for event in events:
            for piece in self._pieces(event):
                _append(pieces, piece)
        if record is None:
            return list(filter(_has_something, pieces))
        rest = [] if self._parser is None else self._parser.finish()
        for piece in self._spoken(rest):
            _append(pieces, piece)
        end = Piece(self._row, finish_reason=self._finish_reason(record))
        return [*filter(_has_something, pieces), end]

    def _pieces(self, event: TokenEvent) -> Iterator[Piece]:
        """Return the pieces of one token, the first of which holds it."""
        yield self._token(event)
        yield from self._spoken(self._heard(event.text))

    def _token(self, event: TokenEvent) -> Piece:
        ids = [] if event.token_id is None else [event.token_id]
        entries = [] if event.logprobs is None else [event.logprobs]
        return Piece(
            self._row,
            entries=entries if self._wants_entries else None,
            token_ids=ids if self._wants_ids else None,
            reasoning=event.reasoning if self._wants_reasoning else "",
            is_reasoning=bool(event.reasoning) or event.position < event.reasoning_tokens,
        )

    def _heard(self, text: str) -> list[Heard]:
        if self._parser is not None:
            return self._parser.push(text)
        return [Heard(text)] if text else []

    def _spoken(self, heard: Iterable[Heard]) -> Iterator[Piece]:
        for item in heard:
            if item.text:
                yield Piece(self._row, item.text)
            if item.calls:
                yield Piece(self._row, calls=item.calls)

    def _finish_reason(self, record: Completion) -> str:
        """Return why the choice ended; one that was cut or stopped ended for no call's sake."""
        has_ended = record.finish_reason is FinishReason.STOP and not record.met_stop_text
        has_called = self._parser is not None and self._parser.num_complete > 0
        return CALLED if has_ended and has_called else str(record.finish_reason)


def _append(pieces: list[Piece], piece: Piece) -> None:
    """Add a piece, as part of what goes before where that is of its kind, or of none."""
    if pieces and _kind(pieces[-1]) is None:
        piece = _joined(pieces.pop(), piece)
    if pieces and _kind(pieces[-1]) == _kind(piece):
        piece = _joined(pieces.pop(), piece)
    pieces.append(piece)


def _joined(piece: Piece, more: Piece) -> Piece:
    return Piece(
        piece.index,
        piece.text + more.text,
        _both(piece.entries, more.entries),
        _both(piece.token_ids, more.token_ids),
        reasoning=piece.reasoning + more.reasoning,
        calls=continued(tuple(piece.calls), tuple(more.calls)),
        is_reasoning=more.is_reasoning,
    )


def _kind(piece: Piece) -> str | None:
    if piece.is_reasoning:
        return "reasoning"
    if piece.calls:
        return "calls"
    return "text" if piece.text else None


def _both(first: Sequence[T] | None, second: Sequence[T] | None) -> Sequence[T] | None:
    return None if first is None and second is None else [*(first or ()), *(second or ())]


def _has_something(piece: Piece) -> bool:
    return bool(piece.text or piece.reasoning or piece.calls or piece.entries or piece.token_ids)
