"""The declared shapes of a step: how many rows, how many columns, how much cache.

A backend that prepares kernels per shape (CUDA plans, compiled functions) meets only these, so
what it prepared is used again. Rounding up costs padding; StepReport counts it.
"""

from __future__ import annotations

CAPACITY_BLOCK = 256
"""Cache positions are allocated in blocks of this many tokens."""

STEP_WIDTHS = (1, 2, 4, 8, 16)
"""Columns of a decode step: tokens fed to each row."""

ROW_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Rows of a step."""

PREFILL_BLOCK = 16
"""Columns of a prompt chunk longer than a decode step come in multiples of this at least."""

PREFILL_STEPS = 8
"""How many widths there are between a power of two and its double: padding stays under 1 in 8."""


def round_up(number: int, block: int) -> int:
    """Return the smallest multiple of `block` that is at least `number`."""
    return -(-number // block) * block


def step_width(num_tokens: int) -> int:
    """Return the declared width that holds `num_tokens` columns of a decode step."""
    return next(width for width in STEP_WIDTHS if width >= num_tokens)


def row_bucket(num_rows: int) -> int:
    """Return the declared number of rows that holds `num_rows`."""
    return next(bucket for bucket in ROW_BUCKETS if bucket >= num_rows)


def whole_bucket(num_rows: int) -> int:
    """Return the largest declared number of rows that `num_rows` can fill."""
    return next(bucket for bucket in reversed(ROW_BUCKETS) if bucket <= num_rows)


def prefill_width(num_tokens: int) -> int:
    """Return the declared width that holds `num_tokens` columns of a prompt chunk."""
    if num_tokens <= STEP_WIDTHS[-1]:
        return step_width(num_tokens)
    return round_up(num_tokens, prefill_block(num_tokens))


def whole_width(num_tokens: int) -> int:
    """Return the most columns up to `num_tokens` that are a declared width of a prompt chunk."""
    return next(n for n in range(num_tokens, 0, -1) if prefill_width(n) == n)


def prefill_block(num_tokens: int) -> int:
    """Return what the width of a chunk of `num_tokens` is a multiple of."""
    return max(PREFILL_BLOCK, (1 << (num_tokens - 1).bit_length()) // PREFILL_STEPS)
