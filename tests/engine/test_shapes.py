"""Declared shapes hold what they are asked to hold, with little padding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.shapes import (
    ROW_BUCKETS,
    STEP_WIDTHS,
    prefill_width,
    row_bucket,
    step_width,
    whole_bucket,
)


def test_widths_come_from_the_declared_set() -> None:
    widths = [step_width(number) for number in (1, 2, 3, 4, 5, 8, 9, 16)]
    assert widths == [1, 2, 4, 4, 8, 8, 16, 16]


@given(number=st.integers(1, 128))
def test_a_bucket_holds_its_rows_and_a_whole_bucket_is_filled(number: int) -> None:
    assert row_bucket(number) in ROW_BUCKETS
    assert row_bucket(number) >= number >= whole_bucket(number)
    assert whole_bucket(number) in ROW_BUCKETS


@given(number=st.integers(17, 8192))
def test_a_prompt_chunk_is_padded_by_less_than_an_eighth_or_one_block(number: int) -> None:
    width = prefill_width(number)
    assert number <= width < number + max(16, number / 4)
    assert prefill_width(width) == width


def test_the_declared_prompt_widths_are_few() -> None:
    widths = {prefill_width(number) for number in range(1, 513)}
    assert set(STEP_WIDTHS) <= widths
    assert len(widths) == 20
