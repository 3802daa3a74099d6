"""Replies of /v1/responses: one response, whole or as named events with running numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from engine.request import Completion, FinishReason
from engine.server.forms import Letterhead, Piece
from engine.server.output_items import COMPLETED, IN_PROGRESS, INCOMPLETE, OutputItems
from engine.server.problem import HttpError
from engine.server.readers import Json
from engine.server.sse import event
from engine.server.usage import response_usage_of

FAILED = "failed"

REPEATED: dict[str, Any] = {
    "instructions": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "prompt_cache_key": None,
    "prompt_cache_retention": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "user": None,
}
"""Fields of the request that the response repeats -> what stands for one that was left out."""

SETTLED: dict[str, Any] = {
    "background": False,
    "previous_response_id": None,
    "service_tier": "default",
    "store": False,
    "truncation": "disabled",
}
"""Members that are the same in every response."""


class ResponseForm:
    """A response; it has one row."""

    def __init__(self, letterhead: Letterhead) -> None:
        self._letterhead = letterhead
        self._items = OutputItems(letterhead.name, letterhead.tokens)
        self._num_events = 0
        self._is_cut = False

    def opening(self) -> Iterator[bytes]:
        """Announce the response."""
        for kind in ("created", "in_progress"):
            yield self._stage(kind, self._response(IN_PROGRESS))

    def said(self, piece: Piece) -> Iterator[bytes]:
        """Say what is added to its items."""
        for told in self._take(piece):
            yield self._numbered(told)

    def ending(self, records: Sequence[Completion]) -> Iterator[bytes]:
        """Close what is open, and say it all."""
        for told in self._items.ending(is_cut=self._is_cut):
            yield self._numbered(told)
        kind = INCOMPLETE if self._is_cut else COMPLETED
        yield self._stage(kind, self._ended(records))

    def failure(self, error: HttpError) -> Iterator[bytes]:
        """Say how far it came, and what went wrong, in both spellings clients look for."""
        told = {"code": "server_error", "message": error.message}
        yield self._stage(FAILED, self._response(FAILED) | {"error": told})
        flat = {"code": error.code, "message": error.message, "param": error.param}
        yield self._numbered({"type": "error", **flat, **error.document})

    def whole(self, pieces: Sequence[Piece], records: Sequence[Completion]) -> Json:
        """Say it all."""
        for piece in pieces:
            for _ in self._take(piece):
                pass
        for _ in self._items.ending(is_cut=self._is_cut):
            pass
        return self._ended(records)

    def _take(self, piece: Piece) -> Iterator[Json]:
        self._is_cut = piece.finish_reason == FinishReason.LENGTH
        return self._items.said(piece)

    def _ended(self, records: Sequence[Completion]) -> Json:
        (record,) = records
        reason = {"incomplete_details": {"reason": "max_output_tokens"}} if self._is_cut else {}
        wants_ids = self._letterhead.call.return_token_ids
        return {
            **self._response(INCOMPLETE if self._is_cut else COMPLETED),
            "completed_at": None if self._is_cut else int(time.time()),
            "usage": response_usage_of(record),
            **reason,
            **({"token_ids": list(record.token_ids)} if wants_ids else {}),
        }

    def _response(self, status: str) -> Json:
        head = self._letterhead
        (request,) = head.call.requests
        asked = head.call.asked
        limit = request.max_tokens if "max_output_tokens" in asked else None
        return {
            "id": f"resp_{head.name}",
            "object": "response",
            "created_at": head.created,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
            "output": self._items.documents(),
            "max_output_tokens": limit,
            "temperature": request.sampling.temperature,
            "top_p": request.sampling.top_p,
            "text": {"format": {"type": "text"}, "verbosity": "medium", **asked.get("text", {})},
            **SETTLED,
            **{name: asked.get(name, unset) for name, unset in REPEATED.items()},
            "usage": None,
            **head.prompt_ids(),
        }

    def _stage(self, kind: str, response: Json) -> bytes:
        return self._numbered({"type": f"response.{kind}", "response": response})

    def _numbered(self, told: Json) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        return event({**told, "sequence_number": number}, told["type"])
