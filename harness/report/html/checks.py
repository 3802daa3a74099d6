"""The sections on correctness: gates and near-ties, and the routing checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.report import numbers
from harness.report.checks import (
    NEAR_TIE_LEGEND,
    NEAR_TIES,
    NONE_LINE,
    OPEN_GATES,
    ROUTING,
    SUMMARY,
    near_tie_rows,
    open_gates,
    routing_rows,
    routing_told,
)
from harness.report.figures import RunReport
from harness.report.html.element import Content, el
from harness.report.html.failures import first_failures
from harness.report.html.partings import first_partings
from harness.report.html.table import (
    Cell,
    Column,
    number_cell,
    shown_table,
    still,
    table,
    text_cell,
)
from harness.report.html.words import note, status
from harness.store.index import Place
from harness.store.rows import GateRow


def gates(report: RunReport) -> Content:
    """Return the gates summed up, what did not pass or has more to say, and every near-tie."""
    return list(_gates(report))


def _gates(report: RunReport) -> Iterator[Content]:
    if not report.summaries:
        yield note(NONE_LINE)
    else:
        rows = [
            [
                still(gate.name),
                still(status(gate.status)),
                still(numbers.percent(gate.observed, 1)),
                still(str(gate.n)),
            ]
            for gate in report.summaries
        ]
        yield table("gates", [Column(*column) for column in SUMMARY], rows)
    links = {"conformance": first_failures(report), "identity": first_partings(report)}
    rows = [_open_gate(gate, links.get(gate.name, {})) for gate in open_gates(report)]
    if rows:
        yield el("h3", None, "What was seen")
        columns = [Column(*column) for column in OPEN_GATES]
        yield table("gates that did not pass, or have more to say", columns, rows, heads=3)
    if report.near_ties:
        yield el("h3", None, f"Near-ties ({len(report.near_ties)})")
        yield note(NEAR_TIE_LEGEND)
        yield shown_table("near-ties", NEAR_TIES, near_tie_rows(report), heads=3)


def _open_gate(gate: GateRow, links: Mapping[Place, str]) -> list[Cell]:
    """Return one line of OPEN_GATES; one that failed leads to the first reply that shows it."""
    address = links.get(Place(gate.model, gate.workload, gate.cell))
    leads = gate.status == "fail" and address is not None
    link = el("a", {"href": f"#{address}"}, "first failure") if leads else None
    return [
        *map(text_cell, (gate.model, gate.workload, gate.cell, gate.name)),
        Cell(status(gate.status), gate.status),
        number_cell(str(gate.n), gate.n),
        Cell(el("div", {"class": "told"}, el("bdi", None, gate.detail), " ", link), gate.detail),
    ]


def routing(report: RunReport) -> Content:
    """Return the routing checks, and cells that took a lane they should not."""
    rows = routing_rows(report)
    body = shown_table("routing checks", ROUTING, rows, heads=3) if rows else None
    return (note(routing_told(report)), body)
