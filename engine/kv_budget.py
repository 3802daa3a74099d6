"""What the keys and values of live rows may cost, told before a row is let in.

Slots are one rectangle: a step's bucket of rows times the capacity the longest row may need. So
the bytes of a set of rows are those of their rectangle, and a row is admitted when the rectangle
with it still fits.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import RequestError
from engine.shapes import CAPACITY_BLOCK, round_up, row_bucket

BYTES_PER_GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCosts:
    """Bytes that a slot costs in the target's cache and in the drafter's.

    Args:
        per_token: keys and values of one position.
        per_slot: state that does not grow with the text.
    """

    per_token: int
    per_slot: int = 0

    def __add__(self, other: KvCosts) -> KvCosts:
        """Return the cost of both caches."""
        return KvCosts(
            per_token=self.per_token + other.per_token, per_slot=self.per_slot + other.per_slot
        )


@dataclass(frozen=True, slots=True)
class Rectangle:
    """The largest cache a set of rows may need.

    Args:
        num_slots: a declared number of rows.
        capacity: positions of each, a multiple of CAPACITY_BLOCK.
    """

    num_slots: int = 0
    capacity: int = 0

    @classmethod
    def around(cls, slots_in_use: int, num_tokens: int) -> Rectangle:
        """Return the smallest rectangle for so many slots, the longest row of `num_tokens`."""
        return cls(row_bucket(slots_in_use), round_up(num_tokens, CAPACITY_BLOCK))


@dataclass(frozen=True, slots=True)
class KvBudget:
    """A limit on the bytes of a rectangle.

    Args:
        limit_bytes: None admits every row.
    """

    costs: KvCosts
    limit_bytes: int | None = None

    def bytes_of(self, rectangle: Rectangle) -> int:
        """Return what a rectangle costs."""
        per_slot = rectangle.capacity * self.costs.per_token + self.costs.per_slot
        return rectangle.num_slots * per_slot

    def fits(self, rectangle: Rectangle) -> bool:
        """Return whether a rectangle stays within the limit."""
        return self.limit_bytes is None or self.bytes_of(rectangle) <= self.limit_bytes

    def room(self, held: Rectangle, most: Rectangle, needed: int) -> Rectangle:
        """Return the cache to hold for the next steps.

        Resizing copies everything, so capacity grows by doubling, up to what the rows may need,
        and what others left is kept while it fits the limit and is no more than twice too large.

        Args:
            held: the cache now.
            most: the largest that the admitted rows may come to need.
            needed: positions they need now.
        """
        capacity = held.capacity
        if needed > capacity:
            capacity = min(max(round_up(needed, CAPACITY_BLOCK), 2 * capacity), most.capacity)
        kept = Rectangle(max(held.num_slots, most.num_slots), capacity)
        if self.fits(kept) and self.bytes_of(kept) <= 2 * self.bytes_of(most):
            return kept
        return Rectangle(most.num_slots, min(capacity, most.capacity))

    def check_alone(self, num_tokens: int) -> None:
        """Raise RequestError when a row of `num_tokens` positions would not fit an idle engine."""
        alone = Rectangle.around(1, num_tokens)
        if not self.fits(alone):
            raise RequestError(
                f"the row may need {alone.capacity} positions = {_gb(self.bytes_of(alone))} of "
                f"keys and values, and the KV budget is {_gb(self.limit_bytes or 0)}; shorten the "
                "prompt, lower max_tokens or raise kv_budget_gb"
            )


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / BYTES_PER_GB:.4g} GB"
