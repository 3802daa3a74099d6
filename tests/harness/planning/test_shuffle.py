"""The order of cells favours none of them, whatever the seed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.planning.shuffle import mirrored_orders

ITEMS, BLOCKS, SEEDS = st.integers(1, 20), st.integers(1, 20), st.text(max_size=8)


@given(ITEMS, BLOCKS, SEEDS)
def test_every_block_runs_every_item_once_and_the_seed_repeats_it(
    num_items: int, num_blocks: int, seed: str
) -> None:
    orders = mirrored_orders(num_items, num_blocks, seed)
    assert len(orders) == num_blocks
    assert all(sorted(order) == list(range(num_items)) for order in orders)
    assert orders == mirrored_orders(num_items, num_blocks, seed)


@given(ITEMS, BLOCKS, SEEDS)
def test_a_steady_drift_cancels_between_any_two_items(
    num_items: int, num_blocks: int, seed: str
) -> None:
    """Case ha-08: what a cell gains by early places it loses by late ones."""
    orders = mirrored_orders(num_items, num_blocks, seed)
    sums = [sum(order.index(item) for order in orders) for item in range(num_items)]
    # One order without a mirror image may stay over.
    assert max(sums) - min(sums) <= (num_items - 1) * (num_blocks % 2)


def test_every_order_has_its_chance() -> None:
    firsts = [mirrored_orders(4, 6, str(seed))[0] for seed in range(400)]
    assert len(set(firsts)) == 24
    leaders = [sum(order[0] == item for order in firsts) for item in range(4)]
    assert all(60 < count < 140 for count in leaders)
