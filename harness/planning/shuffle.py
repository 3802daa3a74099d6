"""The order of a block: its cells take turns, by chance, and every order also runs backwards.

A cell that by chance runs early in most blocks looks fast on a machine that slows down, and with
one seed it is the same cell in every session. An order and its mirror image give each pair of cells
opposite places, so that a steady drift cancels between them. And a machine that is slower for a
while is so for whoever runs then: a cell that takes its wave of requests in turn with the others
shares that time with them, one that answers all its prompts in one go has it alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def mirrored_orders(num_items: int, num_orders: int, seed: str) -> tuple[tuple[int, ...], ...]:
    """Return orders of the places in a list of items, all of them in every order.

    Half of them are mirror images of the others, and which stands where is by chance: mirror
    images side by side would run one item twice in a row. Of an odd number one has no mirror image.

    Args:
        seed: decides everything; the items' names have no part in it.
    """
    rng = random.Random(seed)
    half = [rng.sample(range(num_items), num_items) for _ in range((num_orders + 1) // 2)]
    orders = [*half, *(order[::-1] for order in half[: num_orders // 2])]
    rng.shuffle(orders)
    return tuple(map(tuple, orders))


def turns_of_blocks(
    num_turns: Sequence[int], num_blocks: int, seed: str
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return, for each block and item, the places of the item's turns in the block's sequence.

    A block is a first half, of passes over the items, a pass in its middle, and the first half
    backwards. An item has every second turn in the first half, spread evenly over its passes, and
    an odd one in the middle. So the mean place of an item is the block's middle, whatever the
    others have; only those in the middle pass need another block to cancel a drift, where that
    pass has its mirror image, as every pass has.

    Args:
        num_turns: of each item in every block, at least 1.
        seed: as for mirrored_orders.
    """
    num_items, num_passes = len(num_turns), max(num_turns) // 2
    middles = mirrored_orders(num_items, num_blocks, seed)
    passes = [mirrored_orders(num_items, num_blocks, f"{seed}/{p}") for p in range(num_passes)]
    return tuple(
        _places([orders[block] for orders in passes], middles[block], num_turns)
        for block in range(num_blocks)
    )


def _places(
    passes: Sequence[tuple[int, ...]], middle: tuple[int, ...], num_turns: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Return the places of each item in a block.

    Args:
        passes: the orders of its first half.
    """
    taken = [
        {(2 * turn + 1) * len(passes) // (2 * (turns // 2)) for turn in range(turns // 2)}
        for turns in num_turns
    ]
    half = [item for number, order in enumerate(passes) for item in order if number in taken[item]]
    sequence = [*half, *(item for item in middle if num_turns[item] % 2), *half[::-1]]
    places: list[list[int]] = [[] for _ in num_turns]
    for place, item in enumerate(sequence):
        places[item].append(place)
    return tuple(map(tuple, places))
