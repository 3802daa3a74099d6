"""What an engine without work still holds: objects of rows, blocks of prefixes, memory."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import psutil

from engine.cache.prefix import Block, Run
from engine.cache.stretch import num_bytes
from engine.draft.budget import RowPayoff
from engine.draft.ngram import RowIndex
from engine.draft.source import DraftSource
from engine.flight import Flight
from engine.grammar.state import GrammarState
from engine.kv_budget import Rectangle
from engine.loop import Engine
from engine.reasoning import ReplyText
from engine.request import Completion
from engine.sequence import Sequence as Row
from harness.lane_audit.play import leftovers

ROW_KINDS = (Row, GrammarState, ReplyText, Flight, Completion, RowIndex, RowPayoff)
"""Objects that belong to one row, or to a step of some rows."""

BLOCK_KINDS = (Run, Block)
"""Objects of the prefix cache."""

FLAT = 0.02
"""Largest share by which memory may drift."""


class Census:
    """Counts objects of rows and blocks that have come up since it was opened.

    The collector's list of live objects is read, since most of these classes have slots and allow
    no weak references. What lived before is kept alive, so that nobody takes over its identity.
    """

    def __init__(self) -> None:
        self._before = _live()
        self._known = set(map(id, self._before))

    def count(self) -> Counter[str]:
        """Collect garbage and return how many objects of each kind are left, by class name."""
        return Counter(type(held).__name__ for held in _live() if id(held) not in self._known)


def _live() -> list[object]:
    gc.collect()
    kinds = {*ROW_KINDS, *BLOCK_KINDS}
    return [held for held in gc.get_objects() if type(held) in kinds]


@dataclass(frozen=True, slots=True)
class Memory:
    """A reading at an idle point, in bytes.

    Args:
        resident: of the process.
        mlx: of live MLX arrays but those of the prefix cache, which holds as many as it says.
    """

    resident: int
    mlx: int

    def __str__(self) -> str:
        return f"resident {self.resident / 1e6:.1f} MB, MLX {self.mlx / 1e6:.2f} MB"


@contextmanager
def exact_buffers() -> Iterator[None]:
    """Let MLX give every array a buffer of its own size.

    Otherwise it reuses freed ones that are somewhat larger and counts them whole: on the tiny model
    readings then differ by 15 % for the same arrays.
    """
    import mlx.core as mx  # engine has to be imported before mlx

    limit = mx.set_cache_limit(0)
    mx.clear_cache()
    try:
        yield
    finally:
        mx.set_cache_limit(limit)


class IdleWatch:
    """Looks at one engine whenever it has no work.

    Args:
        engine: without work so far.

    Attributes:
        memory: a reading a look.
    """

    def __init__(self, engine: Engine, drafter: DraftSource | None) -> None:
        self.memory: list[Memory] = []
        self._engine = engine
        self._drafter = drafter
        self._census = Census()

    def look(self) -> list[str]:
        """Read the memory, and return what rows have left behind; waits for the device.

        Slots are let go of: how many stay for the next row depends on the last ones.
        """
        found = [*leftovers(self._engine, self._drafter), *self._unaccounted()]
        self._engine._runner.make_room(Rectangle())
        self.memory.append(_read(self._engine.stats().prefix.num_bytes))
        return found

    def conclude(self) -> list[str]:
        """Empty the prefix cache; return what is left of it, and which memory was not flat."""
        self._engine._prefixes.clear()
        held = self._census.count()
        names = [kind.__name__ for kind in BLOCK_KINDS if held[kind.__name__]]
        left = [f"{held[name]} {name} objects of an empty prefix cache" for name in names]
        return [*self._unaccounted(), *left, *unsteady(self.memory)]

    def _unaccounted(self) -> list[str]:
        """Return which objects are no row's any more, and blocks that the cache does not count."""
        held = self._census.count()
        names = [kind.__name__ for kind in ROW_KINDS if held[kind.__name__]]
        found = [f"left behind: {held[name]} {name} objects" for name in names]
        stats, cache = self._engine.stats().prefix, self._engine._prefixes._cache
        runs = [] if cache is None else list(cache._runs)
        totals = {
            "runs": (held[Run.__name__], len(runs)),
            "blocks": (held[Block.__name__], stats.num_blocks),
            "bytes": (sum(num_bytes(run.arrays) for run in runs), stats.num_bytes),
        }
        found += [f"{a} {what} of prefixes, not {b}" for what, (a, b) in totals.items() if a != b]
        most = self._engine.config.prefix_cache_bytes
        if stats.num_bytes > most:
            found.append(f"{stats.num_bytes} bytes of prefixes, {most} allowed")
        return found


def _read(prefix_bytes: int) -> Memory:
    """Return the memory in use, after everything that is free was given back."""
    import mlx.core as mx  # engine has to be imported before mlx

    mx.synchronize()
    gc.collect()
    _return_free_pages()
    return Memory(psutil.Process().memory_info().rss, mx.get_active_memory() - prefix_bytes)


def _return_free_pages() -> None:
    """Let glibc give back pages it keeps for later; other allocators are not asked."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


@dataclass(frozen=True, slots=True)
class Drift:
    """Medians, in bytes, of the second and the last third of some readings; the first warms up."""

    before: float
    after: float

    @property
    def share(self) -> float:
        """Growth as a share of what there was; below zero when it shrank."""
        return self.after / self.before - 1

    def __str__(self) -> str:
        return f"{self.before / 1e6:.2f} -> {self.after / 1e6:.2f} MB ({self.share:+.2%})"


def drifts(readings: Sequence[Memory]) -> dict[str, Drift]:
    """Return how each kind of memory drifts; nothing when readings are too few for three thirds."""
    third = len(readings) // 3
    if not third:
        return {}
    kinds = {
        "resident": [reading.resident for reading in readings],
        "MLX": [reading.mlx for reading in readings],
    }
    return {
        kind: Drift(median(values[-2 * third : -third]), median(values[-third:]))
        for kind, values in kinds.items()
    }


def unsteady(readings: Sequence[Memory]) -> list[str]:
    """Return which memory is not flat, one line each."""
    found = drifts(readings)
    if not found:
        return [f"{len(readings)} rounds are too few to tell whether memory is flat"]
    return [
        f"{kind} memory is not flat: {drift}"
        for kind, drift in found.items()
        if abs(drift.share) > FLAT
    ]
