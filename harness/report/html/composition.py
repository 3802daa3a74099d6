"""The composition section: a table of cells, a forest plot and strips for each group, and notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.report.composition import COMPOSITION, LEGEND, amounts, composition_row
from harness.report.figures import CellFigures, Group, RunReport
from harness.report.html.element import Content, Element, el
from harness.report.html.failures import first_failures
from harness.report.html.forest import forest
from harness.report.html.strips import strips
from harness.report.html.table import Cell, Column, number_cell, table, text_cell
from harness.report.html.words import listed, name, note, prose
from harness.report.notes import group_notes
from harness.store.index import Place

COLUMNS = tuple(Column(heading, is_number) for heading, is_number in COMPOSITION)


def group_id(number: int) -> str:
    """Return the address of the group with this number, from 0."""
    return f"group-{number + 1}"


def composition(report: RunReport) -> Content:
    """Return the section."""
    if not report.groups:
        return note("Nothing ran.")
    links = first_failures(report)
    groups = [_group(group, group_id(at), links) for at, group in enumerate(report.groups)]
    return (_contents(report), groups, note(prose(LEGEND)))


def _contents(report: RunReport) -> Content:
    """Return links to the groups where there are several."""
    if len(report.groups) < 2:
        return None
    links = [
        el("a", {"href": f"#{group_id(at)}"}, name(group.model), " on ", name(group.workload.name))
        for at, group in enumerate(report.groups)
    ]
    items = el("ul", None, [el("li", None, link) for link in links])
    return el("nav", {"aria-label": "models and workloads"}, items)


def _group(group: Group, address: str, links: Mapping[Place, str]) -> Element:
    label = f"cells of {group.model} on {group.workload.name}"
    return el(
        "section",
        {"class": "group", "id": address},
        el("h3", None, name(group.model), " on ", name(group.workload.name)),
        note(amounts(group)),
        table(label, COLUMNS, [_row(cell, links) for cell in group.cells]),
        forest(group),
        strips(group),
        _notes(group),
    )


def _row(cell: CellFigures, links: Mapping[Place, str]) -> list[Cell]:
    """Return one line of the table, by the columns of COMPOSITION."""
    serial = None if cell.serial is None else cell.serial.ratio
    shown = composition_row(cell)
    keys = (
        float(cell.cell.max_rows),
        cell.speed.aggregate,
        cell.speed.per_stream,
        None if serial is None else serial.estimate,
        serial.wins / serial.n if serial is not None and serial.n else None,
        None if cell.ttft is None else cell.ttft.p50,
        None if cell.acceptance is None else cell.acceptance.rate,
        _size(cell),
    )
    figures = [number_cell(text, key) for text, key in zip(shown[1:-1], keys, strict=True)]
    return [text_cell(shown[0]), *figures, _conforming(cell, shown[-1], links)]


def _size(cell: CellFigures) -> float | None:
    size = cell.peak_rss_bytes or cell.peak_mlx_bytes
    return None if size is None else float(size)


def _conforming(cell: CellFigures, shown: str, links: Mapping[Place, str]) -> Cell:
    """Return the last cell of a row, which leads to the replies that failed."""
    value = cell.conforming
    key = None if value is None else value.lower_bound
    address = links.get(cell.place)
    if address is None:
        return Cell(shown, key)
    told = "failures" if value is None else shown
    return Cell(el("a", {"href": f"#{address}"}, told), key)


def _notes(group: Group) -> Iterator[Content]:
    for item in group_notes(group):
        yield note(item.text)
        if item.points:
            yield listed(item.points)
