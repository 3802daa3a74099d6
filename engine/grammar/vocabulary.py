"""What a grammar has to know about the token ids of one model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from engine.errors import SettingError

BLANKS = b" \t\n\r"
DIGITS = b"0123456789"


class GrammarVocabulary:
    """Token ids of a model: which end a row, which exist, what their masks look like.

    Args:
        tokenizer: knows the bytes of every token that has some.
        vocab_size: width of the logits; ids of the tokenizer beyond it do not exist.
        eos_ids: ids that end a row.
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        vocab_size: int,
        eos_ids: frozenset[int],
        max_idle_bytes: int,
    ) -> None:
        if not eos_ids or not all(0 <= token < vocab_size for token in eos_ids):
            raise SettingError(f"end tokens {sorted(eos_ids)} do not fit ids 0 to {vocab_size - 1}")
        if tokenizer.vocab_size > 32 * words(vocab_size):
            raise SettingError(
                f"the tokenizer has {tokenizer.vocab_size} tokens and the logits {vocab_size}; "
                "the model and its tokenizer do not belong together"
            )
        self.tokenizer = tokenizer
        self.num_words = words(tokenizer.vocab_size)
        self.max_idle_bytes = max_idle_bytes
        self._num_known = min(vocab_size, tokenizer.vocab_size)
        self._ends = eos_ids | frozenset(tokenizer.eos_tokens)
        self._end_bits = [(token // 32, _bit(token)) for token in sorted(eos_ids)]
        self._other_ends = [
            (token // 32, ~_bit(token)) for token in set(tokenizer.eos_tokens) - eos_ids
        ]
        # Ids in the tokenizer's last word that the logits do not have.
        self._padding = _padding(vocab_size, self.num_words)
        self._idle: dict[int, tuple[str, int]] = {}

    def known_prefix(self, tokens: Sequence[int]) -> list[int]:
        """Return the leading tokens that exist and do not end a row."""
        known: list[int] = []
        for token in tokens:
            if not 0 <= token < self._num_known or token in self._ends:
                break
            known.append(int(token))
        return known

    def set_ends(self, row: NDArray[np.int32], is_accepting: bool) -> None:
        """Make every end token legal or illegal in a mask, and ids without a token illegal."""
        if len(row) > self.num_words:
            row[self.num_words :] = 0
        if self._padding is not None:
            row[self.num_words - 1] &= self._padding
        for word, others in self._other_ends:
            row[word] &= others
        for word, bit in self._end_bits:
            row[word] = row[word] | bit if is_accepting else row[word] & ~bit

    def idle_kind(self, token: int) -> tuple[str, int]:
        """Return ("blanks" | "digits" | "", bytes): what a token is if it is nothing else."""
        found = self._idle.get(token)
        if found is None:
            text = self.tokenizer.decode_bytes([token])
            found = self._idle[token] = (_kind(text), len(text))
        return found


def words(vocab_size: int) -> int:
    """Return how many 32-bit words a mask over `vocab_size` token ids takes."""
    return (vocab_size + 31) // 32


def _kind(text: bytes) -> str:
    if not text.strip(BLANKS):
        return "blanks"
    return "" if text.strip(DIGITS) else "digits"


def _bit(token: int) -> np.int32:
    return np.uint32(1 << token % 32).astype(np.int32)


def _padding(vocab_size: int, num_words: int) -> np.int32 | None:
    surplus = 32 * num_words - vocab_size
    if surplus <= 0:
        return None
    return np.uint32(0xFFFFFFFF >> surplus).astype(np.int32)
