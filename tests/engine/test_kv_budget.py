"""Rows are let in by what they may come to need, and refused when nothing could make room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.kv_budget import KvBudget, KvCosts, Rectangle

rows = st.lists(st.integers(1, 5_000), min_size=1, max_size=20)


@given(rows=rows)
def test_a_rectangle_holds_each_of_its_rows(rows: list[int]) -> None:
    rectangle = Rectangle.around(len(rows), max(rows))
    assert rectangle.num_slots >= len(rows)
    assert rectangle.capacity >= max(rows)
    assert rectangle.capacity % 256 == 0


sizes = st.builds(Rectangle, st.sampled_from([0, 1, 4, 8]), st.integers(0, 20).map((256).__mul__))
wanted = st.builds(Rectangle, st.sampled_from([1, 4, 8]), st.integers(1, 20).map((256).__mul__))


@given(held=sizes, most=wanted, data=st.data())
def test_the_cache_holds_what_is_needed_within_the_limit_and_twice_the_need(
    held: Rectangle, most: Rectangle, data: st.DataObject
) -> None:
    costs = KvCosts(per_token=1)
    limit = KvBudget(costs).bytes_of(most) + data.draw(st.integers(0, 10_000))
    budget = KvBudget(costs, data.draw(st.sampled_from([None, limit])))
    needed = data.draw(st.integers(1, most.capacity))
    room = budget.room(held, most, needed)
    assert room.num_slots >= most.num_slots
    assert room.capacity >= needed
    assert budget.fits(room)
    assert budget.bytes_of(room) <= 2 * budget.bytes_of(most)
    assert budget.room(room, most, needed) == room, "nothing is copied twice"


def test_both_caches_count() -> None:
    costs = KvCosts(per_token=10, per_slot=1000) + KvCosts(per_token=5)
    assert KvBudget(costs).bytes_of(Rectangle(2, 256)) == 2 * (256 * 15 + 1000)


def test_a_row_that_cannot_fit_alone_is_refused_with_the_figures() -> None:
    budget = KvBudget(KvCosts(per_token=1_000_000), limit_bytes=300_000_000)
    budget.check_alone(256)
    with pytest.raises(RequestError, match=r"512 positions = 0\.512 GB .* budget is 0\.3 GB"):
        budget.check_alone(257)


def test_without_a_limit_every_row_fits() -> None:
    assert KvBudget(KvCosts(per_token=10**9)).fits(Rectangle(128, 10**6))
