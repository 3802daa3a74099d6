"""Strips, one a cell: its speed block by block against its own median, so that drift is seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from harness.report import numbers
from harness.report.figures import BlockRate, CellFigures, Group
from harness.report.html.chart import Chart, Part, bar, dot, drawing, key, segment, written
from harness.report.html.element import Content, Element, el
from harness.report.html.scale import MARGIN, Scale
from harness.report.html.words import name
from harness.stats import TOLERANCE, percentile

HEIGHT = 52
_PAD = 6
_STEP, _MAX_REACH = 0.05, 0.25
"""A strip reaches a multiple of the one above and below the median, and at most the other."""

_MAX_LABELS = 12

_KEY = (
    ("mark-same", f"within {100 * TOLERANCE:.0f} % of the cell's median"),
    ("mark-dot", "one block"),
    ("mark-clipped", "beyond what the strip shows"),
)


def strips(group: Group) -> Content:
    """Return the strips of one model on one workload; None where nothing ran twice."""
    cells = [cell for cell in group.cells if len(cell.block_rates) > 1]
    if not cells:
        return None
    last = max(rate.block for cell in cells for rate in cell.block_rates)
    blocks, reach = Scale(0, last), _reach(cells)
    parts = (
        Part("cell", "cell"),
        Part("plot", _axis(blocks, last)),
        Part("ratio", "median tok/s", "median tok/s"),
        Part("verdict", "first to last", "first to last"),
    )
    chart = Chart(
        kind="strips",
        label=f"speed by block of {group.model} on {group.workload.name}",
        parts=parts,
        rows=[_row(cell, blocks, reach) for cell in cells],
    )
    told = f"Speed block by block, ±{100 * reach:.0f} % around each cell's median"
    return el("figure", None, el("figcaption", None, told), chart.element(), key(_KEY))


def _reach(cells: Sequence[CellFigures]) -> float:
    """Return how far the strips reach: nearly every block lies within, the odd one need not."""
    changes = [abs(change) for cell in cells for _, change in _changes(cell.block_rates)]
    usual = percentile(changes, 95) or 0.0
    return min(math.ceil(usual / _STEP) * _STEP or _STEP, _MAX_REACH)


def _changes(rates: Sequence[BlockRate]) -> list[tuple[BlockRate, float]]:
    """Return each block with the relative difference of its speed from the median."""
    middle = percentile([rate.tok_s for rate in rates], 50)
    assert middle, "a speed is above zero"
    return [(rate, rate.tok_s / middle - 1) for rate in rates]


def _row(cell: CellFigures, blocks: Scale, reach: float) -> Sequence[Content]:
    middle = percentile([rate.tok_s for rate in cell.block_rates], 50)
    return (
        name(cell.place.cell),
        _strip(cell, blocks, reach),
        numbers.rate(middle),
        numbers.change(cell.drift),
    )


def _strip(cell: CellFigures, blocks: Scale, reach: float) -> Element:
    changes = _changes(cell.block_rates)
    heights = Scale(reach, -reach)
    points = [
        (rate, change, (blocks.at(rate.block), _height(heights, change)))
        for rate, change in changes
    ]
    top, bottom = _height(heights, TOLERANCE), _height(heights, -TOLERANCE)
    lines = [
        # A block that is missing leaves a gap.
        segment("trace", here, there)
        for (one, _, here), (other, _, there) in pairwise(points)
        if other.block == one.block + 1
    ]
    middle = _height(heights, 0)
    ground = (
        bar("tolerance", MARGIN, 100 - 2 * MARGIN, top, bottom - top),
        segment("one", (MARGIN, middle), (100 - MARGIN, middle)),
    )
    dots = [
        dot("clipped" if abs(change) > reach else "step", *place, 3.5, _told(rate, change))
        for rate, change, place in points
    ]
    label = f"{cell.place.cell}: " + ", ".join(_told(rate, change) for rate, change in changes)
    return drawing(label, HEIGHT, (ground, lines, dots))


def _height(heights: Scale, change: float) -> float:
    """Return pixels from above."""
    share = (heights.at(change) - MARGIN) / (100 - 2 * MARGIN)
    return _PAD + (HEIGHT - 2 * _PAD) * share


def _told(rate: BlockRate, change: float) -> str:
    return f"block {rate.block + 1} {numbers.rate(rate.tok_s)} ({numbers.change(change)})"


def _axis(blocks: Scale, last: int) -> Element:
    return drawing("blocks, in the order in which they ran", 18, list(_labels(blocks, last)))


def _labels(blocks: Scale, last: int) -> Iterator[Element]:
    every = last // _MAX_LABELS + 1
    for block in range(0, last + 1, every):
        yield written("tick", blocks.at(block), 13, str(block + 1))
