"""The composition section: one table for each model and workload, ratios, noise and drift."""

from __future__ import annotations

from collections.abc import Iterator

from harness.report import numbers
from harness.report.figures import Against, CellFigures, Group, RunReport
from harness.report.gfm import bullets, escape, table
from harness.report.refusals import typical_drift

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


def _group(group: Group) -> Iterator[str]:
    requests = max((cell.num_requests for cell in group.cells), default=0)
    blocks = max((cell.num_blocks for cell in group.cells), default=0)
    yield f"### {escape(group.model)} on {escape(group.workload.name)}"
    yield f"Blocks: {blocks}. Requests a cell: up to {requests}."
    yield table(COMPOSITION, [composition_row(cell) for cell in group.cells])
    ratios = [(cell, against) for cell in group.cells for against in cell.ratios]
    if ratios:
        yield table(RATIOS, [ratio_row(cell, against) for cell, against in ratios])
    yield from _notes(group)


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


def _notes(group: Group) -> Iterator[str]:
    if group.noise is not None:
        name = escape(group.noise.baseline)
        yield f"Noise floor: {name} against its own repeat {numbers.interval(group.noise.ratio)}."
    change = typical_drift(group)
    if change is not None:
        drifts = ", ".join(
            f"{escape(cell.place.cell)} {numbers.change(cell.drift)}"
            for cell in group.cells
            if cell.drift is not None
        )
        yield f"Drift from the first block to the last: {numbers.change(change)} ({drifts})."
    short = [
        f"{escape(cell.place.cell)}: {cell.empty_replies} empty, {cell.one_token_replies} of one "
        "token"
        for cell in group.cells
        if cell.empty_replies or cell.one_token_replies
    ]
    if short:
        yield f"Replies without a rate: {'; '.join(short)}."
    walled = [
        f"{escape(cell.place.cell)} against {escape(against.baseline)}"
        for cell in group.cells
        for against in cell.ratios
        if against.figure != "aggregate"
    ]
    if walled:
        yield (
            "Compared by tokens a second of wall time, prefill included, since decode steps are "
            f"not told: {', '.join(walled)}."
        )
    yield from _client_notes(group)
    refused = list(_refused(group))
    if refused:
        yield "Verdicts were refused:"
        yield bullets(refused)


def _client_notes(group: Group) -> Iterator[str]:
    """Yield what is known of the load client, where there was one."""
    delays = [
        f"{escape(cell.place.cell)} {numbers.percent(cell.client_delay, 1)}"
        for cell in group.cells
        if cell.client_delay is not None
    ]
    if delays:
        yield (
            "Client delay, at most, of the time between two events of a stream: "
            f"{', '.join(delays)}."
        )
    again = [f"{escape(cell.place.cell)} {cell.retries}" for cell in group.cells if cell.retries]
    if again:
        yield f"Requests sent again after a 429 that named a time: {', '.join(again)}."


def _refused(group: Group) -> Iterator[str]:
    """Yield each reason against a verdict with the ratios it stands against."""
    ratios = [(cell, against) for cell in group.cells for against in cell.ratios]
    reasons: dict[str, list[str]] = {}
    for cell, against in ratios:
        for reason in against.ratio.refusals:
            pair = f"{cell.place.cell} against {against.baseline}"
            reasons.setdefault(reason, []).append(pair)
    for reason, pairs in reasons.items():
        yield f"{reason}: {', '.join(pairs) if len(pairs) < len(ratios) else 'every ratio'}"
