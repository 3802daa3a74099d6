"""The orders in which blocks run their cells: by chance, and every order also backwards.

A cell that by chance runs early in most blocks looks fast on a machine that slows down, and with
one seed it is the same cell in every session. An order and its mirror image give each pair of cells
opposite places, so that a steady drift cancels between them.
"""

from __future__ import annotations

import random


def mirrored_orders(num_items: int, num_blocks: int, seed: str) -> tuple[tuple[int, ...], ...]:
    """Return the order of each block: places in a list of items, all of them in every block.

    Half of the blocks are mirror images of the others, and which block gets which is by chance:
    mirror images side by side would run one cell twice in a row. Of an odd number of blocks one
    has no mirror image.

    Args:
        seed: decides everything; the items' names have no part in it.
    """
    rng = random.Random(seed)
    half = [rng.sample(range(num_items), num_items) for _ in range((num_blocks + 1) // 2)]
    orders = [*half, *(order[::-1] for order in half[: num_blocks // 2])]
    rng.shuffle(orders)
    return tuple(map(tuple, orders))
