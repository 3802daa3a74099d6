"""What the samples of a run say in a few lines, clean or not: pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from harness.conditions.findings import MIB
from harness.store.rows import ConditionRow


def summary(rows: Sequence[ConditionRow]) -> tuple[str, ...]:
    """Return one line for each thing that was measured; nothing for runs without a watch."""
    during = [row for row in rows if row.window_s is not None]
    if not during:
        return ()
    watched_s = sum(row.window_s or 0.0 for row in during)
    head = f"the machine was watched for {watched_s:.0f} s in {len(during)} samples"
    return (head, *_spreads(during))


def _spreads(rows: Sequence[ConditionRow]) -> Iterator[str]:
    for what, unit, value in FIGURES:
        seen = [figure for row in rows if (figure := value(row)) is not None]
        if seen:
            yield f"{what}: {median(seen):.2f} {unit} at the median, {max(seen):.2f} at most"
    clocks = [row.frequency_mhz for row in rows if row.frequency_mhz]
    if clocks:
        yield f"clock of the processor: {min(clocks):.0f} to {max(clocks):.0f} MHz"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _swapping(row: ConditionRow) -> float | None:
    if row.swapped_bytes is None or not row.window_s:
        return None
    return row.swapped_bytes / MIB / row.window_s


FIGURES: tuple[tuple[str, str, Callable[[ConditionRow], float | None]], ...] = (
    ("used by other processes", "cores", lambda row: row.others_cores),
    ("taken by the hypervisor", "%", lambda row: _percent(row.stolen_share)),
    ("periods with the quota used up", "%", lambda row: _percent(row.throttled_share)),
    ("waiting for memory", "%", lambda row: _percent(row.memory_wait_share)),
    ("swapped", "MiB/s", _swapping),
    ("hottest sensor", "C", lambda row: row.temperature_c),
)
"""What it is, its unit, and where a sample has it."""
