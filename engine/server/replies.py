"""Replies of one call, whole or as a stream, from what its rows are told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.request import Completion, FinishReason, TokenEvent
from engine.server.calls import CallParser, CallSyntax, Heard
from engine.server.chunks import chat_form, completion_form
from engine.server.forms import Form, Letterhead, Piece
from engine.server.problem import HttpError
from engine.server.protocol import Call
from engine.server.response_form import ResponseForm
from engine.server.standing import Endpoint
from engine.server.token_texts import Json
from engine.server.worker import Job, Told

FORMS: Mapping[Endpoint, Callable[[Letterhead], Form]] = {
    Endpoint.CHAT: chat_form,
    Endpoint.COMPLETIONS: completion_form,
    Endpoint.RESPONSES: ResponseForm,
}


CALLED = "tool_calls"
"""The finish reason of a choice that ended by itself and called something."""


class Voice:
    """What one choice says, its calls apart from its text.

    Args:
        syntax: how calls are written; None where there are none.
    """

    def __init__(self, syntax: CallSyntax | None) -> None:
        self._parser = None if syntax is None else CallParser(syntax)

    def hear(self, text: str) -> Heard:
        """Take the next text; returns what is certain now."""
        return Heard(text) if self._parser is None else self._parser.push(text)

    def end(self) -> Heard:
        """Return what was held back."""
        return Heard() if self._parser is None else self._parser.finish()

    def finish_reason(self, record: Completion) -> str:
        """Return why the choice ended; one that was cut or stopped ended for no call's sake."""
        has_ended = record.finish_reason is FinishReason.STOP and not record.met_stop_text
        has_called = self._parser is not None and self._parser.num_complete > 0
        return CALLED if has_ended and has_called else str(record.finish_reason)


@dataclass(slots=True)
class Reply:
    """One call on its way.

    Args:
        on_text: called when the first text has come.
    """

    letterhead: Letterhead
    job: Job
    on_text: Callable[[], None]
    _form: Form = field(init=False)
    _voices: dict[int, Voice] = field(default_factory=dict)
    _records: dict[int, Completion] = field(default_factory=dict)
    _has_text: bool = False

    def __post_init__(self) -> None:
        self._form = FORMS[self.call.endpoint](self.letterhead)

    @property
    def call(self) -> Call:
        """What is answered."""
        return self.letterhead.call

    async def whole(self) -> Json:
        """Return the reply when every row has ended.

        Raises:
            HttpError: a row failed.
        """
        async for _ in self._steps():
            pass
        records = self._ordered()
        said = [self._said(row, item) for row, item in enumerate(records)]
        return self._form.whole(said, records)

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events of a stream; one that fails ends as its form says."""
        form = self._form
        try:
            for item in form.opening():
                yield item
            async for told in self._steps():
                for piece in self._pieces(told):
                    for item in form.said(piece):
                        yield item
            for item in form.ending(self._ordered()):
                yield item
        except HttpError as error:
            for item in form.failure(error):
                yield item

    async def _steps(self) -> AsyncIterator[Sequence[Told]]:
        """Yield what steps tell until every row has ended; raises HttpError when one failed."""
        async for told in self.job.steps():
            for item in told:
                if item.completion is not None:
                    self._records[item.row] = item.completion
                if item.event.finish_reason in (FinishReason.ERROR, FinishReason.CANCELLED):
                    raise _failed(item.event)
            if not self._has_text and any(item.event.text for item in told):
                self._has_text = True
                self.on_text()
            yield told
            if len(self._records) == self.call.num_rows:
                return

    def _pieces(self, told: Sequence[Told]) -> list[Piece]:
        """Return what one step adds to each choice, and ends in their own pieces."""
        events: dict[int, list[TokenEvent]] = defaultdict(list)
        for item in told:
            events[item.row].append(item.event)
        pieces: list[Piece] = []
        for row, items in events.items():
            voice = self._voices.setdefault(row, Voice(self.call.call_syntax))
            heard = voice.hear("".join(item.text for item in items))
            record = self._records.get(row)
            if record is not None:
                heard += voice.end()
            ids = [item.token_id for item in items if item.token_id is not None]
            piece = Piece(
                row,
                heard.text,
                self._entries([item.logprobs for item in items if item.token_id is not None]),
                ids if self.call.return_token_ids else None,
                reasoning="".join(item.reasoning for item in items),
                calls=heard.calls,
            )
            if piece.text or piece.entries or piece.token_ids or piece.reasoning or piece.calls:
                pieces.append(piece)
            if record is not None:
                pieces.append(Piece(row, finish_reason=voice.finish_reason(record)))
        return pieces

    def _said(self, row: int, record: Completion) -> Piece:
        voice = Voice(self.call.call_syntax)
        heard = voice.hear(record.text) + voice.end()
        return Piece(
            row,
            heard.text,
            self._entries(record.logprobs),
            record.token_ids if self.call.return_token_ids else None,
            voice.finish_reason(record),
            record.reasoning,
            heard.calls,
        )

    def _entries(self, entries: Sequence[Any]) -> Sequence[Any] | None:
        return None if self.call.top_logprobs is None else entries

    def _ordered(self) -> list[Completion]:
        return [self._records[row] for row in range(self.call.num_rows)]


def _failed(told: TokenEvent) -> HttpError:
    return HttpError(503, told.error or "the reply was cancelled", code="row_failed")
