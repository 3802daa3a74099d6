"""What is read back about one run: its rows, and what the views make of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from engine.errors import UnknownNameError
from harness.store.replies import ReadReplies
from harness.store.rows import (
    AcceptRow,
    CellRow,
    ConditionRow,
    DivergenceRow,
    GateRow,
    LawRow,
    ModelRow,
    RequestRow,
    RequestStatus,
    RunRow,
    RunStatus,
    TrialRow,
    WorkloadRow,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRow:
    """One figure of one cell, from view v_figure: nearest-rank percentiles over its observations.

    Args:
        figure: aggregate, e2e (tokens/s, one value a block); per_stream (tokens/s, one a request);
            ttft, ttft_visible (seconds, one a request); grammar_overhead (percent, one a block);
            mask_us (microseconds a token, one a block).
        n: observations.
    """

    model: str
    workload: str
    cell: str
    figure: str
    n: int
    low: float
    p50: float
    p95: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRow:
    """One finished trial, from view v_composition, with the same block's trial of its baseline.

    Args:
        aggregate_tok_s: tokens a second at full occupancy; None where nothing could be timed.
        ratio: aggregate_tok_s over the baseline's in the same block.
        estimated: requests whose token count is an estimate.
        failed: requests that ended in an error.
        cached_tokens: prompt tokens served from a prefix cache.
    """

    model: str
    workload: str
    cell: str
    block: int
    trial_id: str
    aggregate_tok_s: float | None
    e2e_tok_s: float | None
    baseline: str | None
    baseline_tok_s: float | None
    ratio: float | None
    estimated: int
    failed: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTotals:
    """Counts of one cell over all its blocks, from view v_cell; model to cell are names.

    Args:
        mean_length: cached tokens of a row, prompt and half of its reply, mean over reply tokens.
    """

    model: str
    workload: str
    cell: str
    planned: int
    done: int
    failed: int
    skipped: int
    pending: int
    requests: int
    failed_requests: int
    empty_replies: int
    one_token_replies: int
    tokens: int
    drafted: int | None
    accepted: int | None
    target_calls: int | None
    illegal_drafts: int | None
    graded: int
    conforming: int
    field_accuracy: float | None
    peak_mlx_bytes: int | None
    peak_rss_bytes: int | None
    mean_length: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptPoint:
    """Drafts of one cell at one draft position, from view v_accept_curve."""

    model: str
    workload: str
    cell: str
    position: int = field(metadata={"column": "pos"})
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyGroup:
    """Measured replies of one cell that are alike in these columns, from view v_replies."""

    model: str
    workload: str
    cell: str
    status: RequestStatus
    lane_taken: str
    lane_reason: str
    conformance: str | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedReply:
    """A measured reply with something wrong, from view v_failed_reply.

    It failed, or it does not conform and was made under a grammar.
    """

    trial_id: str
    position: int
    prompt_id: str
    status: RequestStatus
    conformance: str | None
    conformance_detail: str
    error: str | None
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedReply:
    """A reply that is not its reference's although it has to be, and what it had to be.

    Args:
        trial_id, block: where it was seen first.
        token_ids, text: of the reply.
        reference_ids, reference_text: of the reply of the reference cell in the same block.
        judged: the place that is no near-tie; None where the oracle was not asked.
    """

    trial_id: str
    block: int
    prompt_id: str
    token_ids: tuple[int, ...]
    reference_ids: tuple[int, ...]
    text: str | None
    reference_text: str | None
    judged: DivergenceRow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedCell:
    """The replies of one cell that part from their reference against its promise.

    Args:
        reference: canonical name of the cell whose token ids they must equal.
        n: how many there are; blocks that repeat a pair of replies count once.
        first: some of them, by block.
    """

    model: str
    workload: str
    cell: str
    reference: str
    n: int
    first: tuple[PartedReply, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """Everything stored about one run, in a fixed order: same rows, same value.

    Args:
        requests, accepts: single observations; empty where `read_replies` is there instead.
        figures, blocks, totals, accept_curve, replies, failed: what the views say of it.
        parted: cells whose replies are not their reference's, each with some of these.
        read_replies: reads single replies while the store is open, for who needs them; None where
            `requests` holds them all.
    """

    run: RunRow
    models: tuple[ModelRow, ...]
    workloads: tuple[WorkloadRow, ...]
    cells: tuple[CellRow, ...]
    trials: tuple[TrialRow, ...]
    requests: tuple[RequestRow, ...]
    accepts: tuple[AcceptRow, ...]
    divergences: tuple[DivergenceRow, ...]
    laws: tuple[LawRow, ...]
    conditions: tuple[ConditionRow, ...]
    gates: tuple[GateRow, ...]
    figures: tuple[FigureRow, ...]
    blocks: tuple[BlockRow, ...]
    totals: tuple[CellTotals, ...]
    accept_curve: tuple[AcceptPoint, ...]
    replies: tuple[ReplyGroup, ...]
    failed: tuple[FailedReply, ...]
    parted: tuple[PartedCell, ...] = ()
    read_replies: ReadReplies | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs are listed: those with `tag` in their tag, of a model and a status; "" for any."""

    tag: str = ""
    model: str = ""
    status: str = ""

    def __post_init__(self) -> None:
        known = get_args(RunStatus)
        if self.status and self.status not in known:
            raise UnknownNameError("status", self.status, known)


@dataclass(frozen=True, slots=True)
class RunNames:
    """What a run is about, by name."""

    models: tuple[str, ...]
    workloads: tuple[str, ...]
    cells: tuple[str, ...]
