"""The composition section: one table for each model and workload, ratios, noise and drift."""

from __future__ import annotations

from collections.abc import Iterator

from harness.report import numbers
from harness.report.figures import Against, CellFigures, Group, RunReport
from harness.report.gfm import bullets, escape, table
from harness.report.notes import group_notes

COMPOSITION = (
    ("cell", False),
    ("conc", True),
    ("tok/s (agg)", True),
    ("per stream", True),
    ("vs serial (95 % CI)", True),
    ("wins", True),
    ("TTFT p50 / p95 ms", True),
    ("accept", True),
    ("peak GB", True),
    ("conform (n, >=)", True),
)
"""Columns of the composition table: heading, and whether it is aligned to the right."""

RATIOS = (
    ("cell", False),
    ("against", False),
    ("ratio (95 % CI)", True),
    ("verdict", False),
    ("n", True),
    ("wins", True),
    ("detectable", True),
    ("CV", True),
)
"""Columns of the table of ratios; detectable is the smallest change found with 80 % power."""

LEGEND = (
    "Speeds are medians: aggregate (decode steps at full occupancy) over blocks, per stream over "
    "requests. Percentiles are by nearest rank; p95 is marked `*` below 59 requests and left out "
    "below 20. Ratios compare aggregate speeds block by block: from 6 blocks on by Hodges-Lehmann "
    "with the exact Wilcoxon interval, from 3 by Student's t (provisional). A verdict is `same` "
    "within 3 %, `~` where the interval leaves it open; detectable is the smallest change found "
    "with 80 % power; above a CV of 10 % there is no verdict. Peak GB is resident "
    "memory. conform: replies that are what their schema asks for, and the share this proves with "
    "95 % confidence."
)


def composition(report: RunReport) -> str:
    """Return the section."""
    if not report.groups:
        return "## Composition\n\nNothing ran."
    parts = [part for group in report.groups for part in _group(group)]
    return "\n\n".join(["## Composition", *parts, LEGEND])


def composition_row(cell: CellFigures) -> tuple[str, ...]:
    """Return one line of the composition table, by the columns of COMPOSITION."""
    serial = None if cell.serial is None else cell.serial.ratio
    return (
        cell.place.cell,
        str(cell.cell.max_rows),
        numbers.rate(cell.speed.aggregate),
        numbers.rate(cell.speed.per_stream),
        numbers.interval(serial),
        numbers.wins(serial),
        numbers.latency(cell.ttft),
        numbers.accepted(cell.acceptance),
        numbers.gigabytes(cell.peak_rss_bytes or cell.peak_mlx_bytes),
        numbers.conforming(cell.conforming),
    )


def amounts(group: Group) -> str:
    """Return how much the figures of a group rest on."""
    requests = max((cell.num_requests for cell in group.cells), default=0)
    blocks = max((cell.num_blocks for cell in group.cells), default=0)
    return f"Blocks: {blocks}. Requests a cell: up to {requests}."


def _group(group: Group) -> Iterator[str]:
    yield f"### {escape(group.model)} on {escape(group.workload.name)}"
    yield amounts(group)
    yield table(COMPOSITION, [composition_row(cell) for cell in group.cells])
    ratios = [(cell, against) for cell in group.cells for against in cell.ratios]
    if ratios:
        yield table(RATIOS, [ratio_row(cell, against) for cell, against in ratios])
    for note in group_notes(group):
        yield escape(note.text)
        if note.points:
            yield bullets(note.points)


def ratio_row(cell: CellFigures, against: Against) -> tuple[str, ...]:
    """Return one line of the table of ratios, by the columns of RATIOS."""
    ratio = against.ratio
    return (
        cell.place.cell,
        against.baseline,
        numbers.interval(ratio),
        numbers.verdict(ratio),
        str(ratio.n),
        numbers.wins(ratio),
        numbers.percent(ratio.minimum_detectable, 1),
        numbers.percent(ratio.cv, 1),
    )
