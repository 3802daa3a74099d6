"""What it costs to watch the machine: processor time of one reading, and its share of a run."""

from __future__ import annotations

import time
from collections.abc import Callable

from harness.conditions.interval import row_between
from harness.conditions.reading import read, read_standing
from harness.conditions.watch import INTERVAL_S, STANDING_INTERVAL_S

REPEATS = 50


def cost_s(work: Callable[[], object]) -> float:
    """Return the processor time of one call, the mean of many."""
    started_s = time.thread_time()
    for _ in range(REPEATS):
        work()
    return (time.thread_time() - started_s) / REPEATS


def main() -> None:
    """Print a line for each part."""
    first = read()
    time.sleep(1.5)
    second = read()
    parts = {
        "reading": (cost_s(read) + cost_s(lambda: row_between(first, second)), INTERVAL_S),
        "what changes seldom": (cost_s(lambda: read_standing(second)), STANDING_INTERVAL_S),
    }
    print(f"{len(second.table)} processes")
    for name, (seconds, every_s) in parts.items():
        print(f"{name}: {1000 * seconds:.2f} ms every {every_s:.0f} s, {seconds / every_s:.4%}")


if __name__ == "__main__":
    main()
