"""The figures of one cell, read from the views and compared block by block."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.cells.name import BASE, on_side, side_of
from harness.judging.cell_gates import outcome_of
from harness.judging.grade import Grade, judge_conformance
from harness.report.attribution import roofline, step_time
from harness.report.figures import (
    Acceptance,
    Against,
    BlockRate,
    CellFigures,
    Conforming,
    Grammar,
    Roofline,
    Speed,
    Spread,
)
from harness.report.refusals import cell_refusals
from harness.stats import compare, drift, log_ratios
from harness.store.index import Place, RunIndex
from harness.store.loaded import AcceptPoint, BlockRow, CellTotals, FigureRow, ReplyGroup
from harness.store.rows import CellRow, GateRow, TrialRow

SERIAL = "serial"
AGGREGATE, E2E = "aggregate", "e2e"
_NO_SPEED = Speed(aggregate=None, per_stream=None, e2e=None)


@dataclass(slots=True)
class CellReader:
    """Puts together the figures of the cells of one run.

    Args:
        refusals: why the session gives no timing verdict.
    """

    index: RunIndex
    gates: Sequence[GateRow]
    refusals: Sequence[str] = ()
    _figures: dict[tuple[Place, str], FigureRow] = field(init=False)
    _blocks: dict[Place, list[BlockRow]] = field(init=False)
    _totals: dict[Place, CellTotals] = field(init=False)
    _curves: dict[Place, list[AcceptPoint]] = field(init=False)
    _verdicts: dict[Place, list[GateRow]] = field(init=False)

    def __post_init__(self) -> None:
        data = self.index.data
        self._figures = {(_place(row), row.figure): row for row in data.figures}
        self._totals = {_place(row): row for row in data.totals}
        self._verdicts = {}
        for gate in self.gates:
            self._verdicts.setdefault(Place(gate.model, gate.workload, gate.cell), []).append(gate)
        self._curves = {}
        for point in data.accept_curve:
            self._curves.setdefault(_place(point), []).append(point)
        self._blocks = {}
        for row in data.blocks:
            self._blocks.setdefault(_place(row), []).append(row)

    def read(self, place: Place) -> CellFigures:
        """Return the figures of the cell at a place; a routing check has no speed."""
        cell, totals = self.index.cell(place), self._totals[place]
        is_timed = cell.kind != "routing"
        trials = self.index.trials(place)
        replies = self.index.replies(place)
        rates = self._rates(place, self._figure(place)) if is_timed else {}
        speed = self._speed(place) if is_timed else _NO_SPEED
        acceptance = self._acceptance(place, totals)
        return CellFigures(
            place=place,
            cell=cell,
            lane_taken=_only(item.lane_taken for item in replies),
            lane_reason=_only(item.lane_reason for item in replies),
            num_blocks=totals.done,
            num_requests=totals.requests,
            failed_requests=totals.failed_requests,
            empty_replies=totals.empty_replies,
            one_token_replies=totals.one_token_replies,
            speed=speed,
            ttft=self._spread(place, "ttft") if is_timed else None,
            ttft_visible=self._spread(place, "ttft_visible") if is_timed else None,
            main=self.against(place, cell.baseline),
            serial=self.against(place, on_side(SERIAL, side_of(cell.name))),
            others=tuple(self._others(place, cell)),
            acceptance=acceptance,
            grammar=self._grammar(place, cell),
            conforming=self._conforming(place, replies),
            field_accuracy=totals.field_accuracy,
            peak_mlx_bytes=totals.peak_mlx_bytes,
            peak_rss_bytes=totals.peak_rss_bytes,
            client_delay=_client_delay(trials),
            retries=sum(trial.retries or 0 for trial in trials),
            drift=drift(rates),
            block_rates=tuple(
                BlockRate(block, rate) for block, rate in sorted(rates.items()) if rate
            ),
            refusals=tuple(self._cell_refusals(place)) if is_timed else (),
            step_time=step_time(trials) if is_timed else None,
            roofline=self._roofline(cell, trials, totals, acceptance, speed),
        )

    def against(self, place: Place, baseline: str | None) -> Against | None:
        """Return the ratio to another cell of the same model, workload and blocks.

        None for a cell without a baseline or itself, for one that was not planned, and for routing
        checks.
        """
        if baseline is None or baseline == place.cell:
            return None
        other = place.other(baseline)
        if self.index.cell(place).kind == "routing" or not self.index.trials(other):
            return None
        refusals = [*self.refusals, *self._cell_refusals(place), *self._cell_refusals(other)]
        # Like is compared with like: both by wall time where one of them tells nothing else.
        figure = E2E if E2E in (self._figure(place), self._figure(other)) else AGGREGATE
        paired = self.index.paired(place, other)
        rates, base = (
            {block: rate for block, rate in self._rates(at, figure).items() if block in paired}
            for at in (place, other)
        )
        logs = log_ratios(rates, base)
        return Against(
            baseline,
            compare(logs, refusals=refusals),
            figure,
            by_block=tuple(map(math.exp, logs)),
            apart=self.index.apart(place, other),
        )

    def _speed(self, place: Place) -> Speed:
        medians = {
            figure: self._figures[place, figure].p50
            for figure in ("aggregate", "per_stream", "e2e")
            if (place, figure) in self._figures
        }
        return Speed(
            aggregate=medians.get("aggregate"),
            per_stream=medians.get("per_stream"),
            e2e=medians.get("e2e"),
        )

    def _spread(self, place: Place, figure: str) -> Spread | None:
        row = self._figures.get((place, figure))
        return None if row is None else Spread(row.n, row.p50, row.p95)

    def _others(self, place: Place, cell: CellRow) -> Iterator[Against]:
        names = [cell.bare] if cell.bare not in (None, cell.baseline, SERIAL) else []
        names += self._peers(place, cell) if cell.kind != "peer" else []
        names += [] if side_of(cell.name) else [on_side(cell.name, BASE)]
        for name in names:
            against = self.against(place, name)
            if against is not None:
                yield against

    def _peers(self, place: Place, cell: CellRow) -> list[str]:
        """Return the peer cells of the same lane: with the same features, else the bare ones."""
        peers = [
            other
            for other in self.index.data.cells
            if other.kind == "peer"
            and (other.lane, other.max_rows) == (cell.lane, cell.max_rows)
            and place.other(other.name) in self._blocks
        ]
        alike = [other.name for other in peers if other.features == cell.features]
        return alike or [other.name for other in peers if not other.features]

    def _acceptance(self, place: Place, totals: CellTotals) -> Acceptance | None:
        if totals.drafted is None and totals.accepted is None:
            return None
        if totals.target_calls == 0 and not totals.drafted:
            return None  # replies of one token: prefill alone, and nothing to draft for
        curve = self._curves.get(place, [])
        width = 1 + max((point.position for point in curve), default=-1)
        counts = {point.position: (point.drafted, point.accepted) for point in curve}
        return Acceptance(
            drafted=totals.drafted,
            accepted=totals.accepted,
            target_calls=totals.target_calls,
            illegal=totals.illegal_drafts,
            per_position=tuple(counts.get(position, (0, 0)) for position in range(width)),
        )

    def _roofline(
        self,
        cell: CellRow,
        trials: Sequence[TrialRow],
        totals: CellTotals,
        acceptance: Acceptance | None,
        speed: Speed,
    ) -> Roofline | None:
        """Return what memory allows a cell whose speed is known."""
        if speed.aggregate is None:
            return None
        environment = self.index.data.run.environment
        return roofline(cell, trials, totals.mean_length, acceptance, speed.aggregate, environment)

    def _grammar(self, place: Place, cell: CellRow) -> Grammar | None:
        if not cell.has("grammar"):
            return None
        free = self.against(place, self._without_grammar(cell))
        ratio = None if free is None else free.ratio.estimate
        overhead = self._figures.get((place, "grammar_overhead"))
        mask = self._figures.get((place, "mask_us"))
        return Grammar(
            overhead_pct=None if overhead is None else overhead.p50,
            free_ratio_pct=None if ratio is None else 100 * ratio,
            mask_us_per_token=None if mask is None else mask.p50,
        )

    def _without_grammar(self, cell: CellRow) -> str | None:
        # By its text, not parsed: a stored name may come from a version that knew other words.
        words, at, rest = cell.name.partition("@")
        bare = "+".join(word for word in words.split("+") if word != "grammar")
        name = f"{bare}{at}{rest}"
        return name if name in self.index.cells else None

    def _conforming(self, place: Place, replies: Sequence[ReplyGroup]) -> Conforming | None:
        """Return how many replies conform, as the gate counts them, also for free text."""
        is_graded = any(item.conformance is not None for item in replies)
        if not is_graded and not self.index.cell(place).has("grammar"):
            return None
        grades = [
            grade
            for item in replies
            if (outcome := outcome_of(item)) is not None
            for grade in [Grade(outcome=outcome)] * item.n
        ]
        verdict = judge_conformance(
            grades, allow_truncation=self.index.workloads[place.workload].allows_truncation
        )
        if verdict.lower_bound is None:
            return None
        return Conforming(verdict.n, verdict.ok, verdict.lower_bound)

    def _figure(self, place: Place) -> str:
        """Return which speed of a cell is compared: e2e where no trial tells of decode steps."""
        told = [trial.is_told_steps for trial in self.index.trials(place, "done")]
        return AGGREGATE if any(told) or not told else E2E

    def _rates(self, place: Place, figure: str) -> Mapping[int, float | None]:
        """Return tokens a second by block; estimated counts take no part."""
        return {
            block.block: None if block.estimated else _rate(block, figure)
            for block in self._blocks.get(place, [])
        }

    def _cell_refusals(self, place: Place) -> list[str]:
        cell, blocks = self.index.cell(place), self._blocks.get(place, [])
        return cell_refusals(place, cell, blocks, self._verdicts.get(place, ()))


def _rate(block: BlockRow, figure: str) -> float | None:
    return block.aggregate_tok_s if figure == AGGREGATE else block.e2e_tok_s


def _client_delay(trials: Sequence[TrialRow]) -> float | None:
    delays = [trial.client_delay_s for trial in trials if trial.client_delay_s is not None]
    streams = math.fsum(trial.client_stream_s or 0.0 for trial in trials)
    return math.fsum(delays) / streams if delays and streams > 0 else None


def _only(values: Iterable[str]) -> str:
    """Return the value all share, "mixed" when they differ, "" for none."""
    found = set(values) - {""}
    return "mixed" if len(found) > 1 else next(iter(found), "")


def _place(row: FigureRow | BlockRow | CellTotals | AcceptPoint) -> Place:
    return Place(row.model, row.workload, row.cell)
