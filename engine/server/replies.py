"""Replies of one call, whole or as a stream, from what its rows are told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.request import Completion, FinishReason, TokenEvent
from engine.server.chunks import chat_form, completion_form
from engine.server.forms import Form, Letterhead, Piece
from engine.server.problem import HttpError, told_as
from engine.server.protocol import Call
from engine.server.readers import Json
from engine.server.response_form import ResponseForm
from engine.server.standing import Endpoint
from engine.server.voices import Voice
from engine.server.worker import Job, Told

FORMS: Mapping[Endpoint, Callable[[Letterhead], Form]] = {
    Endpoint.CHAT: chat_form,
    Endpoint.COMPLETIONS: completion_form,
    Endpoint.RESPONSES: ResponseForm,
}


@dataclass(slots=True)
class Reply:
    """One call on its way.

    Args:
        on_text: called when the first text has come, or reasoning that is told.
    """

    letterhead: Letterhead
    job: Job
    on_text: Callable[[], None]
    _form: Form = field(init=False)
    _voices: list[Voice] = field(init=False)
    _records: dict[int, Completion] = field(default_factory=dict)
    _has_text: bool = False

    def __post_init__(self) -> None:
        self._form = FORMS[self.call.endpoint](self.letterhead)
        self._voices = [Voice(row, self.call) for row in range(self.call.num_rows)]

    @property
    def call(self) -> Call:
        """What is answered."""
        return self.letterhead.call

    async def whole(self) -> Json:
        """Return the reply when every row has ended.

        Raises:
            HttpError: a row failed.
        """
        pieces: list[Piece] = []
        async for told in self._steps():
            pieces += self._pieces(told)
        return self._form.whole(pieces, self._ordered())

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events of a stream, those of one step together, since sending costs most.

        A stream that fails ends as its form says.
        """
        form = self._form
        try:
            yield b"".join(form.opening())
            async for told in self._steps():
                yield b"".join(item for piece in self._pieces(told) for item in form.said(piece))
            yield b"".join(form.ending(self._ordered()))
        except Exception as error:  # noqa: BLE001  # a client that waits has to be told
            yield b"".join(form.failure(told_as(error)))

    async def _steps(self) -> AsyncIterator[Sequence[Told]]:
        """Yield what steps tell until every row has ended; raises HttpError when one failed."""
        async for told in self.job.steps():
            for item in told:
                if item.completion is not None:
                    self._records[item.row] = item.completion
                if item.event.finish_reason in (FinishReason.ERROR, FinishReason.CANCELLED):
                    raise _failed(item.event)
            if not self._has_text and any(self._tells(item.event) for item in told):
                self._has_text = True
                self.on_text()
            yield told
            if len(self._records) == self.call.num_rows:
                return

    def _tells(self, event: TokenEvent) -> bool:
        return bool(event.text or (event.reasoning and self.call.include_reasoning))

    def _pieces(self, told: Sequence[Told]) -> list[Piece]:
        """Return what one step adds to each choice."""
        events: dict[int, list[TokenEvent]] = defaultdict(list)
        for item in told:
            events[item.row].append(item.event)
        pieces: list[Piece] = []
        for row, items in events.items():
            pieces += self._voices[row].hear(items, self._records.get(row))
        return pieces

    def _ordered(self) -> list[Completion]:
        return [self._records[row] for row in range(self.call.num_rows)]


def _failed(told: TokenEvent) -> HttpError:
    return HttpError(503, told.error or "the reply was cancelled", code="row_failed")
