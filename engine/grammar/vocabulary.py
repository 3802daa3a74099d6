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
        self._end_bits = [(token // 32, _signed(1 << token % 32)) for token in sorted(eos_ids)]
        # Bits never legal: ends of the tokenizer that do not end this model's rows, and ids in
        # the tokenizer's last word that the logits do not have.
        self._never = [
            (token // 32, _signed(1 << token % 32))
            for token in sorted(set(tokenizer.eos_tokens) - eos_ids)
        ]
        surplus = 32 * self.num_words - vocab_size
        if surplus > 0:
            padding = 0xFFFFFFFF & ~(0xFFFFFFFF >> surplus)
            self._never.append((self.num_words - 1, _signed(padding)))
        self._idle: dict[int, tuple[str, int]] = {}
        self._open = np.full(self.num_words, -1, dtype=np.int32)
        for token in range(self._num_known, 32 * self.num_words):
            self._clear(self._open, token)
        for token in self._ends:
            self._clear(self._open, token)

    @property
    def ends(self) -> frozenset[int]:
        """Ids that end a row, of this model or of its tokenizer."""
        return self._ends

    def known_prefix(self, tokens: Sequence[int]) -> list[int]:
        """Return the leading tokens that exist and do not end a row."""
        known: list[int] = []
        for token in tokens:
            if not 0 <= token < self._num_known or token in self._ends:
                break
            known.append(int(token))
        return known

    def set_ends(self, rows: memoryview, index: int, is_accepting: bool) -> bool:
        """Make every end token legal or illegal in one mask, and ids without a token illegal.

        Args:
            rows: [rows, words] of signed 32-bit words; an element costs a third of a numpy one.

        Returns:
            True when the mask had an end token legal that is not; it may be left empty.
        """
        for word, bits in self._never:
            rows[index, word] &= ~bits
        was_cleared = False
        for word, bit in self._end_bits:
            value = rows[index, word]
            if is_accepting:
                rows[index, word] = value | bit
            elif value & bit:
                rows[index, word] = value & ~bit
                was_cleared = True
        return was_cleared

    def open_row(self, row: NDArray[np.int32]) -> None:
        """Make every token legal in one mask, [words], but those that end a row."""
        row[: self.num_words] = self._open
        row[self.num_words :] = 0

    def only(self, token: int, row: NDArray[np.int32]) -> None:
        """Make one token legal in one mask, [words], and no other."""
        row[:] = 0
        self.allow(token, row)

    def allow(self, token: int, row: NDArray[np.int32]) -> None:
        """Make one token legal in one mask, [words]."""
        row[token // 32] |= np.int32(_signed(1 << token % 32))

    def _clear(self, row: NDArray[np.int32], token: int) -> None:
        if token // 32 < len(row):
            row[token // 32] &= ~np.int32(_signed(1 << token % 32))

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


def _signed(word: int) -> int:
    """Return an unsigned 32-bit word as the signed integer with the same bits."""
    return word - 2**32 if word >= 2**31 else word
