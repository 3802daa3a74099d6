"""Replies of one call, whole or as a stream, from what its rows are told."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.request import Completion, FinishReason, TokenEvent
from engine.server.forms import FORMS, Form, Json, Piece, TokenTexts
from engine.server.problem import HttpError
from engine.server.protocol import Call
from engine.server.sse import DONE, event
from engine.server.usage import usage_of
from engine.server.worker import Job, Told

ID_PREFIXES = {"chat.completion": "chatcmpl-", "text_completion": "cmpl-"}


@dataclass(slots=True)
class Reply:
    """One call on its way.

    Args:
        model: the model's id.
        fingerprint: of the model's weights.
        on_text: called when the first text has come.
    """

    call: Call
    job: Job
    tokens: TokenTexts
    model: str
    fingerprint: str
    on_text: Callable[[], None]
    created: int = field(default_factory=lambda: int(time.time()))
    _form: Form = field(init=False)
    _records: dict[int, Completion] = field(default_factory=dict)
    _has_text: bool = False

    def __post_init__(self) -> None:
        self._form = FORMS[self.call.endpoint](self.tokens)

    async def whole(self) -> Json:
        """Return the reply when every row has ended.

        Raises:
            HttpError: a row failed.
        """
        async for _ in self._steps():
            pass
        records = self._ordered()
        choices = [self._form.whole(self._said(row, item)) for row, item in enumerate(records)]
        body = self._envelope(self._form.whole_kind, choices)
        body["usage"] = usage_of(records, self.call.num_choices)
        return body | self._prompt_ids()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events of a stream; one that fails ends with an error event and no [DONE]."""
        try:
            async for item in self._events():
                yield event(item)
        except HttpError as error:
            yield event(error.document)
        else:
            yield DONE

    async def _events(self) -> AsyncIterator[Json]:
        extra = self._prompt_ids()
        for index in range(self.call.num_rows):
            choice = self._form.opening(index)
            if choice is not None:
                yield self._chunk([choice]) | extra
                extra = {}
        async for told in self._steps():
            for piece in self._pieces(told):
                yield self._chunk([self._form.chunk(piece)]) | extra
                extra = {}
        if self.call.include_usage:
            usage = usage_of(self._ordered(), self.call.num_choices)
            yield self._chunk([]) | {"usage": usage}

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
        """Return what one step adds to each choice, and ends in their own chunks."""
        events: dict[int, list[TokenEvent]] = defaultdict(list)
        for item in told:
            events[item.row].append(item.event)
        pieces: list[Piece] = []
        for row, items in events.items():
            ids = [item.token_id for item in items if item.token_id is not None]
            piece = Piece(
                row,
                "".join(item.text for item in items),
                self._entries([item.logprobs for item in items if item.token_id is not None]),
                ids if self.call.return_token_ids else None,
            )
            if piece.text or piece.entries or piece.token_ids:
                pieces.append(piece)
            if items[-1].finish_reason is not None:
                pieces.append(Piece(row, finish_reason=str(items[-1].finish_reason)))
        return pieces

    def _said(self, row: int, record: Completion) -> Piece:
        return Piece(
            row,
            record.text,
            self._entries(record.logprobs),
            record.token_ids if self.call.return_token_ids else None,
            str(record.finish_reason),
        )

    def _entries(self, entries: Sequence[Any]) -> Sequence[Any] | None:
        return None if self.call.top_logprobs is None else entries

    def _ordered(self) -> list[Completion]:
        return [self._records[row] for row in range(self.call.num_rows)]

    def _prompt_ids(self) -> Json:
        if not self.call.return_token_ids:
            return {}
        ids = [list(request.prompt_ids) for request in self.call.requests]
        return {"prompt_token_ids": ids[0] if len(ids) == 1 else ids}

    def _chunk(self, choices: list[Json]) -> Json:
        return self._envelope(self._form.chunk_kind, choices)

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": ID_PREFIXES[self._form.whole_kind] + self.job.name,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


def _failed(told: TokenEvent) -> HttpError:
    return HttpError(503, told.error or "the reply was cancelled", code="row_failed")
