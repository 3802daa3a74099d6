"""Two runs beside each other, and only what differs: pure, and without a verdict across runs.

Machines change between runs, so no interval says how two sessions differ. Figures are told side by
side, each with the interval of its own run; where even that would mislead (another machine, model,
workload or lane), what differs is named in place of figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from harness.machine import machine_differences
from harness.report import numbers
from harness.report.build import build_report
from harness.report.figures import Against, CellFigures
from harness.report.markdown import flatten
from harness.stats import estimate
from harness.store.index import Place, RunIndex
from harness.store.loaded import RunData
from harness.store.rows import CellRow, GateRow, RunRow

SETTINGS = (
    "tag",
    "command",
    "preset",
    "blocks",
    "prompts",
    "max_tokens",
    "seed",
    "target",
    "plan_hash",
    "git_sha",
    "git_dirty",
    "status",
    "exit_code",
    "quotable",
    "machine_refusals",
    "unquotable_reasons",
)
"""What is told of two runs where it differs, beside the choices of `settings`."""

WORK = ("target", "prompts", "seed", "max_tokens", "temperature")
"""Choices that decide what work a run does: speeds at other work are not comparable."""

MODEL = ("digest", "dtype", "source")
"""What makes the weights that were loaded."""

LANE = ("lane", "max_rows", "features", "kind")
"""What makes a lane, beside the cell's settings."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of one run: as it is printed, and its interval within that run where it has one."""

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None


NO_FIGURE = Figure(numbers.DASH)


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs, as each of the two runs has it."""

    what: str
    one: str
    other: str


@dataclass(frozen=True, slots=True)
class GateDifference:
    """A gate that came out otherwise; the place is empty where it judges the run."""

    gate: str
    place: Place
    one: str
    other: str


@dataclass(frozen=True, slots=True)
class FigureDifference:
    """A figure of one cell that is printed otherwise."""

    place: Place
    what: str
    one: Figure
    other: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsCompared:
    """What differs between two runs.

    Args:
        not_comparable: why no speeds are told at all, one line each; empty for one machine at the
            same work.
        places_not_comparable: models, workloads and cells that only share their name; none of
            their figures are told.
        only_one, only_other: cells that one of the two runs has alone.
        same: figures that both have, printed alike, and that are left out.
    """

    one: RunRow
    other: RunRow
    not_comparable: tuple[str, ...]
    places_not_comparable: tuple[str, ...]
    settings: tuple[Difference, ...]
    environment: tuple[Difference, ...]
    gates: tuple[GateDifference, ...]
    figures: tuple[FigureDifference, ...]
    only_one: tuple[Place, ...]
    only_other: tuple[Place, ...]
    same: int

    @property
    def is_comparable(self) -> bool:
        """True when nothing stands against reading the speeds side by side."""
        return not self.not_comparable and not self.places_not_comparable


def compare_runs(one: RunData, other: RunData) -> RunsCompared:
    """Return what differs between two stored runs."""
    left, right = _Side.of(one), _Side.of(other)
    barriers = tuple(_run_barriers(one.run, other.run))
    shared = [place for place in left.cells if place in right.cells]
    alien = {place: tuple(_place_barriers(left.index, right.index, place)) for place in shared}
    alike = {place for place in shared if not alien[place]}
    figures = [
        FigureDifference(place, what, ours.get(what, NO_FIGURE), theirs.get(what, NO_FIGURE))
        for place in shared
        if place in alike
        for ours, theirs in [
            [_figures(side.cells[place], alike, is_timed=not barriers) for side in (left, right)]
        ]
        for what in dict.fromkeys([*ours, *theirs])
    ]
    return RunsCompared(
        one=one.run,
        other=other.run,
        not_comparable=barriers,
        places_not_comparable=tuple(
            dict.fromkeys(line for lines in alien.values() for line in lines)
        ),
        settings=_differing(_settings(one.run), _settings(other.run)),
        environment=_differing(
            dict(flatten(one.run.environment)), dict(flatten(other.run.environment))
        ),
        gates=tuple(_gates(left, right)),
        figures=tuple(item for item in figures if item.one.text != item.other.text),
        only_one=tuple(place for place in left.cells if place not in right.cells),
        only_other=tuple(place for place in right.cells if place not in left.cells),
        same=sum(item.one.text == item.other.text for item in figures),
    )


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two runs, ready to be looked things up in."""

    index: RunIndex
    gates: tuple[GateRow, ...]
    cells: Mapping[Place, CellFigures]

    @classmethod
    def of(cls, data: RunData) -> _Side:
        report = build_report(data)
        return cls(RunIndex(data), report.gates, {cell.place: cell for cell in report.cells})


def _run_barriers(one: RunRow, other: RunRow) -> Iterator[str]:
    """Yield what keeps the speeds of two runs from being read side by side."""
    yield from machine_differences(one.environment, other.environment)
    ours, theirs = _settings(one), _settings(other)
    for name in WORK:
        if ours.get(name) != theirs.get(name):
            shown = [side.get(name, numbers.DASH) for side in (ours, theirs)]
            yield f"{name} differs ({shown[0]}, {shown[1]})"
    for difference in _differing(_switches(one), _switches(other)):
        yield f"switches that are off differ ({difference.one}, {difference.other})"


def _place_barriers(one: RunIndex, other: RunIndex, place: Place) -> Iterator[str]:
    """Yield why a place of one run is not the same thing in the other."""
    for name in MODEL:
        ours, theirs = (
            getattr(index.models[place.model], name) or "unknown" for index in (one, other)
        )
        if ours != theirs:
            yield f"model {place.model}: {name} differs ({ours}, {theirs})"
    hashes = {index.workloads[place.workload].content_hash for index in (one, other)}
    if len(hashes) > 1:
        yield f"workload {place.workload}: its prompts or schemas differ"
    for item in _differing(_lane(one.cell(place)), _lane(other.cell(place))):
        yield f"cell {place.cell}: {item.what} differs ({item.one}, {item.other})"


def _lane(cell: CellRow) -> dict[str, str]:
    return dict(flatten({**{name: getattr(cell, name) for name in LANE}, **cell.settings}))


def _switches(run: RunRow) -> dict[str, str]:
    off = run.environment.get("switches_off") or ["none"]
    return {"switches_off": ", ".join(map(str, off))}


def _settings(run: RunRow) -> dict[str, str]:
    """Return what was chosen for a run and what became of it, by name."""
    chosen = dict(flatten(run.settings))
    return {**chosen, **dict(flatten({name: getattr(run, name) for name in SETTINGS}))}


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[Difference, ...]:
    return tuple(
        Difference(what, one.get(what, numbers.DASH), other.get(what, numbers.DASH))
        for what in dict.fromkeys([*one, *other])
        if one.get(what) != other.get(what)
    )


def _gates(left: _Side, right: _Side) -> Iterator[GateDifference]:
    """Yield the gates that came out otherwise, of cells that both runs have."""
    ours, theirs = _outcomes(left), _outcomes(right)
    for gate, place in dict.fromkeys([*ours, *theirs]):
        pair = [side.get((gate, place), numbers.DASH) for side in (ours, theirs)]
        is_shared = not place.cell or (place in left.cells and place in right.cells)
        if is_shared and pair[0] != pair[1]:
            yield GateDifference(gate, place, *pair)


def _outcomes(side: _Side) -> dict[tuple[str, Place], str]:
    return {
        (gate.name, Place(gate.model, gate.workload, gate.cell)): (
            f"{gate.status}, {numbers.percent(gate.observed, 1)} of {gate.n}"
            f"{': ' if gate.detail else ''}{gate.detail}"
        )
        for gate in side.gates
    }


def _figures(cell: CellFigures, alike: Set[Place], *, is_timed: bool) -> dict[str, Figure]:
    """Return what is told of a cell, by name.

    Args:
        alike: places that are the same thing in both runs: ratios are told to those alone.
        is_timed: whether speeds may be read side by side; ratios belong to one run each.
    """
    found = dict(_timing(cell)) if is_timed else {}
    found |= {
        f"ratio to {against.baseline}": _ratio(against)
        for against in cell.ratios
        if cell.place.other(against.baseline) in alike
    }
    return found | dict(_counts(cell))


def _timing(cell: CellFigures) -> Iterator[tuple[str, Figure]]:
    """Yield speeds, times and memory: figures of one machine."""
    speed = cell.speed
    name, value = ("agg", speed.aggregate) if speed.aggregate is not None else ("e2e", speed.e2e)
    if value is not None:
        yield f"tok/s ({name})", _rate(value, [item.tok_s for item in cell.block_rates])
    if speed.per_stream is not None:
        yield "tok/s (per stream)", Figure(numbers.rate(speed.per_stream), speed.per_stream)
    if cell.ttft is not None:
        yield "TTFT p50 / p95 ms", Figure(numbers.latency(cell.ttft), 1000 * cell.ttft.p50)
    memory = cell.peak_rss_bytes or cell.peak_mlx_bytes
    if memory is not None:
        yield "peak GB", Figure(numbers.gigabytes(memory), memory / 1e9)
    if cell.grammar is not None:
        overhead, mask = cell.grammar.overhead_pct, cell.grammar.mask_us_per_token
        yield "grammar overhead %", Figure(numbers.fixed(overhead, 2), overhead)
        yield "mask µs/token", Figure(numbers.fixed(mask, 1), mask)


def _rate(median: float, by_block: Sequence[float]) -> Figure:
    """Return a speed with the interval of its centre over the blocks of its own run."""
    if not by_block:
        return Figure(numbers.rate(median), median)
    interval = estimate([math.log(value) for value in by_block])
    if interval.low is None or interval.high is None:
        return Figure(numbers.rate(median), median)
    low, high = math.exp(interval.low), math.exp(interval.high)
    text = f"{numbers.rate(median)} [{numbers.rate(low)}, {numbers.rate(high)}]"
    return Figure(text, median, low, high)


def _ratio(against: Against) -> Figure:
    ratio = against.ratio
    text = f"{numbers.interval(ratio)} {numbers.verdict(ratio)}"
    return Figure(text, ratio.estimate, ratio.low, ratio.high)


def _counts(cell: CellFigures) -> Iterator[tuple[str, Figure]]:
    """Yield what no clock decides."""
    yield "lane taken", Figure(cell.lane_taken or numbers.DASH)
    yield "blocks", Figure(str(cell.num_blocks), cell.num_blocks)
    yield "requests", Figure(str(cell.num_requests), cell.num_requests)
    yield "requests failed", Figure(str(cell.failed_requests), cell.failed_requests)
    if cell.acceptance is not None:
        rate, calls = cell.acceptance.rate, cell.acceptance.tokens_per_call
        yield "drafts accepted", Figure(numbers.percent(rate, 1), rate)
        yield "tokens a call", Figure(numbers.fixed(calls, 2), calls)
    if cell.conforming is not None:
        share = cell.conforming.ok / cell.conforming.n
        yield "conform (n, >=)", Figure(numbers.conforming(cell.conforming), share)
    if cell.field_accuracy is not None:
        yield "fields right", Figure(numbers.percent(cell.field_accuracy, 1), cell.field_accuracy)
