"""Masks: filled on the CPU while the forward runs, uploaded once, applied in plain mlx."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from engine.errors import detail_of
from engine.grammar.state import Bitmask
from engine.grammar.vocabulary import words

__all__ = [
    "FILLS",
    "FillCounter",
    "MaskJob",
    "apply_mask",
    "bar_tokens",
    "bits_of",
    "fill_masks",
    "words",
]

BITS = np.left_shift(np.uint32(1), np.arange(32, dtype=np.uint32)).view(np.int32)
"""The 32 bits of a mask's word, lowest token id first."""


class MaskSource(Protocol):
    """What can say which tokens are legal (engine.grammar.state.GrammarState)."""

    def fill(self, draft: Sequence[int], rows: Bitmask) -> str | None:
        """Write one mask before and one after each drafted token; return why it cannot."""
        ...


@dataclass(frozen=True, slots=True)
class MaskJob:
    """The masks of one row of a step.

    Args:
        row: index of the first mask in the bitmask.
        draft: drafted tokens, cut to their legal prefix.
    """

    state: MaskSource
    row: int
    draft: Sequence[int] = ()


@dataclass(slots=True)
class FillCounter:
    """How many masks this process has filled through this module, oracles included."""

    count: int = 0


FILLS = FillCounter()


def fill_masks(jobs: Sequence[MaskJob], bitmask: Bitmask) -> list[tuple[int, str]]:
    """Write the masks `job.row` .. `job.row + len(job.draft)` of every job; the rest is untouched.

    One thread: on two cores that also run the forward, llguidance's pool took 1.7 to 2.3 times as
    long as this loop for four rows of five masks (139 us at the median).

    Args:
        bitmask: [rows, words], int32, C-contiguous.

    Returns:
        (job index, reason) of each row that must end: its matcher failed, or nothing is legal.
    """
    assert bitmask.dtype == np.int32, f"the bitmask is of {bitmask.dtype}, not int32"
    assert bitmask.flags["C_CONTIGUOUS"], "the bitmask has gaps"
    failures = []
    for index, job in enumerate(jobs):
        rows = bitmask[job.row : job.row + len(job.draft) + 1]
        FILLS.count += len(rows)
        try:
            error = job.state.fill(job.draft, rows)
        except Exception as failure:  # noqa: BLE001  # ends this row alone
            error = f"the grammar failed ({detail_of(failure)}); send the request again"
        if error is not None:
            failures.append((index, error))
    return failures


def bits_of(token_ids: Iterable[int], vocab_size: int) -> NDArray[np.int32]:
    """Return one mask in which `token_ids` are legal and nothing else is, [words]."""
    row = np.zeros(words(vocab_size), dtype=np.uint32)
    for token in token_ids:
        row[token // 32] |= np.uint32(1 << token % 32)
    return row.view(np.int32)


def bar_tokens(bitmask: Bitmask, rows: NDArray[np.int64], bits: NDArray[np.int32]) -> None:
    """Make tokens illegal in some masks, but leave a mask alone that allows nothing else.

    Args:
        bitmask: [rows, words], int32, changed in place.
        rows: which of its masks.
        bits: the tokens (`bits_of`), [words].
    """
    rest = bitmask[rows] & ~bits
    has_other = rest.any(axis=1)
    bitmask[rows[has_other]] = rest[has_other]


def apply_mask(logits: mx.array, bitmask: mx.array) -> mx.array:
    """Return `logits` with every illegal token at -inf. Does not wait for the device.

    Args:
        logits: [rows, vocab].
        bitmask: [rows, words], int32; a row of -1 leaves its logits as they are, and ids beyond
            32 * words are illegal.
    """
    num_rows, vocab_size = logits.shape
    legal = ((bitmask[:, :, None] & mx.array(BITS)) != 0).reshape(num_rows, -1)[:, :vocab_size]
    if legal.shape[1] < vocab_size:
        legal = mx.pad(legal, [(0, 0), (0, vocab_size - legal.shape[1])])
    return mx.where(legal, logits, mx.array(-mx.inf, dtype=logits.dtype))
