"""Replies that part from their reference: folded, each with an address and both texts there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.report.figures import Parting, Partings, RunReport
from harness.report.html.element import Content, Element, el
from harness.report.html.words import listed, name, note, place_name
from harness.report.partings import LEGEND, gap_told, ids_of, unshown_lines
from harness.store.index import Place


def parting_id(cell: int, number: int) -> str:
    """Return the address of a reply, by the numbers of its cell and its own, from 0."""
    return f"parting-{cell + 1}-{number + 1}"


def first_partings(report: RunReport) -> Mapping[Place, str]:
    """Return the address of the first reply that parts of each place that has one."""
    return {cell.place: parting_id(at, 0) for at, cell in enumerate(report.partings)}


def partings(report: RunReport) -> Iterator[Content]:
    """Yield the parts of the section; nothing where no reply parts."""
    if not report.partings:
        return
    total = sum(cell.n for cell in report.partings)
    yield el("h3", None, f"Replies that part from their reference ({total})")
    yield note(LEGEND)
    for at, cell in enumerate(report.partings):
        for number, parting in enumerate(cell.shown):
            yield _folded(cell, parting, parting_id(at, number))
    lines = unshown_lines(report.partings)
    if lines:
        yield listed(el("bdi", None, line) for line in lines)


def _folded(cell: Partings, parting: Parting, address: str) -> Element:
    """Return one reply; its address lies inside, so that following a link to it unfolds it."""
    what = el(
        "bdi",
        {"class": "what"},
        f"token {parting.position}: {ids_of(parting)}, {gap_told(parting)}",
    )
    where = (
        place_name(cell.place),
        f", block {parting.block + 1}, prompt ",
        name(parting.prompt_id),
    )
    return el(
        "details",
        {"class": "failure"},
        el("summary", None, what, el("span", {"class": "aside"}, where)),
        el("div", {"id": address, "class": "parting", "tabindex": -1}, _texts(cell, parting)),
    )


def _texts(cell: Partings, parting: Parting) -> Iterator[Content]:
    sides = ((cell.place.cell, parting.reply), (cell.reference, parting.reference_reply))
    for who, rest in sides:
        yield note("The reply of ", name(who), ", in bold from where it parts:")
        yield el(
            "pre",
            {"dir": "auto"},
            el("bdi", None, parting.before),
            el("strong", None, el("bdi", None, rest)),
        )
    if not parting.reply and not parting.reference_reply:
        yield note("The texts are the same; the token ids differ.")
