"""The section on where a step's time goes: its parts, and the bound that memory sets."""

from __future__ import annotations

from harness.report import numbers
from harness.report.attribution import OTHER, PARTS
from harness.report.checks import NONE_LINE, PLACE, place_names
from harness.report.figures import CellFigures, Roofline, RunReport, StepTime
from harness.report.gfm import table

TITLE = "## Where a step's time goes"
STEP = (
    *PLACE,
    ("steps", True),
    ("step ms", True),
    *((f"{name.replace('_', ' ')} ms", True) for name in (*PARTS, OTHER)),
)
ROOFLINE = (
    *PLACE,
    ("tok/s (agg)", True),
    ("MB/token", True),
    ("memory GB/s", True),
    ("bound tok/s", True),
    ("share", True),
)
STEP_LEGEND = (
    "Milliseconds of a mean decode step, by what the host did; the parts sum to the step. "
    "plan: rows admitted, the step's slots chosen. draft: drafts proposed (a drafter that is a "
    "model computes and is waited for there) and cut to what the grammar allows. forward build: "
    "the graph of the forward built. forward launch: the forward handed to the device, which takes "
    "as long as the device makes the host wait: on a CPU that is most of its computing. mask: "
    "grammar masks filled. sample: the choice of every position built and handed over. host wait: "
    "waiting for the tokens. commit: drafts judged, grammars advanced, text made, ended rows "
    "freed. other: the rest. The device computes while the host does all this, and a forward "
    "launched ahead counts in the step during which it was launched."
)
ROOFLINE_LEGEND = (
    "MB/token: weights, and keys and values at the mean length, read for each committed token: "
    "the rows of a batch share the weights, and with drafts a target call commits several tokens "
    "(what the drafter reads is left out). bound: at the memory's speed as measured when the run "
    "began, by reading and copying; above 100 % something else kept the memory busy then. "
    "share: measured over bound."
)


def step_section(report: RunReport) -> str:
    """Return the section."""
    steps, bounds, parts = step_rows(report), roofline_rows(report), [TITLE]
    if steps:
        parts += [table(STEP, steps), STEP_LEGEND]
    if bounds:
        parts += [table(ROOFLINE, bounds), ROOFLINE_LEGEND]
    return "\n\n".join(parts if len(parts) > 1 else [TITLE, NONE_LINE])


def step_rows(report: RunReport) -> list[tuple[str, ...]]:
    """Return the parts of a mean step of each cell that tells them, by the columns of STEP."""
    return [_step_row(cell, cell.step_time) for cell in report.cells if cell.step_time is not None]


def roofline_rows(report: RunReport) -> list[tuple[str, ...]]:
    """Return what memory allows, beside what was measured, by the columns of ROOFLINE."""
    return [
        _roofline_row(cell, cell.roofline) for cell in report.cells if cell.roofline is not None
    ]


def _step_row(cell: CellFigures, time: StepTime) -> tuple[str, ...]:
    return (
        *place_names(cell.place),
        numbers.count(time.steps),
        numbers.fixed(1000 * time.step_s, 3),
        *(numbers.fixed(1000 * seconds, 3) for seconds in time.parts_s.values()),
    )


def _roofline_row(cell: CellFigures, line: Roofline) -> tuple[str, ...]:
    return (
        *place_names(cell.place),
        numbers.rate(cell.speed.aggregate),
        numbers.fixed(line.bytes_per_token / 1e6, 2),
        numbers.fixed(line.bandwidth_gb_s, 1),
        numbers.rate(line.bound_tok_s),
        numbers.percent(line.share),
    )
