"""What a reply is made of, and what makes it a document or a stream of events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.request import Completion, TokenLogprobs
from engine.server.calls import CallDelta
from engine.server.problem import HttpError
from engine.server.protocol import Call
from engine.server.readers import Json
from engine.server.token_texts import TokenTexts


@dataclass(frozen=True, slots=True)
class Piece:
    """What one choice says next, or in all.

    Args:
        entries: one for each token, None where no logprobs are wanted.
        token_ids: None where they are not wanted.
        finish_reason: None while the choice goes on.
        reasoning: what the model thought before it spoke; no part of `text`.
        calls: what is added to the calls of the choice, behind `text` and no part of it.
        is_reasoning: whether its tokens are reasoning, tags included.
    """

    index: int
    text: str = ""
    entries: Sequence[TokenLogprobs] | None = None
    token_ids: Sequence[int] | None = None
    finish_reason: str | None = None
    reasoning: str = ""
    calls: Sequence[CallDelta] = ()
    is_reasoning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Letterhead:
    """What one reply says of itself, whatever its form.

    Args:
        name: tells the reply apart from all others; forms put their prefix before it.
        model: the model's id.
        fingerprint: of the model's weights.
        created: seconds since 1970.
    """

    call: Call
    name: str
    model: str
    fingerprint: str
    tokens: TokenTexts
    created: int

    def prompt_ids(self) -> Json:
        """Return the member that holds the prompts' ids, empty where they are not wanted."""
        if not self.call.return_token_ids:
            return {}
        ids = [list(request.prompt_ids) for request in self.call.requests]
        return {"prompt_token_ids": ids[0] if len(ids) == 1 else ids}


class Form(Protocol):
    """How one reply of one endpoint is written; a stream's calls come in this order."""

    def opening(self) -> Iterable[bytes]:
        """Return the events before anything is said."""
        ...

    def said(self, piece: Piece) -> Iterable[bytes]:
        """Return the events of what is said next."""
        ...

    def ending(self, records: Sequence[Completion]) -> Iterable[bytes]:
        """Return the events behind the end of every row."""
        ...

    def failure(self, error: HttpError) -> Iterable[bytes]:
        """Return the events that end a stream in its midst."""
        ...

    def whole(self, pieces: Sequence[Piece], records: Sequence[Completion]) -> Json:
        """Return the document that says it all; `records` holds one item a row."""
        ...
