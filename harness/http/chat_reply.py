"""The chunks of a streamed chat, put together: text, ids, usage, and when each was read.

Foreign servers differ: a role in every chunk, empty deltas, usage in a chunk of its own or in all,
several tokens in one chunk, reasoning under one of two names. What counts is what a chunk adds.
What has another type than the API gives it is told, never guessed at: figures are made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import FmError

REASONING = ("reasoning_content", "reasoning")

MAX_COUNT = 2**53
"""What a count of tokens cannot be, by far; beyond it JSON readers differ."""

COUNTS = ("prompt_tokens", "completion_tokens")
SPECULATION = ("drafted", "accepted", "target_calls")
POSITIONS = ("drafted_by_position", "accepted_by_position")
WORDS = ("lane", "lane_reason", "conformance")


class StreamError(FmError):
    """What a server sent is no stream of a chat, or tells of an error."""


@dataclass(slots=True)
class ChatReply:
    """One reply so far.

    Attributes:
        token_ids: None where the server tells none.
        chunks: chunks that added something.
        usage: the last one that was told; what this project reads of it has been checked.
        first_token_s: the first chunk that added anything, reasoning included; the role is nothing.
        first_text_s: the first chunk with visible text.
        finished_s: the chunk that told why it ended; usage behind it is no part of the reply.
    """

    text: str = ""
    reasoning: str = ""
    token_ids: list[int] | None = None
    chunks: int = 0
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    first_token_s: float | None = None
    first_text_s: float | None = None
    last_token_s: float | None = None
    finished_s: float | None = None

    def see(self, document: Any, now_s: float) -> int:
        """Take one chunk in; returns how many tokens it brought, as far as that is told.

        Raises:
            StreamError: it is no chunk of a chat.
        """
        chunk = _members(document, "a chunk")
        if chunk.get("usage"):
            self.usage = _usage(chunk["usage"])
        choices = _items(chunk.get("choices") or [], "choices")
        told = [_members(choice, "a choice") for choice in choices]
        return sum(self._take(choice, now_s) for choice in told if not choice.get("index"))

    def _take(self, choice: Mapping[str, Any], now_s: float) -> int:
        delta = _members(choice.get("delta") or {}, "a delta")
        said = _text(delta.get("content") or choice.get("text") or "", "content")
        thought = _text(
            next((delta[name] for name in REASONING if delta.get(name)), ""), "reasoning"
        )
        ids = _optional_counts(choice, "token_ids")
        self.text += said
        self.reasoning += thought
        if ids is not None:
            self.token_ids = self.token_ids or []
            self.token_ids += ids
        if choice.get("finish_reason") is not None:
            self.finish_reason = _text(choice["finish_reason"], "finish_reason")
            self.finished_s = self.finished_s or now_s
        if not (said or thought or ids or delta.get("tool_calls")):
            return 0
        self.chunks += 1
        self.last_token_s = now_s
        if self.first_token_s is None:
            self.first_token_s = now_s
        if said and self.first_text_s is None:
            self.first_text_s = now_s
        return len(ids) if ids is not None else 1


def _usage(value: Any) -> Mapping[str, Any]:
    """Take a usage, of which all that is read here has its type."""
    usage = _members(value, "usage")
    for name in COUNTS:
        _optional_count(usage, name)
    details = _members(usage.get("prompt_tokens_details") or {}, "usage.prompt_tokens_details")
    _optional_count(details, "cached_tokens")
    speculation = _members(usage.get("speculation") or {}, "usage.speculation")
    for name in SPECULATION:
        _optional_count(speculation, name)
    for name in POSITIONS:
        _optional_counts(speculation, name)
    for name in WORDS:
        if usage.get(name) is not None:
            _text(usage[name], name)
    return usage


def _members(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise StreamError(f"{what} is {value!r:.60}, and no object")
    return value


def _items(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise StreamError(f"{what} is {value!r:.60}, and no list")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise StreamError(f"{what} is {value!r:.60}, and no text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise StreamError(f"{what} holds half a surrogate pair, which is no text") from None
    return value


def _optional_count(given: Mapping[str, Any], name: str) -> int | None:
    return None if given.get(name) is None else _count(given[name], name)


def _optional_counts(given: Mapping[str, Any], name: str) -> list[int] | None:
    if given.get(name) is None:
        return None
    return [_count(item, name) for item in _items(given[name], name)]


def _count(value: Any, what: str) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not 0 <= value < MAX_COUNT:
        raise StreamError(f"{what} is {value!r:.60}, and no count")
    return int(value)
