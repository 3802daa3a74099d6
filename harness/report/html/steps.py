"""The section on where a step's time goes: its parts as bars, and the bound that memory sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.report import numbers
from harness.report.attribution import OTHER, PARTS
from harness.report.checks import NONE_LINE
from harness.report.figures import CellFigures, Roofline, RunReport, StepTime
from harness.report.html.chart import Chart, Part, bar, drawing, key
from harness.report.html.element import Content, Element, el
from harness.report.html.table import shown_table
from harness.report.html.words import cell_of, note, prose
from harness.report.step_section import (
    ROOFLINE,
    ROOFLINE_LEGEND,
    STEP,
    STEP_LEGEND,
    roofline_rows,
    step_rows,
)

HEIGHT = 28
_BAR, _TOP = 16, 6


def steps(report: RunReport) -> Content:
    """Return the section."""
    return list(_parts(report)) or note(NONE_LINE)


def _parts(report: RunReport) -> Iterator[Content]:
    if timed := step_rows(report):
        yield _times(report)
        yield shown_table("parts of a mean step", STEP, timed, heads=3)
        yield note(prose(STEP_LEGEND))
    if lined := roofline_rows(report):
        yield _shares(report)
        yield shown_table("what memory allows", ROOFLINE, lined, heads=3)
        yield note(prose(ROOFLINE_LEGEND))


def _times(report: RunReport) -> Element:
    cells = [(cell, cell.step_time) for cell in report.cells if cell.step_time is not None]
    longest = max(time.step_s for _, time in cells)
    chart = Chart(
        kind="stacks",
        label="parts of a mean step",
        parts=(Part("cell", "cell"), Part("plot", None), Part("ratio", "step ms", "step ms")),
        rows=[_time_row(cell, time, longest) for cell, time in cells],
    )
    told = "A mean decode step, by what the host did"
    parts = key((f"part-{name}", name.replace("_", " ")) for name in (*PARTS, OTHER))
    return el("figure", None, el("figcaption", None, told), chart.element(), parts)


def _time_row(cell: CellFigures, time: StepTime, longest: float) -> Sequence[Content]:
    shown = [
        f"{name.replace('_', ' ')} {numbers.fixed(1000 * seconds, 3)} ms"
        for name, seconds in time.parts_s.items()
    ]
    stack = drawing(
        f"{cell.place.cell}: {', '.join(shown)}", HEIGHT, list(_stack(time, longest, shown))
    )
    return (cell_of(cell.place), stack, numbers.fixed(1000 * time.step_s, 3))


def _stack(time: StepTime, longest: float, shown: Sequence[str]) -> Iterator[Element]:
    left = 0.0
    for (name, seconds), told in zip(time.parts_s.items(), shown, strict=True):
        width = 100 * max(seconds, 0.0) / longest if longest else 0.0
        yield bar(f"part-{name}", left, width, _TOP, _BAR, told)
        left += width


def _shares(report: RunReport) -> Content:
    known = [
        (cell, cell.roofline, cell.roofline.share)
        for cell in report.cells
        if cell.roofline is not None and cell.roofline.share is not None
    ]
    if not known:
        return None
    chart = Chart(
        kind="stacks",
        label="measured speed as a share of what memory allows",
        parts=(Part("cell", "cell"), Part("plot", None), Part("ratio", "of the bound", "")),
        rows=[_share_row(*item) for item in known],
    )
    told = "Measured speed as a share of what memory allows"
    return el("figure", None, el("figcaption", None, told), chart.element())


def _share_row(cell: CellFigures, line: Roofline, share: float) -> Sequence[Content]:
    bound = f"{numbers.rate(cell.speed.aggregate)} of {numbers.rate(line.bound_tok_s)} tok/s"
    bars = (
        bar("bound", 0, 100, _TOP, _BAR, f"bound {numbers.rate(line.bound_tok_s)} tok/s"),
        bar("share", 0, 100 * min(share, 1.0), _TOP, _BAR, bound),
    )
    shown = numbers.percent(share)
    return (
        cell_of(cell.place),
        drawing(f"{cell.place.cell}: {shown}, {bound}", HEIGHT, bars),
        shown,
    )
