"""The composition table on a terminal, in 80 columns, and as plain lines elsewhere."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.report import numbers
from harness.report.figures import CellFigures, Group, RunReport
from harness.report.outcome import outcome_word
from harness.report.visible import one_line
from harness.stats import Ratio

HEADINGS = (
    "cell",
    "conc",
    "tok/s\n(agg)",
    "per\nstream",
    "vs serial\n(95 % CI)",
    "wins",
    "TTFT ms\np50/p95",
    "acc",
    "peak\nGB",
    "conform\n(n, >=)",
)


def print_report(report: RunReport, console: Console) -> None:
    """Print every composition table, the gates and the verdict."""
    for group in report.groups:
        console.print(composition_table(group))
    console.print()
    for line in closing_lines(report):
        console.print(Text(line), soft_wrap=True)


def composition_table(group: Group) -> Table:
    """Return the table of one model on one workload; it fits 80 columns."""
    table = Table(
        title=Text(f"\n{_title(group)}"),
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for place, heading in enumerate(HEADINGS):
        table.add_column(Text(heading), justify="right" if place else "left", overflow="fold")
    for cell in group.cells:
        name, *figures = _row(cell)
        table.add_row(Text(_folded(name)), *map(Text, figures))
    return table


def plain_report(report: RunReport) -> str:
    """Return the same tables and lines without colour or control sequences, for pipes and logs."""
    parts = [line for group in report.groups for line in _plain_table(group)]
    return "\n".join([*parts, "", *closing_lines(report)]) + "\n"


def closing_lines(report: RunReport) -> list[str]:
    """Return the gates, the verdict and each reason against quoting it, one line each."""
    run = report.run
    lines = [
        f"gate {gate.name}: {gate.status}, {numbers.percent(gate.observed, 1)} of {gate.n}"
        for gate in report.summaries
    ]
    lines += [
        f"  {gate.name} {gate.model} {gate.workload} {gate.cell}".rstrip() + f": {gate.detail}"
        for gate in report.gates
        if gate.status != "pass"
    ]
    lines += _skipped(report)
    if any(against.figure != "aggregate" for cell in report.cells for against in cell.ratios):
        lines.append("where decode steps are not told, ratios compare tokens a second of wall time")
    lines.append(
        f"{outcome_word(report.exit_code)}: run {run.run_id}, "
        f"{numbers.counted(run.blocks, 'block')} of {numbers.counted(run.prompts, 'prompt')}, "
        f"cap {run.max_tokens or 'of the workload'}; "
        f"{'quotable' if report.is_quotable else 'not quotable, because'}"
    )
    lines += [f"  - {reason}" for reason in report.unquotable_reasons]
    return list(map(one_line, lines))


def _skipped(report: RunReport) -> list[str]:
    """Return a line for each reason that cells of one model and workload are skipped for."""
    cells: dict[tuple[str, str, str], list[str]] = {}
    for skip in report.skips:
        where = (skip.place.model, skip.place.workload, skip.reason)
        cells.setdefault(where, []).append(skip.place.cell)
    return [
        f"skipped {model} {workload} {', '.join(names)}: {reason}"
        for (model, workload, reason), names in cells.items()
    ]


def _title(group: Group) -> str:
    return one_line(f"{group.model} on {group.workload.name}")


def _row(cell: CellFigures) -> tuple[str, ...]:
    serial = None if cell.serial is None else cell.serial.ratio
    return (
        one_line(cell.place.cell),
        str(cell.cell.max_rows),
        numbers.rate(cell.speed.aggregate),
        numbers.rate(cell.speed.per_stream),
        _interval(serial),
        numbers.wins(serial),
        numbers.latency(cell.ttft).replace(" / ", "/").replace(f"/{numbers.DASH}", ""),
        numbers.accepted(cell.acceptance).replace(" ", ""),
        numbers.gigabytes(cell.peak_rss_bytes or cell.peak_mlx_bytes),
        _conforming(cell),
    )


def _folded(name: str, width: int = 14) -> str:
    """Break a cell name before a `+` or `@`, a wider part before a `_` or `=`, else anywhere.

    Lines after the first begin with a blank.
    """
    lines = [""]
    for part in re.split(r"(?=[+@])", name):
        is_wide = len(part) >= width
        for at, piece in enumerate(re.split(r"(?=[_=])", part) if is_wide else [part]):
            is_full = len(lines[-1]) + len(piece) > width or (is_wide and at == 0)
            if lines[-1].strip() and is_full:
                lines.append(" ")
            for character in piece:
                if len(lines[-1]) == width:
                    lines.append(" ")
                lines[-1] += character
    return "\n".join(lines)


def _interval(ratio: Ratio | None) -> str:
    if ratio is None or ratio.low is None or ratio.high is None:
        return numbers.interval(ratio)
    return f"{ratio.estimate:.2f} {ratio.low:.2f}-{ratio.high:.2f}"


def _conforming(cell: CellFigures) -> str:
    value = cell.conforming
    if value is None:
        return numbers.DASH
    # Rounded down: what is proven must not be overstated.
    return f"{value.ok}/{value.n} {math.floor(100 * value.lower_bound)}%"


def _plain_table(group: Group) -> list[str]:
    heads = [heading.replace("\n", " ") for heading in HEADINGS]
    rows = [_row(cell) for cell in group.cells]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [
        "",
        _title(group),
        *(_line(row, widths) for row in [heads, *rows]),
    ]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        text.rjust(width) if place else text.ljust(width)
        for place, (text, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
