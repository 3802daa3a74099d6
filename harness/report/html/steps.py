"""The section on where a step's time goes: its parts, and the bound that memory sets."""

from __future__ import annotations

from harness.report.checks import NONE_LINE
from harness.report.figures import RunReport
from harness.report.html.element import Content
from harness.report.html.table import shown_table
from harness.report.html.words import note, prose
from harness.report.step_section import (
    ROOFLINE,
    ROOFLINE_LEGEND,
    STEP,
    STEP_LEGEND,
    roofline_rows,
    step_rows,
)


def steps(report: RunReport) -> Content:
    """Return the parts of a mean step of each cell, and what memory would allow."""
    times, bounds = step_rows(report), roofline_rows(report)
    if not times and not bounds:
        return note(NONE_LINE)
    parts: list[Content] = []
    if times:
        parts += [shown_table("parts of a mean decode step", STEP, times, heads=3)]
        parts += [note(prose(STEP_LEGEND))]
    if bounds:
        parts += [shown_table("speed beside what memory allows", ROOFLINE, bounds, heads=3)]
        parts += [note(prose(ROOFLINE_LEGEND))]
    return parts
