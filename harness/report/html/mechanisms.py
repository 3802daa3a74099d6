"""The sections on what the mechanisms do: what a grammar costs, which drafts are accepted."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report import numbers
from harness.report.checks import NONE_LINE
from harness.report.figures import Acceptance, CellFigures, RunReport
from harness.report.html.chart import Chart, Part, bar, drawing, segment, written
from harness.report.html.element import Content, Element, el
from harness.report.html.table import shown_table
from harness.report.html.words import cell_of, note, prose
from harness.report.mechanisms import (
    GRAMMAR,
    GRAMMAR_LEGEND,
    HISTOGRAM_LEGEND,
    acceptance_columns,
    acceptance_rows,
    grammar_rows,
    histogram_columns,
    histogram_rows,
)

HEIGHT = 56
_BASE = HEIGHT - 4
_TOP = 16
_SLOT = 68
"""Pixels a position takes, where there is room."""

_FILL = 0.72
"""Share of a position's width that its bar takes."""

_MAX_NUMBERED = 12
"""With more positions than this there is no room for their numbers on a phone."""


def grammar(report: RunReport) -> Content:
    """Return what grammars cost and how many replies conform, free text beside constrained."""
    rows = grammar_rows(report)
    if not rows:
        return note(NONE_LINE)
    return (
        shown_table("what a grammar costs", GRAMMAR, rows, heads=3),
        note(prose(GRAMMAR_LEGEND)),
    )


def acceptance(report: RunReport) -> Content:
    """Return the share of drafts accepted at each position, as bars and as a table."""
    rows = acceptance_rows(report)
    if not rows:
        return note(NONE_LINE)
    label = "drafts by cell, and the share accepted at each position"
    bars = shown_table(label, acceptance_columns(report), rows, heads=3)
    return (_bars(report), bars, _histogram(report))


def _histogram(report: RunReport) -> Content:
    rows = histogram_rows(report)
    if not rows:
        return None
    label = "decode forwards by how many drafts they accepted"
    return (
        el("h3", None, "Drafts accepted by a call"),
        shown_table(label, histogram_columns(report), rows, heads=3),
        note(prose(HISTOGRAM_LEGEND)),
    )


def _bars(report: RunReport) -> Content:
    cells = [(cell, cell.acceptance) for cell in report.cells if cell.acceptance is not None]
    width = max(len(found.per_position) for _, found in cells)
    if not width:
        return None
    parts = (
        Part("cell", "cell"),
        Part("plot", _axis(width)),
        Part("ratio", "of all drafts", "of all drafts"),
        Part("verdict", "tokens / call", "tokens / call"),
    )
    chart = Chart(
        kind="bars",
        label="share of drafts accepted, by position of the draft",
        parts=parts,
        rows=[_row(cell, found, width) for cell, found in cells],
    )
    told = "Share of drafts accepted, by position of the draft"
    return el("figure", None, el("figcaption", None, told), chart.element())


def _row(cell: CellFigures, found: Acceptance, width: int) -> Sequence[Content]:
    return (
        cell_of(cell.place),
        _curve(cell, found, width),
        numbers.percent(found.rate),
        numbers.fixed(found.tokens_per_call, 2),
    )


def _axis(width: int) -> Element:
    marks = [
        written("tick", _left(at, width) + _wide(width) / 2, 13, str(at + 1))
        for at in range(0, width, width // _MAX_NUMBERED + 1)
    ]
    return drawing("position of the draft", 18, marks, width=width * _SLOT)


def _curve(cell: CellFigures, found: Acceptance, width: int) -> Element:
    shares = [
        (at, accepted / drafted, f"{accepted} of {drafted}")
        for at, (drafted, accepted) in enumerate(found.per_position)
        if drafted
    ]
    ground = (
        segment("grid", (0, _TOP), (100, _TOP)),
        segment("grid", (0, (_TOP + _BASE) / 2), (100, (_TOP + _BASE) / 2)),
        segment("one", (0, _BASE), (100, _BASE)),
    )
    label = f"{cell.place.cell}: " + ", ".join(
        f"position {at + 1} {numbers.percent(share)}" for at, share, _ in shares
    )
    bars = [_bar(width, *share) for share in shares]
    return drawing(label, HEIGHT, (ground, bars), width=width * _SLOT)


def _bar(width: int, at: int, share: float, told: str) -> Content:
    height = share * (_BASE - _TOP)
    shown = numbers.percent(share)
    left, wide = _left(at, width), _wide(width)
    number = None
    if width <= _MAX_NUMBERED:
        number = written("value", left + wide / 2, _BASE - height - 4, shown.removesuffix(" %"))
    return (bar("share", left, wide, _BASE - height, height, f"{shown}, {told}"), number)


def _left(at: int, width: int) -> float:
    return (at + (1 - _FILL) / 2) * 100 / width


def _wide(width: int) -> float:
    return _FILL * 100 / width
