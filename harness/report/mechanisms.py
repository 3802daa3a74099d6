"""The sections on what the mechanisms do: what a grammar costs, which drafts are accepted."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report import numbers
from harness.report.checks import NONE_LINE, PLACE, place_names
from harness.report.figures import Acceptance, CellFigures, RunReport
from harness.report.gfm import table

GRAMMAR = (
    *PLACE,
    ("overhead %", True),
    ("mask µs/token", True),
    ("free-running %", True),
    ("conform (n, >=)", True),
    ("fields right", True),
)
ACCEPTANCE = (
    *PLACE,
    ("drafted", True),
    ("accepted", True),
    ("rate", True),
    ("illegal", True),
    ("tokens/call", True),
)
HISTOGRAM = (*PLACE, ("calls", True), ("undrafted", True))
HISTOGRAM_LEGEND = (
    "Decode forwards of a row by how many drafts they accepted. 0 counts those that accepted none, "
    "the undrafted among them."
)
GRAMMAR_LEGEND = (
    "Overhead is step time on the same forced ids with masks against without. Free-running is the "
    "speed in percent of the cell without grammar, which writes other text. Cells without grammar "
    "show how often free text passes the same check."
)


def grammar_section(report: RunReport) -> str:
    """Return what grammars cost and how many replies conform, free text beside constrained."""
    cells = [cell for cell in report.cells if cell.grammar or cell.conforming]
    if not cells:
        return f"## Grammar\n\n{NONE_LINE}"
    return "\n\n".join(
        ["## Grammar", table(GRAMMAR, list(map(_grammar_row, cells))), GRAMMAR_LEGEND]
    )


def acceptance_section(report: RunReport) -> str:
    """Return the drafts of each cell, the share accepted at each draft position last."""
    cells = [(cell, cell.acceptance) for cell in report.cells if cell.acceptance is not None]
    if not cells:
        return f"## Acceptance by position\n\n{NONE_LINE}"
    width = max(len(acceptance.per_position) for _, acceptance in cells)
    positions = tuple((str(position + 1), True) for position in range(width))
    rows = [_acceptance_row(cell, acceptance, width) for cell, acceptance in cells]
    parts = ["## Acceptance by position", table((*ACCEPTANCE, *positions), rows)]
    return "\n\n".join([*parts, *_histogram(cells, width)])


def _histogram(cells: Sequence[tuple[CellFigures, Acceptance]], width: int) -> list[str]:
    """Return the table of how many drafts a call accepted, where any cell tells."""
    rows = [
        (
            *place_names(cell.place),
            numbers.count(acceptance.target_calls),
            numbers.count(acceptance.undrafted),
            *map(str, counts),
            *[numbers.DASH] * (width + 1 - len(counts)),
        )
        for cell, acceptance in cells
        if (counts := acceptance.histogram) is not None
    ]
    columns = (*HISTOGRAM, *((str(accepted), True) for accepted in range(width + 1)))
    return [table(columns, rows), HISTOGRAM_LEGEND] if rows else []


def _grammar_row(cell: CellFigures) -> tuple[str, ...]:
    grammar = cell.grammar
    return (
        *place_names(cell.place),
        numbers.fixed(grammar.overhead_pct if grammar else None, 2),
        numbers.fixed(grammar.mask_us_per_token if grammar else None, 1),
        numbers.fixed(grammar.free_ratio_pct if grammar else None, 1),
        numbers.conforming(cell.conforming),
        numbers.percent(cell.field_accuracy),
    )


def _acceptance_row(cell: CellFigures, acceptance: Acceptance, width: int) -> tuple[str, ...]:
    shares = [
        numbers.percent(accepted / drafted if drafted else None)
        for drafted, accepted in acceptance.per_position
    ]
    return (
        *place_names(cell.place),
        numbers.count(acceptance.drafted),
        numbers.count(acceptance.accepted),
        numbers.percent(acceptance.rate),
        numbers.count(acceptance.illegal),
        numbers.fixed(acceptance.tokens_per_call, 2),
        *shares,
        *[numbers.DASH] * (width - len(shares)),
    )
