"""The order of a block: its cells take turns, by chance, and every order also runs backwards.

A cell that by chance runs early in most blocks looks fast on a machine that slows down, and with
one seed it is the same cell in every session. An order and its mirror image give each pair of cells
opposite places, so that a steady drift cancels between them. And a machine that is slower for a
while is so for whoever runs then: a cell that takes its wave of requests in turn with the others
shares that time with them, one that answers all its prompts in one go has it alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence


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

    A block is as many passes over the items as any of them has turns. An item with fewer sits
    passes out, evenly spread. Passes are each other's mirror images within a block, the last one of
    the first; one that is left over has its mirror image in another block, and so has the first.

    Args:
        num_turns: of each item in every block, at least 1.
        seed: as for mirrored_orders.
    """
    leading = mirrored_orders(len(num_turns), num_blocks, seed)
    leftover = mirrored_orders(len(num_turns), num_blocks, f"{seed}/leftover")
    return tuple(
        _places(_passes(max(num_turns), leads, left, f"{seed}/{block}"), num_turns)
        for block, (leads, left) in enumerate(zip(leading, leftover, strict=True))
    )


def _passes(
    number: int, leads: tuple[int, ...], left: tuple[int, ...], seed: str
) -> list[tuple[int, ...]]:
    """Return the orders of a block's passes.

    Args:
        leads: the first one.
        left: the one in the middle of an odd number.
    """
    if number == 1:
        return [leads]
    half = (number - 2) // 2
    inner = list(mirrored_orders(len(leads), 2 * half, seed))
    middle = [left] if number % 2 else []
    return [leads, *inner[:half], *middle, *inner[half:], leads[::-1]]


def _places(
    passes: Sequence[tuple[int, ...]], num_turns: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    places: list[list[int]] = [[] for _ in num_turns]
    for place, item in enumerate(_sequence(passes, num_turns)):
        places[item].append(place)
    return tuple(map(tuple, places))


def _sequence(passes: Sequence[tuple[int, ...]], num_turns: Sequence[int]) -> Iterator[int]:
    taking_part = [
        {(2 * turn + 1) * len(passes) // (2 * turns) for turn in range(turns)}
        for turns in num_turns
    ]
    for number, order in enumerate(passes):
        yield from (item for item in order if number in taking_part[item])
