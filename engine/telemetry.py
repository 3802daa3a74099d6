"""What the engine reports about itself: one frozen record a step, totals on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine import arrays
from engine.cache.prefix import PrefixStats
from engine.flight import Flight
from engine.grammar.compile import CompileStats
from engine.plan import StepKind
from engine.request import TokenEvent
from engine.step_time import PARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One executed step. Times are seconds on time.perf_counter's clock.

    `plan_s` to `commit_s` are the parts (engine.step_time) of the call of Engine.step that read it;
    a step launched ahead was built and launched by the call before.

    Args:
        rows: rows served.
        positions: token positions computed, padding and idle rows included.
        tokens: those of them that were a row's tokens or drafts.
        committed: tokens emitted.
        mask_positions: masks filled.
        started_s: when it was built.
        ended_s: after the step's result was read by the host.
    """

    kind: StepKind
    rows: int
    max_rows: int
    positions: int
    tokens: int
    prompt_tokens: int
    committed: int
    draft_s: float
    mask_s: float
    mask_positions: int
    started_s: float
    ended_s: float
    plan_s: float = 0.0
    build_s: float = 0.0
    launch_s: float = 0.0
    sample_s: float = 0.0
    wait_s: float = 0.0
    commit_s: float = 0.0

    @property
    def parts_s(self) -> dict[str, float]:
        """Seconds by name, in the order of PARTS."""
        return {part: getattr(self, f"{part}_s") for part in PARTS}

    @property
    def is_decode(self) -> bool:
        """True for a decode step."""
        return self.kind is StepKind.DECODE

    @property
    def is_full(self) -> bool:
        """True for a decode step at full occupancy."""
        return self.is_decode and self.rows == self.max_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBytes:
    """What a decode step has to read at least, whatever it drafts or masks.

    Args:
        weights: of the target's weights, once for all rows; None where that cannot be told.
        kv_per_token: keys and values of one cached position of one row, all layers.
        kv_per_row: state of one row that does not grow with its length.
    """

    weights: int | None
    kv_per_token: int
    kv_per_row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """What is live now, and totals since the engine was opened.

    Args:
        active: rows that hold a slot; `lanes` counts them by lane.
        pending: rows that wait for one.
        host_syncs: waits for the device of the whole process, other engines included.
        kv_bytes: bytes the target's keys and values take now.
        projected_bytes: bytes the active rows may come to need, the drafter's cache included.
        budget_bytes: the limit on projected_bytes, None when there is none.
        positions: token positions computed; `tokens` of them were a row's, the rest is padding.
        prefix: what the prefix cache did.
        grammar: what compiling constraints took.
        shapes: distinct (kind, rows, columns) of the steps so far.
    """

    submitted: int
    pending: int
    active: int
    finished: int
    lanes: Mapping[str, int]
    steps: int
    host_syncs: int
    kv_bytes: int
    projected_bytes: int
    budget_bytes: int | None
    positions: int
    tokens: int
    prefix: PrefixStats
    grammar: CompileStats
    shapes: frozenset[tuple[str, int, int]]

    @property
    def padding(self) -> float:
        """Share of computed positions that were padding, 0 to 1."""
        return 1 - self.tokens / self.positions if self.positions else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """A recorded text run again with its tokens forced; one entry a decode step.

    Args:
        step_s: time of each step.
        mask_s: host time each step spent filling masks.
    """

    step_s: tuple[float, ...]
    mask_s: tuple[float, ...]


@dataclass(slots=True)
class Tally:
    """Counts of one engine, kept as its steps land."""

    submitted: int = 0
    finished: int = 0
    steps: int = 0
    positions: int = 0
    tokens: int = 0
    shapes: set[tuple[str, int, int]] = field(default_factory=set)
    syncs_before: int = field(default_factory=lambda: arrays.SYNCS.count)

    def add(
        self,
        flight: Flight,
        events: Sequence[TokenEvent],
        max_rows: int,
        parts_s: Mapping[str, float],
        ended_s: float,
    ) -> StepReport:
        """Count a landed step and return its report.

        Args:
            parts_s: seconds by name of PARTS.
        """
        plan, num_tokens = flight.plan, sum(flight.counts)
        report = StepReport(
            kind=plan.kind,
            rows=len(plan.slots),
            max_rows=max_rows,
            positions=flight.positions,
            tokens=num_tokens,
            prompt_tokens=num_tokens if plan.kind is StepKind.PREFILL else 0,
            committed=sum(event.token_id is not None for event in events),
            mask_positions=flight.mask_positions,
            started_s=flight.started_s,
            ended_s=ended_s,
            plan_s=parts_s["plan"],
            draft_s=parts_s["draft"],
            build_s=parts_s["build"],
            launch_s=parts_s["launch"],
            mask_s=parts_s["mask"],
            sample_s=parts_s["sample"],
            wait_s=parts_s["wait"],
            commit_s=parts_s["commit"],
        )
        self.steps += 1
        self.positions += report.positions
        self.tokens += report.tokens
        self.shapes.add((plan.kind, plan.num_rows, flight.positions // plan.num_rows))
        return report

    def stats(
        self,
        *,
        lanes: Sequence[str],
        pending: int,
        kv_bytes: int,
        projected_bytes: int,
        budget_bytes: int | None,
        prefix: PrefixStats,
        grammar: CompileStats,
    ) -> EngineStats:
        """Return the totals with what is live now."""
        return EngineStats(
            submitted=self.submitted,
            pending=pending,
            active=len(lanes),
            finished=self.finished,
            lanes=dict(Counter(lanes)),
            steps=self.steps,
            host_syncs=arrays.SYNCS.count - self.syncs_before,
            kv_bytes=kv_bytes,
            projected_bytes=projected_bytes,
            budget_bytes=budget_bytes,
            prefix=prefix,
            grammar=grammar,
            positions=self.positions,
            tokens=self.tokens,
            shapes=frozenset(self.shapes),
        )
