"""Tokens and their log-probabilities as people read them."""

from __future__ import annotations

from engine.models.tokenizer import Tokenizer
from engine.request import TokenLogprobs
from engine.server.readers import Json

LOWEST_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON does not have."""


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
        return {self.name(token): finite(logprob) for token, logprob in shown}

    def _scored(self, token_id: int, logprob: float) -> Json:
        return {
            "token": self.name(token_id),
            "logprob": finite(logprob),
            "bytes": list(self._tokenizer.token_bytes(token_id)),
        }


def finite(logprob: float) -> float:
    """Return a log-probability as a number that JSON has."""
    return max(logprob, LOWEST_LOGPROB)
