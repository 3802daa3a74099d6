"""The sections on correctness: gates and near-ties, routing checks, failures and skips."""

from __future__ import annotations

from collections.abc import Iterator

from harness.report import numbers
from harness.report.figures import CellFigures, RunReport
from harness.report.gfm import shorten, table
from harness.store.index import Place

MAX_FAILURES = 50
QUOTE_WIDTH = 200
NONE_LINE = "None."
PLACE = (("model", False), ("workload", False), ("cell", False))
"""The first columns of a table that spans models and workloads."""


def gate_section(report: RunReport) -> str:
    """Return the gates summed up, what did not pass or has more to say, and every near-tie."""
    summary = table(
        (("gate", False), ("status", False), ("observed", True), ("n", True)),
        [
            (gate.name, gate.status, numbers.percent(gate.observed, 1), str(gate.n))
            for gate in report.summaries
        ],
    )
    open_rows = [
        (gate.model, gate.workload, gate.cell, gate.name, gate.status, str(gate.n), gate.detail)
        for gate in report.gates
        if gate.status != "pass" or gate.detail
    ]
    parts = ["## Gates", summary if report.summaries else NONE_LINE]
    if open_rows:
        heads = (("gate", False), ("status", False), ("n", True), ("what was seen", False))
        parts.append(table((*PLACE, *heads), open_rows))
    return "\n\n".join([*parts, *_near_ties(report)])


def _near_ties(report: RunReport) -> Iterator[str]:
    if not report.near_ties:
        return
    yield (
        "Near-ties: places where a reply parts from its reference and the two best scores lie "
        "closer together than the order of floating-point sums decides."
    )
    yield table(
        (
            *PLACE,
            ("reference", False),
            ("block", True),
            ("prompt", False),
            ("token", True),
            ("gap", True),
        ),
        [
            (
                *place_names(tie.place),
                tie.reference,
                str(tie.block + 1),
                tie.prompt_id,
                str(tie.position),
                numbers.fixed(tie.gap, 7),
            )
            for tie in report.near_ties
        ],
    )


def routing_section(report: RunReport) -> str:
    """Return the routing checks, and cells that took a lane they should not."""
    rows = [
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
    seen = next((gate for gate in report.summaries if gate.name == "routing"), None)
    told = NONE_LINE
    if seen is not None:
        share = numbers.percent(seen.observed, 1)
        told = f"{share} of {seen.n} requests took the lane their cell declares."
    heads = (("declared", False), ("taken", False), ("reason", False), ("n", True))
    body = [table((*PLACE, *heads), rows)] if rows else []
    return "\n\n".join(["## Routing checks", told, *body])


def _is_misrouted(cell: CellFigures) -> bool:
    return bool(cell.cell.expected_lane) and cell.lane_taken not in ("", cell.cell.expected_lane)


def failure_section(report: RunReport) -> str:
    """Return what failed, with the replies that show it, and what was skipped."""
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
        heads = (("block", True), ("prompt", False), ("what", False), ("reply", False))
        parts.append(table((*PLACE, *heads), rows))
    if len(report.failures) > MAX_FAILURES:
        parts.append(f"And {len(report.failures) - MAX_FAILURES} more, in the database.")
    skips = [(*place_names(skip.place), skip.reason) for skip in report.skips]
    if skips:
        parts.append(table((*PLACE, ("skipped because", False)), skips))
    return "\n\n".join(parts if len(parts) > 1 else [*parts, NONE_LINE])


def place_names(place: Place) -> tuple[str, str, str]:
    """Return the cells of the columns PLACE."""
    return (place.model, place.workload, place.cell)
