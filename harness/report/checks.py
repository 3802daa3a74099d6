"""The sections on correctness: gates and near-ties, routing checks, failures and skips."""

from __future__ import annotations

from harness.report import numbers
from harness.report.figures import CellFigures, RunReport
from harness.report.gfm import bullets, shorten, table
from harness.report.partings import LEGEND, PARTINGS, parting_rows, unshown_lines
from harness.store.index import Place
from harness.store.rows import GateRow

MAX_FAILURES = 50
QUOTE_WIDTH = 200
NONE_LINE = "None."
PLACE = (("model", False), ("workload", False), ("cell", False))
"""The first columns of a table that spans models and workloads."""


SUMMARY = (("gate", False), ("status", False), ("observed", True), ("n", True))
OPEN_GATES = (*PLACE, ("gate", False), ("status", False), ("n", True), ("what was seen", False))
NEAR_TIES = (
    *PLACE,
    ("reference", False),
    ("block", True),
    ("prompt", False),
    ("token", True),
    ("gap", True),
)
NEAR_TIE_LEGEND = (
    "Near-ties: places where a reply parts from its reference and the two best scores lie closer "
    "together than the order of floating-point sums decides."
)
ROUTING = (*PLACE, ("declared", False), ("taken", False), ("reason", False), ("n", True))
FAILURES = (*PLACE, ("block", True), ("prompt", False), ("what", False), ("reply", False))
SKIPS = (*PLACE, ("skipped because", False))


def gate_section(report: RunReport) -> str:
    """Return the gates summed up, what did not pass or has more to say, and every near-tie."""
    rows = summary_rows(report)
    parts = ["## Gates", table(SUMMARY, rows) if rows else NONE_LINE]
    open_rows = open_gate_rows(report)
    if open_rows:
        parts.append(table(OPEN_GATES, open_rows))
    if report.near_ties:
        parts += [NEAR_TIE_LEGEND, table(NEAR_TIES, near_tie_rows(report))]
    return "\n\n".join(parts)


def summary_rows(report: RunReport) -> list[tuple[str, ...]]:
    """Return the lines of the table SUMMARY."""
    return [
        (gate.name, gate.status, numbers.percent(gate.observed, 1), str(gate.n))
        for gate in report.summaries
    ]


def open_gates(report: RunReport) -> list[GateRow]:
    """Return the gates that did not pass, or have more to say."""
    return [gate for gate in report.gates if gate.status != "pass" or gate.detail]


def open_gate_rows(report: RunReport) -> list[tuple[str, ...]]:
    """Return the lines of the table OPEN_GATES."""
    return [
        (gate.model, gate.workload, gate.cell, gate.name, gate.status, str(gate.n), gate.detail)
        for gate in open_gates(report)
    ]


def near_tie_rows(report: RunReport) -> list[tuple[str, ...]]:
    """Return the lines of the table NEAR_TIES."""
    return [
        (
            *place_names(tie.place),
            tie.reference,
            str(tie.block + 1),
            tie.prompt_id,
            str(tie.position),
            numbers.fixed(tie.gap, 7),
        )
        for tie in report.near_ties
    ]


def routing_section(report: RunReport) -> str:
    """Return the routing checks, and cells that took a lane they should not."""
    rows = routing_rows(report)
    body = [table(ROUTING, rows)] if rows else []
    return "\n\n".join(["## Routing checks", routing_told(report), *body])


def routing_told(report: RunReport) -> str:
    """Return how many requests took the lane they should, in a sentence."""
    seen = next((gate for gate in report.summaries if gate.name == "routing"), None)
    if seen is None:
        return NONE_LINE
    share = numbers.percent(seen.observed, 1)
    return f"{share} of {seen.n} requests took the lane their cell declares."


def routing_rows(report: RunReport) -> list[tuple[str, ...]]:
    """Return the lines of the table ROUTING."""
    return [
        (
            *place_names(cell.place),
            cell.cell.expected_lane,
            cell.lane_taken or numbers.DASH,
            cell.lane_reason,
            str(cell.num_requests),
        )
        for cell in report.cells
        if cell.cell.kind == "routing" or _is_misrouted(cell)
    ]


def _is_misrouted(cell: CellFigures) -> bool:
    return bool(cell.cell.expected_lane) and cell.lane_taken not in ("", cell.cell.expected_lane)


def failure_section(report: RunReport) -> str:
    """Return what failed, with the replies that show it, what parted, and what was skipped."""
    parts = ["## Failures and skips"]
    rows = [
        (
            *place_names(item.place),
            str(item.block + 1),
            item.prompt_id,
            shorten(item.what, QUOTE_WIDTH),
            shorten(item.quote, QUOTE_WIDTH),
        )
        for item in report.failures[:MAX_FAILURES]
    ]
    if rows:
        parts.append(table(FAILURES, rows))
    if len(report.failures) > MAX_FAILURES:
        parts.append(f"And {len(report.failures) - MAX_FAILURES} more, in the database.")
    if report.partings:
        parts += [LEGEND, table(PARTINGS, parting_rows(report.partings))]
        parts += [bullets(lines)] if (lines := unshown_lines(report.partings)) else []
    skips = skip_rows(report)
    if skips:
        parts.append(table(SKIPS, skips))
    return "\n\n".join(parts if len(parts) > 1 else [*parts, NONE_LINE])


def skip_rows(report: RunReport) -> list[tuple[str, ...]]:
    """Return the lines of the table SKIPS."""
    return [(*place_names(skip.place), skip.reason) for skip in report.skips]


def place_names(place: Place) -> tuple[str, str, str]:
    """Return the cells of the columns PLACE."""
    return (place.model, place.workload, place.cell)
