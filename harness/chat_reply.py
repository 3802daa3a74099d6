"""The chunks of a streamed chat, put together: text, ids, usage, and when each was read.

Foreign servers differ: a role in every chunk, empty deltas, usage in a chunk of its own or in all,
several tokens in one chunk, reasoning under one of two names. What counts is what a chunk adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.errors import FmError

T = TypeVar("T")

REASONING = ("reasoning_content", "reasoning")


class StreamError(FmError):
    """What a server sent is no stream of a chat, or tells of an error."""


@dataclass(slots=True)
class ChatReply:
    """One reply so far.

    Attributes:
        token_ids: None where the server tells none.
        chunks: chunks that added something.
        usage: the last one that was told.
        first_token_s: the first chunk that added anything, reasoning included; the role is nothing.
        first_text_s: the first chunk with visible text.
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

    def see(self, document: Any, now_s: float) -> int:
        """Take one chunk in; returns how many tokens it brought, as far as that is told.

        Raises:
            StreamError: it is no chunk of a chat.
        """
        if not isinstance(document, Mapping):
            raise StreamError(f"a chunk is {document!r:.60}, and no object")
        if isinstance(usage := document.get("usage"), Mapping):
            self.usage = usage
        choices = document.get("choices") or []
        if not isinstance(choices, list) or not all(isinstance(item, Mapping) for item in choices):
            raise StreamError(f"the choices of a chunk are {choices!r:.60}")
        return sum(self._take(choice, now_s) for choice in choices if not choice.get("index"))

    def _take(self, choice: Mapping[str, Any], now_s: float) -> int:
        delta = _of_kind(dict, choice.get("delta") or {})
        said = _of_kind(str, delta.get("content") or choice.get("text") or "")
        thought = _of_kind(str, next((delta[name] for name in REASONING if delta.get(name)), ""))
        ids = choice.get("token_ids")
        self.text += said
        self.reasoning += thought
        if ids is not None:
            self.token_ids = self.token_ids or []
            self.token_ids += _of_kind(list, ids)
        if choice.get("finish_reason") is not None:
            self.finish_reason = str(choice["finish_reason"])
        if not (said or thought or ids or delta.get("tool_calls")):
            return 0
        self.chunks += 1
        self.last_token_s = now_s
        if self.first_token_s is None:
            self.first_token_s = now_s
        if said and self.first_text_s is None:
            self.first_text_s = now_s
        return len(ids) if ids is not None else 1


def _of_kind(kind: type[T], value: Any) -> T:
    """Return a part of a chunk; raises StreamError when it is of another type."""
    if not isinstance(value, kind):
        raise StreamError(f"a chunk holds {value!r:.60}, which is no {kind.__name__.lower()}")
    return value
