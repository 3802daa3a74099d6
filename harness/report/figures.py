"""What a report says, as frozen values: everything is computed before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from harness.stats import Ratio
from harness.store.index import Place
from harness.store.rows import CellRow, GateRow, GateStatus, RunRow, WorkloadRow


@dataclass(frozen=True, slots=True)
class Spread:
    """Nearest-rank percentiles of n observations."""

    n: int
    p50: float
    p95: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Tokens a second: medians over blocks, `per_stream` over requests; None where unobserved."""

    aggregate: float | None
    per_stream: float | None
    e2e: float | None

    @property
    def is_known(self) -> bool:
        """True when there is any figure."""
        return any(value is not None for value in (self.aggregate, self.per_stream, self.e2e))


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Drafts of a cell; counts a target does not tell are None.

    Args:
        target_calls: decode forwards of the target.
        per_position: (drafted, accepted) at each draft position, 0 = first draft.
    """

    drafted: int | None
    accepted: int | None
    target_calls: int | None
    illegal: int | None
    per_position: tuple[tuple[int, int], ...]

    @property
    def rate(self) -> float | None:
        """Share of drafts accepted, 0 to 1; illegal drafts count as drafted."""
        if not self.drafted or self.accepted is None:
            return None
        return self.accepted / self.drafted

    @property
    def tokens_per_call(self) -> float | None:
        """Tokens committed for each decode forward of the target."""
        if not self.target_calls or self.accepted is None:
            return None
        return (self.target_calls + self.accepted) / self.target_calls

    @property
    def undrafted(self) -> int | None:
        """Target calls of a row that was given no draft."""
        if self.target_calls is None:
            return None
        return self.target_calls - (self.per_position[0][0] if self.per_position else 0)

    @property
    def histogram(self) -> tuple[int, ...] | None:
        """Target calls by how many drafts they accepted: none (or none drafted), one, two, ...

        A draft is accepted only behind an accepted one, so the counts by position tell it. None
        where the target calls are not told, or counts contradict each other.
        """
        if self.target_calls is None:
            return None
        reached = (self.target_calls, *(accepted for _, accepted in self.per_position), 0)
        counts = tuple(more - fewer for more, fewer in pairwise(reached))
        return counts if min(counts) >= 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Where the time of a cell's decode steps went on the host; seconds of a mean step.

    Args:
        steps: how many.
        step_s: the whole step.
        parts_s: its parts by name (harness.report.attribution.PARTS), `other` among them; they sum
            to step_s.
    """

    steps: int
    step_s: float
    parts_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """What the machine's memory allows, beside what was measured; None where unknown.

    Args:
        bytes_per_token: weights, keys and values that are read for each committed token.
        bandwidth_gb_s: measured speed of the memory, 10^9 bytes a second.
        bound_tok_s: tokens a second at which it would be reading all the time.
        share: measured aggregate speed over the bound.
    """

    bytes_per_token: float
    bandwidth_gb_s: float | None
    bound_tok_s: float | None
    share: float | None


@dataclass(frozen=True, slots=True)
class Conforming:
    """Replies that are what their schema asks for: `ok` of `n` prove `lower_bound` (95 %)."""

    n: int
    ok: int
    lower_bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """What a grammar costs in one cell.

    Args:
        overhead_pct: step time on the same forced ids with masks against without, percent more.
        free_ratio_pct: speed against the cell without grammar, which writes other text; 100 is
            equal.
        mask_us_per_token: mask time a token on the same forced ids.
    """

    overhead_pct: float | None
    free_ratio_pct: float | None
    mask_us_per_token: float | None


@dataclass(frozen=True, slots=True)
class Against:
    """A ratio with the name of the cell it is against.

    Args:
        figure: what is compared: aggregate, or e2e where one of both tells no decode steps.
        by_block: the ratio of each block that has both, by block.
        apart: blocks that have both and give no ratio, since one of the two was run again later.
    """

    baseline: str
    ratio: Ratio
    figure: str = "aggregate"
    by_block: tuple[float, ...] = ()
    apart: int = 0


@dataclass(frozen=True, slots=True)
class BlockRate:
    """Tokens a second of one cell in one block; `block` counts from 0."""

    block: int
    tok_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFigures:
    """All figures of one cell on one workload with one model.

    Args:
        lane_taken: of its requests; "" when none tells, `mixed` when they differ.
        num_blocks: blocks that finished.
        main: against the cell without its last mechanism; None where it has none.
        serial: against `serial`; None for `serial` itself.
        others: against its bare lane, the peers of its lane and its twin of a base, where main is
            not that already.
        client_delay: lateness of the client's events to the time between them; None in process.
        retries: requests that were sent again.
        drift: relative change of its speed from the first block to the last.
        block_rates: the speed that is compared, by block; empty for routing checks.
        refusals: why its timing cannot be compared with anything, one line each.
        step_time: None where nobody tells of decode steps.
        roofline: None where nobody tells what a step reads.
    """

    place: Place
    cell: CellRow
    lane_taken: str
    lane_reason: str
    num_blocks: int
    num_requests: int
    failed_requests: int
    empty_replies: int
    one_token_replies: int
    speed: Speed
    ttft: Spread | None
    ttft_visible: Spread | None
    main: Against | None
    serial: Against | None
    others: tuple[Against, ...]
    acceptance: Acceptance | None
    grammar: Grammar | None
    conforming: Conforming | None
    field_accuracy: float | None
    peak_mlx_bytes: int | None
    peak_rss_bytes: int | None
    client_delay: float | None
    retries: int
    drift: float | None
    block_rates: tuple[BlockRate, ...] = ()
    refusals: tuple[str, ...] = ()
    step_time: StepTime | None = None
    roofline: Roofline | None = None

    @property
    def ratios(self) -> tuple[Against, ...]:
        """Every ratio of the cell, each baseline once."""
        found = [item for item in (self.main, self.serial, *self.others) if item is not None]
        return tuple({item.baseline: item for item in reversed(found)}.values())[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One model on one workload.

    Args:
        noise: the baseline against its own repeat (A/A), None where it was not repeated.
    """

    model: str
    workload: WorkloadRow
    cells: tuple[CellFigures, ...]
    noise: Against | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSummary:
    """One gate over the whole run: the worst status, and the sums."""

    name: str
    status: GateStatus
    observed: float | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Something that went wrong, with the reply that shows it; `block` counts from 0."""

    place: Place
    block: int
    prompt_id: str
    what: str
    quote: str


@dataclass(frozen=True, slots=True)
class Skip:
    """A pair that was not run, and why."""

    place: Place
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NearTie:
    """A place where a reply parts from its reference as floating point allows."""

    place: Place
    block: int
    prompt_id: str
    reference: str
    position: int
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """A reply that is not its reference's although it has to be, and where the two part.

    Args:
        trial_id, block: where it was seen first; `block` counts from 0.
        position: index of the first token that differs, end included.
        token, reference_token: the ids there, None where that reply ends.
        is_judged: False where the oracle was not asked.
        judged_at: index of the token that the oracle would not have emitted.
        gap: how far that token stays behind the oracle's; None where that is unknown.
        near_tie_below: gaps below it would be a near-tie.
        before: the end of what both texts begin with.
        reply, reference_reply: how each goes on from there, cut short; "" where it ends.
    """

    trial_id: str
    block: int
    prompt_id: str
    position: int
    token: int | None
    reference_token: int | None
    is_judged: bool
    judged_at: int | None
    gap: float | None
    near_tie_below: float | None
    before: str
    reply: str
    reference_reply: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Partings:
    """The replies of one cell that part from their reference against its promise.

    Args:
        n: how many; `shown` has the first of them.
    """

    place: Place
    reference: str
    n: int
    shown: tuple[Parting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Everything a report of one run says.

    Args:
        exit_code: as stored, else what the gates come to.
        unquotable_reasons: why nobody should quote its timing; empty when quotable.
        refusals: why the session gives no timing verdict, one line each.
        warnings: what the machine's samples warned of, each once.
        machine_refusals: those of the refusals that are the machine's.
        machine: what its samples say in all, one line each; empty for runs without any.
    """

    run: RunRow
    exit_code: int
    unquotable_reasons: tuple[str, ...]
    refusals: tuple[str, ...]
    gates: tuple[GateRow, ...]
    summaries: tuple[GateSummary, ...]
    groups: tuple[Group, ...]
    failures: tuple[Failure, ...]
    skips: tuple[Skip, ...]
    near_ties: tuple[NearTie, ...]
    warnings: tuple[str, ...]
    environment: Mapping[str, Any]
    machine_refusals: tuple[str, ...] = ()
    machine: tuple[str, ...] = ()
    partings: tuple[Partings, ...] = ()

    @property
    def is_quotable(self) -> bool:
        """True when there is no reason against quoting it."""
        return not self.unquotable_reasons

    @property
    def cells(self) -> tuple[CellFigures, ...]:
        """The figures of every cell, group by group."""
        return tuple(cell for group in self.groups for cell in group.cells)
