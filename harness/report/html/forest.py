"""The forest plot: every ratio with its interval, its blocks, and the band that counts as equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.report import numbers
from harness.report.figures import Against, Group
from harness.report.html.chart import (
    Chart,
    Part,
    band,
    dot,
    drawing,
    key,
    middle,
    segment,
    upright,
    written,
)
from harness.report.html.element import Content, Element, el
from harness.report.html.scale import RatioScale, ratio_scale
from harness.report.html.words import name
from harness.stats import TOLERANCE, Ratio

ROW = 30
"""Pixels from one ratio to the next."""

AXIS = 22
_LINE, _BLOCKS = -2, 8
"""Where a row has its interval and its blocks, in pixels below its middle."""

_CAP = 4

SIGNS = {
    "faster": "▲",
    "slower": "▼",
    "same": "=",
    "~": "~",
    "provisional": "◇",
    "refused": "✕",
}
"""A sign beside each verdict, so that colour is not all that tells them apart."""

_KINDS = {"~": "unclear", numbers.DASH: "none"}

_KEY = (
    ("mark-same", f"counts as the same: within {100 * TOLERANCE:.0f} %"),
    ("mark-interval", "ratio with its 95 % interval"),
    ("mark-open", "without a verdict"),
    ("mark-block", "one block"),
)


@dataclass(frozen=True, slots=True)
class _Row:
    """One ratio.

    Args:
        is_again: the row above it is of the same cell.
    """

    cell: str
    against: Against
    is_again: bool = False
    is_noise: bool = False


def forest(group: Group) -> Content:
    """Return the plot of one model on one workload; None where nothing was compared."""
    rows = [
        _Row(cell.place.cell, against, is_again=at > 0)
        for cell in group.cells
        for at, against in enumerate(cell.ratios)
    ]
    if group.noise is not None:
        rows.append(_Row(group.noise.baseline, group.noise, is_noise=True))
    if not rows:
        return None
    scale = ratio_scale((value for row in rows for value in _values(row.against)), TOLERANCE)
    parts = (
        Part("cell", "cell"),
        Part("against", "against", "against"),
        Part("plot", _axis(scale)),
        Part("ratio", "ratio (95 % CI)", "ratio"),
        Part("verdict", "verdict"),
        Part("small n", "n", "n"),
        Part("small wins", "wins", "wins"),
        Part("small detectable", "detectable", "detectable"),
        Part("small cv", "CV", "CV"),
    )
    chart = Chart(
        kind="forest",
        label=f"ratios of {group.model} on {group.workload.name}",
        parts=parts,
        rows=[_row(row, scale) for row in rows],
    )
    return el("figure", None, el("figcaption", None, "Ratios of speed"), chart.element(), key(_KEY))


def _values(against: Against) -> Iterator[float]:
    ratio = against.ratio
    found = (ratio.estimate, ratio.low, ratio.high, *against.by_block)
    return (value for value in found if value is not None)


def _row(row: _Row, scale: RatioScale) -> Sequence[Content]:
    ratio = row.against.ratio
    return (
        _cell(row),
        "its own repeat" if row.is_noise else name(row.against.baseline),
        _plot(row, scale),
        numbers.interval(ratio),
        None if row.is_noise else verdict(ratio),
        str(ratio.n),
        numbers.wins(ratio),
        numbers.percent(ratio.minimum_detectable, 1),
        numbers.percent(ratio.cv, 1),
    )


def _cell(row: _Row) -> Element:
    told = el("span", {"class": "aside"}, " noise floor") if row.is_noise else None
    return el("span", {"class": "again" if row.is_again else None}, name(row.cell), told)


def verdict(ratio: Ratio) -> Element:
    """Return the verdict of a ratio as a sign and a word."""
    word = numbers.verdict(ratio)
    sign = el("span", {"aria-hidden": "true"}, SIGNS.get(word, ""), " ")
    shown = "unclear" if word == "~" else word
    return el("span", {"class": f"verdict-{_kind(ratio)}"}, sign if word in SIGNS else None, shown)


def _kind(ratio: Ratio) -> str:
    word = numbers.verdict(ratio)
    return _KINDS.get(word, word)


def _axis(scale: RatioScale) -> Content:
    label = "ratio to the baseline; to the right is faster"
    marks = [
        (
            written("tick", scale.at(ratio), 13, _tick(ratio)),
            segment("tick-line", (scale.at(ratio), AXIS - 5), (scale.at(ratio), AXIS)),
        )
        for ratio in scale.ticks()
    ]
    return drawing(label, AXIS, marks)


def _tick(ratio: float) -> str:
    return f"{ratio:g}x"


def _plot(row: _Row, scale: RatioScale) -> Element:
    ratio = row.against.ratio
    edges = scale.at(1 - TOLERANCE), scale.at(1 + TOLERANCE)
    ground = (
        band("tolerance", *edges),
        [upright("one" if tick == 1 else "grid", scale.at(tick)) for tick in scale.ticks()],
    )
    blocks = [
        dot("block", scale.at(value), _BLOCKS, 1.8, f"block ratio {numbers.fixed(value, 3)}")
        for value in row.against.by_block
    ]
    told = numbers.interval(ratio)
    label = f"{row.cell} against {row.against.baseline}: {told}, {numbers.verdict(ratio)}"
    return drawing(label, ROW, (ground, middle(blocks, _interval(ratio, scale, told))))


def _interval(ratio: Ratio, scale: RatioScale, told: str) -> Iterator[Content]:
    if ratio.estimate is None:
        return
    kind = _kind(ratio)
    if ratio.low is not None and ratio.high is not None:
        low, high = scale.at(ratio.low), scale.at(ratio.high)
        yield segment(f"interval {kind}", (low, _LINE), (high, _LINE))
        for end in (low, high):
            yield segment(f"interval {kind}", (end, _LINE - _CAP), (end, _LINE + _CAP))
    yield dot(f"point {kind}", scale.at(ratio.estimate), _LINE, 4.5, told)
