"""The order of cells favours none of them, whatever the seed."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from harness.planning.shuffle import mirrored_orders, turns_of_blocks

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


TURNS = st.lists(st.integers(1, 9), min_size=1, max_size=9)


@given(TURNS, BLOCKS, SEEDS)
def test_every_item_has_all_its_turns_in_every_block(
    num_turns: list[int], num_blocks: int, seed: str
) -> None:
    blocks = turns_of_blocks(num_turns, num_blocks, seed)
    assert len(blocks) == num_blocks
    for places in blocks:
        assert [len(taken) for taken in places] == num_turns
        assert all(list(taken) == sorted(taken) for taken in places)
        assert sorted(place for taken in places for place in taken) == list(range(sum(num_turns)))
    assert blocks == turns_of_blocks(num_turns, num_blocks, seed)


@given(ITEMS, BLOCKS, SEEDS)
def test_items_of_one_turn_are_ordered_as_blocks_are(
    num_items: int, num_blocks: int, seed: str
) -> None:
    """So a plan of one wave a trial, and the order of its stored run, stay what they were."""
    blocks = turns_of_blocks([1] * num_items, num_blocks, seed)
    orders = mirrored_orders(num_items, num_blocks, seed)
    assert [[place for (place,) in places] for places in blocks] == [
        [order.index(item) for item in range(num_items)] for order in orders
    ]


@given(TURNS, BLOCKS, SEEDS)
def test_a_steady_drift_cancels_within_a_block_whatever_turns_others_have(
    num_turns: list[int], num_blocks: int, seed: str
) -> None:
    """An item's mean place is the block's middle, but for the odd turn in the middle pass."""
    middle = (sum(num_turns) - 1) / 2
    num_odd = sum(turns % 2 for turns in num_turns)
    for places in turns_of_blocks(num_turns, num_blocks, seed):
        for taken in places:
            aside = abs(sum(taken) - middle * len(taken))
            assert aside <= (num_odd - 1) / 2 * (len(taken) % 2)


@given(TURNS, st.integers(1, 10).map(lambda half: 2 * half), SEEDS)
def test_a_steady_drift_cancels_between_blocks_whatever_turns_others_have(
    num_turns: list[int], num_blocks: int, seed: str
) -> None:
    middle = (sum(num_turns) - 1) / 2
    blocks = turns_of_blocks(num_turns, num_blocks, seed)
    for item, turns in enumerate(num_turns):
        total = sum(sum(places[item]) for places in blocks)
        assert total == middle * turns * num_blocks


@given(ITEMS, st.integers(1, 9), BLOCKS, SEEDS)
def test_first_turns_have_early_and_late_places_alike(
    num_items: int, passes: int, num_blocks: int, seed: str
) -> None:
    blocks = turns_of_blocks([passes] * num_items, num_blocks, seed)
    sums = [sum(places[item][0] for places in blocks) for item in range(num_items)]
    # One block of an odd number has no mirror image.
    assert max(sums) - min(sums) <= (num_items - 1) * (num_blocks % 2)


@given(ITEMS, st.integers(1, 12), st.integers(1, 12), SEEDS)
def test_no_item_waits_longer_than_two_passes_for_its_next_turn(
    num_items: int, most: int, fewer: int, seed: str
) -> None:
    """A machine that is slow for a while meets all items."""
    num_turns = [most] * num_items + [min(fewer, most)]
    (places,) = turns_of_blocks(num_turns, 1, seed)
    for taken in places[:num_items]:
        gaps = [after - before for before, after in pairwise(taken)]
        assert all(gap <= 2 * len(num_turns) for gap in gaps)


def test_every_order_has_its_chance() -> None:
    firsts = [mirrored_orders(4, 6, str(seed))[0] for seed in range(400)]
    assert len(set(firsts)) == 24
    leaders = [sum(order[0] == item for order in firsts) for item in range(4)]
    assert all(60 < count < 140 for count in leaders)
