"""Declared shapes hold what they are asked to hold, with little padding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backend import PREFILL_COLUMNS
from engine.shapes import (
    ROW_BUCKETS,
    STEP_WIDTHS,
    prefill_width,
    row_bucket,
    step_width,
    whole_bucket,
    whole_width,
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


@given(number=st.integers(1, 8192))
def test_a_whole_width_is_the_widest_that_so_many_tokens_fill(number: int) -> None:
    width = whole_width(number)
    assert prefill_width(width) == width <= number
    assert prefill_width(width + 1) > number or width == number


@pytest.mark.parametrize(("chunk", "num_widths"), [(512, 20), (2048, 28)])
def test_the_declared_prompt_widths_are_few(chunk: int, num_widths: int) -> None:
    widths = {prefill_width(number) for number in range(1, chunk + 1)}
    assert set(STEP_WIDTHS) <= widths
    assert len(widths) == num_widths


@pytest.mark.parametrize("device", PREFILL_COLUMNS)
def test_the_columns_of_every_device_are_a_declared_width(device: str) -> None:
    columns = PREFILL_COLUMNS[device]
    assert prefill_width(columns.chunk) == columns.chunk
    assert prefill_width(columns.interleaved) == columns.interleaved
