"""When timing deserves no verdict, and when a run should not be quoted: reasons, one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.conditions.verdict import blemishes, machine_refusals
from harness.report.figures import Against, GateSummary, Group
from harness.report.numbers import counted
from harness.stats import MIN_BLOCKS_VERDICT, TOLERANCE, Ratio, percentile
from harness.store.index import Place
from harness.store.loaded import BlockRow
from harness.store.rows import CellRow, ConditionRow, GateRow, RunRow

MAX_DRIFT = 0.10
"""A speed that changes more than this from the first block to the last calls for a cool-down."""


def machine_reasons(run: RunRow, conditions: Sequence[ConditionRow]) -> tuple[str, ...]:
    """Return why the machine's timing gets no verdict; a forced run gets one all the same."""
    return () if run.is_forced else machine_refusals(run, conditions)


def machine_marks(run: RunRow, conditions: Sequence[ConditionRow]) -> tuple[str, ...]:
    """Return what of the machine speaks against quoting a run."""
    reasons = blemishes(run, conditions)
    if not run.is_forced or not reasons:
        return reasons
    return (f"forced on a machine that was not clean: {'; '.join(reasons)}",)


def noise_refusals(noise: Mapping[Place, Against], blocks: int) -> tuple[str, ...]:
    """Return a reason for each A/A cell that tells no noise floor, or too high a one.

    Args:
        noise: A/A cells with their ratios to the baselines they repeat.
        blocks: of the run; with too few for a verdict a noise floor is not asked for.
    """
    reasons = []
    for place, against in noise.items():
        ratio, where = against.ratio, f"{place.model} {place.workload}"
        if differs(ratio) and ratio.estimate is not None:
            reasons.append(
                f"{against.baseline} differs from its own repeat on {where} "
                f"(ratio {ratio.estimate:.3f})"
            )
        elif ratio.n < MIN_BLOCKS_VERDICT <= blocks:
            reasons.append(
                f"{against.baseline} was repeated in {counted(ratio.n, 'block')} on {where}, so "
                f"the noise is unknown; {MIN_BLOCKS_VERDICT} are needed"
            )
    return tuple(reasons)


def differs(ratio: Ratio, tolerance: float = TOLERANCE) -> bool:
    """True when an interval excludes 1 and does not lie within the tolerance."""
    if ratio.low is None or ratio.high is None:
        return False
    excludes = ratio.low > 1 or ratio.high < 1
    return excludes and not (1 - tolerance < ratio.low and ratio.high < 1 + tolerance)


def cell_refusals(
    place: Place, cell: CellRow, blocks: Sequence[BlockRow], gates: Sequence[GateRow]
) -> list[str]:
    """Return why the timing of one cell cannot be compared with anything.

    Args:
        gates: of this cell.
    """
    reasons = []
    failed = sum(block.failed for block in blocks)
    estimated = sum(block.estimated for block in blocks)
    cached = sum(block.cached_tokens for block in blocks)
    if failed:
        reasons.append(f"{place.cell}: {failed} requests failed")
    if estimated:
        reasons.append(f"{place.cell}: {estimated} token counts are estimates")
    if cached and not keeps_prefixes(cell):
        reasons.append(f"{place.cell}: {cached} prompt tokens came from a cache")
    failing = {gate.name for gate in gates if gate.status == "fail"}
    if "identity" in failing:
        reasons.append(f"{place.cell}: token ids differ from its reference")
    if "law" in failing:
        reasons.append(f"{place.cell}: tokens do not come from the target's law")
    return reasons


def keeps_prefixes(cell: CellRow) -> bool:
    """True where tokens from a cache are what the cell is there to show, not a fault."""
    return bool(cell.settings.get("prefix_cache_bytes"))


def cached_reasons(blocks: Sequence[BlockRow], cells: Mapping[str, CellRow]) -> tuple[str, ...]:
    """Return a reason for each cell whose prompts were to be computed, and were not all.

    Args:
        cells: by name.
    """
    sums: dict[tuple[str, str, str], int] = {}
    for block in blocks:
        place = (block.model, block.workload, block.cell)
        sums[place] = sums.get(place, 0) + block.cached_tokens
    return tuple(
        f"{cell} on {model} {workload}: {count} prompt tokens came from a cache"
        for (model, workload, cell), count in sorted(sums.items())
        if count and not keeps_prefixes(cells[cell])
    )


def unquotable(
    run: RunRow,
    gates: Sequence[GateSummary],
    groups: Sequence[Group],
    refusals: Sequence[str],
    marks: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return every reason against quoting a run, each once; stored ones first.

    Args:
        marks: what of the machine speaks against it, see machine_marks.
    """
    reasons = [*run.unquotable_reasons, *refusals, *marks]
    if run.git_dirty:
        reasons.append("the working tree has uncommitted changes")
    if run.blocks < MIN_BLOCKS_VERDICT:
        blocks = counted(run.blocks, "block")
        reasons.append(f"{blocks}; a verdict needs {MIN_BLOCKS_VERDICT}")
    reasons += [f"gate {gate.name}: {gate.status}" for gate in gates if gate.status != "pass"]
    if run.blocks >= MIN_BLOCKS_VERDICT and not any(group.noise for group in groups):
        reasons.append("no baseline was repeated, so the noise is unknown")
    reasons += drift_reasons(groups)
    return tuple(dict.fromkeys(reasons))


def drift_reasons(groups: Sequence[Group]) -> list[str]:
    """Return a reason for each group whose cells together drifted too far."""
    reasons = []
    for group in groups:
        change = typical_drift(group)
        if change is not None and abs(change) > MAX_DRIFT:
            reasons.append(
                f"drift too high on {group.model} {group.workload.name}: {100 * change:+.3g} % "
                "from the first block to the last; let the machine cool down"
            )
    return reasons


def typical_drift(group: Group) -> float | None:
    """Return the median drift of a group's cells, None where nothing ran twice."""
    return percentile([cell.drift for cell in group.cells if cell.drift is not None], 50)
