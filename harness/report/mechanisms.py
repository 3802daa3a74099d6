"""The sections on what the mechanisms do: what a grammar costs, which drafts are accepted."""

from __future__ import annotations

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
    rows = grammar_rows(report)
    if not rows:
        return f"## Grammar\n\n{NONE_LINE}"
    return "\n\n".join(["## Grammar", table(GRAMMAR, rows), GRAMMAR_LEGEND])


def acceptance_section(report: RunReport) -> str:
    """Return the drafts of each cell, the share accepted at each draft position last."""
    rows = acceptance_rows(report)
    if not rows:
        return f"## Acceptance by position\n\n{NONE_LINE}"
    parts = ["## Acceptance by position", table(acceptance_columns(report), rows)]
    if histogram := histogram_rows(report):
        parts += [table(histogram_columns(report), histogram), HISTOGRAM_LEGEND]
    return "\n\n".join(parts)


def grammar_rows(report: RunReport) -> list[tuple[str, ...]]:
    """Return the lines of the table GRAMMAR."""
    return [_grammar_row(cell) for cell in report.cells if cell.grammar or cell.conforming]


def acceptance_columns(report: RunReport) -> tuple[tuple[str, bool], ...]:
    """Return the columns ACCEPTANCE, and one for each draft position that any cell has."""
    return (*ACCEPTANCE, *((str(at + 1), True) for at in range(_positions(report))))


def acceptance_rows(report: RunReport) -> list[tuple[str, ...]]:
    """Return the lines of the table of acceptance."""
    width = _positions(report)
    return [
        _acceptance_row(cell, cell.acceptance, width)
        for cell in report.cells
        if cell.acceptance is not None
    ]


def _positions(report: RunReport) -> int:
    found = [cell.acceptance for cell in report.cells if cell.acceptance is not None]
    return max((len(acceptance.per_position) for acceptance in found), default=0)


def histogram_columns(report: RunReport) -> tuple[tuple[str, bool], ...]:
    """Return the columns HISTOGRAM, and one for each number of drafts a call can accept."""
    return (*HISTOGRAM, *((str(accepted), True) for accepted in range(_positions(report) + 1)))


def histogram_rows(report: RunReport) -> list[tuple[str, ...]]:
    """Return how many drafts a call accepted, of each cell that tells."""
    width = _positions(report)
    return [
        (
            *place_names(cell.place),
            numbers.count(acceptance.target_calls),
            numbers.count(acceptance.undrafted),
            *map(str, counts),
            *[numbers.DASH] * (width + 1 - len(counts)),
        )
        for cell in report.cells
        if (acceptance := cell.acceptance) is not None
        and (counts := acceptance.histogram) is not None
    ]


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
