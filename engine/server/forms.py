"""The two forms of a reply, chat and completion, whole and in chunks: pure functions of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.models.tokenizer import Tokenizer
from engine.request import TokenLogprobs
from engine.server.fields import Endpoint

LOWEST_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON does not have."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Piece:
    """What one choice says next, or in all.

    Args:
        entries: one for each token, None where no logprobs are wanted.
        token_ids: None where they are not wanted.
        finish_reason: None while the choice goes on.
    """

    index: int
    text: str = ""
    entries: Sequence[TokenLogprobs] | None = None
    token_ids: Sequence[int] | None = None
    finish_reason: str | None = None


class Form(Protocol):
    """How replies of one endpoint are written."""

    whole_kind: str
    chunk_kind: str

    def opening(self, index: int) -> Json | None:
        """Return the choice of a first chunk, None where there is none."""
        ...

    def chunk(self, piece: Piece) -> Json:
        """Return the choice of a further chunk."""
        ...

    def whole(self, piece: Piece) -> Json:
        """Return a whole choice."""
        ...


class ChatForm:
    """Replies of /v1/chat/completions."""

    whole_kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(self, tokens: TokenTexts) -> None:
        self._tokens = tokens

    def opening(self, index: int) -> Json:
        """Say who speaks."""
        return {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }

    def chunk(self, piece: Piece) -> Json:
        """Say what is added; an end adds nothing."""
        delta = {} if piece.finish_reason is not None else {"content": piece.text}
        return self._choice(piece, {"delta": delta})

    def whole(self, piece: Piece) -> Json:
        """Say it all."""
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return self._choice(piece, {"message": message})

    def _choice(self, piece: Piece, said: Json) -> Json:
        logprobs = None
        if piece.entries is not None:
            content = [self._tokens.entry(item) for item in piece.entries]
            logprobs = {"content": content, "refusal": None}
        return {
            "index": piece.index,
            **said,
            "logprobs": logprobs,
            "finish_reason": piece.finish_reason,
            **_ids(piece),
        }


class CompletionForm:
    """Replies of /v1/completions."""

    whole_kind = chunk_kind = "text_completion"

    def __init__(self, tokens: TokenTexts) -> None:
        self._tokens = tokens
        self._lengths: dict[int, int] = {}

    def opening(self, index: int) -> None:
        """Nobody speaks."""

    def chunk(self, piece: Piece) -> Json:
        """Say what is added."""
        return {
            "index": piece.index,
            "text": piece.text,
            "logprobs": None if piece.entries is None else self._columns(piece),
            "finish_reason": piece.finish_reason,
            **_ids(piece),
        }

    whole = chunk

    def _columns(self, piece: Piece) -> Json:
        """Return the lists of a completion's logprobs; offsets go on from chunk to chunk."""
        entries = piece.entries or ()
        texts = [self._tokens.name(entry.token_id) for entry in entries]
        offsets = []
        length = self._lengths.get(piece.index, 0)
        for entry in entries:
            offsets.append(length)
            length += len(self._tokens.text(entry.token_id))
        self._lengths[piece.index] = length
        return {
            "tokens": texts,
            "token_logprobs": [_number(entry.logprob) for entry in entries],
            "top_logprobs": [self._tokens.alternatives(entry) for entry in entries],
            "text_offset": offsets,
        }


class TokenTexts:
    """Tokens as people read them.

    Args:
        num_top: alternatives to show beside a token.
    """

    def __init__(self, tokenizer: Tokenizer, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top

    def text(self, token_id: int) -> str:
        """Return a token's text by itself; broken characters become U+FFFD."""
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    def name(self, token_id: int) -> str:
        """Return a text that tells tokens apart: bytes that are no text are spelled out."""
        raw = self._tokenizer.token_bytes(token_id)
        if not raw:
            return self._tokenizer.control_name(token_id)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def entry(self, item: TokenLogprobs) -> Json:
        """Return a token with its alternatives, as a chat shows it."""
        top = [self._scored(token, logprob) for token, logprob in item.top[: self._num_top]]
        return {**self._scored(item.token_id, item.logprob), "top_logprobs": top}

    def alternatives(self, item: TokenLogprobs) -> dict[str, float]:
        """Return the likeliest tokens, and the chosen one, by their texts."""
        shown = item.top or ((item.token_id, item.logprob),)
        return {self.name(token): _number(logprob) for token, logprob in shown}

    def _scored(self, token_id: int, logprob: float) -> Json:
        return {
            "token": self.name(token_id),
            "logprob": _number(logprob),
            "bytes": list(self._tokenizer.token_bytes(token_id)),
        }


FORMS: Mapping[Endpoint, Callable[[TokenTexts], Form]] = {
    Endpoint.CHAT: ChatForm,
    Endpoint.COMPLETIONS: CompletionForm,
}


def _ids(piece: Piece) -> Json:
    return {} if piece.token_ids is None else {"token_ids": list(piece.token_ids)}


def _number(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
