"""What one run records, as frozen values: one class a table, raw observations only.

Nothing here is computed from other rows. Times are seconds, sizes bytes, instants ISO 8601 in UTC.
A figure that was not observed is None; NaN and infinities are stored as NULL.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from ulid import ULID

RunStatus = Literal["pending", "running", "finished", "interrupted", "failed"]
TrialStatus = Literal["pending", "done", "failed", "skipped"]
CellKind = Literal["perf", "routing", "audit", "aa", "peer"]
Lane = Literal["serial", "batch"]
Phase = Literal["warmup", "measured"]
RequestStatus = Literal["ok", "error", "cancelled"]
CountSource = Literal["engine", "usage", "estimated"]
GateStatus = Literal["pass", "fail", "incomplete"]
Verdict = Literal["faster", "slower", "same", "unclear", "provisional"]


def new_id() -> str:
    """Return a new ULID: 26 characters, in the order of creation to the millisecond."""
    return str(ULID())


def utc_now() -> str:
    """Return the present instant as the database writes it, e.g. 2026-03-04T05:06:07.123456Z."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def content_hash(content: Mapping[str, Any]) -> str:
    """Return the hex sha256 of a JSON-like value, whatever the order of its keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One `fm run`, from plan to verdict.

    Args:
        run_id: a ULID, see new_id.
        tag: `feature-matrix[host]`, and the words of `--tag` after it.
        command: the command line that repeats the run.
        settings: what the command line chose, enough for `--resume` to rebuild the plan:
            cells, models, workloads, target, max_tokens, ...
        plan_hash: hash of everything that decides which trials run and how.
        environment: machine, versions, backend; kept once per content in `environments`.
        machine_refusals: why this machine's timing deserves no verdict (load, swap, power, ...),
            known before or during the run.
        unquotable_reasons: every reason, filled when the run ends; empty with `quotable` True.
    """

    run_id: str
    created_at: str
    tag: str
    command: str
    preset: str
    seed: int
    blocks: int
    prompts: int
    max_tokens: int | None = None
    target: str = "in-process"
    settings: Mapping[str, Any] = field(default_factory=dict)
    plan_hash: str = ""
    git_sha: str = ""
    git_dirty: bool = False
    environment: Mapping[str, Any] = field(default_factory=dict)
    machine_refusals: tuple[str, ...] = ()
    status: RunStatus = "pending"
    exit_code: int | None = None
    quotable: bool | None = None
    unquotable_reasons: tuple[str, ...] = ()
    finished_at: str | None = None

    @property
    def is_forced(self) -> bool:
        """True for a run that was to give verdicts on any machine."""
        return bool(self.settings.get("forced"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One set of weights as loaded; `digest` is "" where it is unknown."""

    name: str
    digest: str = ""
    source: str = ""
    dtype: str = ""
    vocab_size: int | None = None
    num_layers: int | None = None

    @property
    def key(self) -> str:
        """What trials refer to: the hash of the row."""
        return content_hash(
            {
                "name": self.name,
                "digest": self.digest,
                "source": self.source,
                "dtype": self.dtype,
                "vocab_size": self.vocab_size,
                "num_layers": self.num_layers,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRow:
    """One workload, addressed by the hash of its files.

    Args:
        max_tokens: the workload's own cap.
        is_constrained: True when its prompts carry a constraint.
        allows_truncation: True when finish "length" is no conformance failure.
    """

    content_hash: str
    name: str
    num_prompts: int | None = None
    max_tokens: int | None = None
    is_constrained: bool = False
    allows_truncation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRow:
    """One lane preset, addressed by the hash of all that defines it.

    Args:
        name: the canonical name, unique in a run (an A/A repeat is `serial@aa`).
        max_rows: requests decoded together, 1 in the serial lane.
        features: "spec", "fill", "grammar", in that order.
        expected_lane: the lane its requests must take, "" when that is not checked (peers).
        baseline: canonical name of the cell its ratio is computed against; for an A/A cell the
            cell it repeats; None for `serial` and for peers.
        reference: canonical name of the cell whose token ids its own must equal; None for none.
        bare: canonical name of its own lane without features, None when it is that itself.
    """

    content_hash: str
    name: str
    lane: Lane
    max_rows: int = 1
    features: tuple[str, ...] = ()
    kind: CellKind = "perf"
    settings: Mapping[str, Any] = field(default_factory=dict)
    expected_lane: str = ""
    baseline: str | None
    reference: str | None
    bare: str | None = None

    def has(self, feature: str) -> bool:
        """True when the cell uses `feature`."""
        return feature in self.features

    @property
    def acceptance(self) -> str:
        """When its drafts are accepted, a value of the engine's setting."""
        return str(self.settings.get("acceptance", "match"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One cell on one workload with one model in one block: the unit that is planned and resumed.

    Args:
        block: 0-based; every cell of a block runs the same prompts.
        order_in_block: 0-based place of its first turn in the shuffled order.
        model: ModelRow.key.
        workload: WorkloadRow.content_hash.
        cell: CellRow.content_hash.
        reason: why it was skipped or failed, one line.
        failed_before: why each earlier attempt at it failed, oldest first; all else in the row is
            of the last attempt alone.
        started_at, finished_at: of its first and its last turn; other trials ran between them.
        turns_s: all its turns, with what was not measured in them; None in runs of fm without
            turns, where nothing ran in between.
        wall_s: first submission to last finish of the measured requests, summed over its turns.
        tokens: emitted tokens of the measured requests.
        aggregate_tokens, aggregate_s: tokens committed by decode steps at full occupancy, and the
            time of those steps (prefill and drain excluded).
        decode_steps, step_s: decode steps and their summed time.
        mask_tokens: positions that got a grammar mask in those steps.
        plan_s ... commit_s: what the host spent on each part of those steps (engine.step_time);
            step_s has the remainder too. A run of fm without `plan_s` counted planning as draft_s.
        weight_bytes, kv_token_bytes, kv_row_bytes: what a step has to read: weights, one cached
            position of a row, and what a row reads whatever its length.
        replay_tokens, replay_plain_s, replay_masked_s, replay_mask_s: the replay of forced ids
            without and with masks; replay_mask_s is the mask time within it.
        client_delay_s, client_stream_s: over HTTP, bounds on how late the client read its events,
            summed, and the time its streams took, summed; None in process.
        retries: requests that were sent again after a 429.
        counters: what the engine counted of its own work (harness.trials.work), empty where
            nothing tells.
        lane_declared, lane_taken: "serial" or "batch"; `lane_reason` says why.
    """

    trial_id: str
    run_id: str
    block: int
    order_in_block: int
    model: str
    workload: str
    cell: str
    status: TrialStatus = "pending"
    reason: str = ""
    failed_before: tuple[str, ...] = ()
    started_at: str | None = None
    finished_at: str | None = None
    turns_s: float | None = None
    wall_s: float | None = None
    tokens: int | None = None
    aggregate_tokens: int | None = None
    aggregate_s: float | None = None
    decode_steps: int | None = None
    step_s: float | None = None
    mask_s: float | None = None
    mask_tokens: int | None = None
    draft_s: float | None = None
    plan_s: float | None = None
    build_s: float | None = None
    launch_s: float | None = None
    sample_s: float | None = None
    wait_s: float | None = None
    commit_s: float | None = None
    weight_bytes: int | None = None
    kv_token_bytes: int | None = None
    kv_row_bytes: int | None = None
    replay_tokens: int | None = None
    replay_plain_s: float | None = None
    replay_masked_s: float | None = None
    replay_mask_s: float | None = None
    peak_mlx_bytes: int | None = None
    peak_rss_bytes: int | None = None
    client_delay_s: float | None = None
    client_stream_s: float | None = None
    retries: int | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    lane_declared: str = ""
    lane_taken: str = ""
    lane_reason: str = ""

    @property
    def attempt(self) -> int:
        """Which attempt the row is of, from 0."""
        return len(self.failed_before)

    @property
    def is_told_steps(self) -> bool:
        """False where a server was measured that tells nothing of its decode steps."""
        return self.client_stream_s is None or self.decode_steps is not None

    @property
    def was_never_full(self) -> bool:
        """True where decode steps were told, and none of them had all rows of the cell."""
        return self.decode_steps is not None and self.aggregate_tokens == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One request of a trial, measured or warm-up, answered or failed.

    Args:
        position: 0-based order of submission within the trial, warm-up included; unique there.
        count_source: where completion_tokens comes from; "estimated" takes part in no comparison.
        ttft_s: request sent to the first token, reasoning included; None when none came.
        ttft_visible_s: request sent to the first visible text.
        last_token_s: request sent to the last token.
        e2e_s: request sent to its end.
        token_ids: emitted ids, None where the target does not tell them.
        sampling: temperature and so on, as sent.
        drafted, accepted, target_calls, illegal_drafts: None where speculation is off.
        conformance: a grade.Outcome value, None when the reply was not graded.
        unchecked_formats: formats of its schema that nothing could check (Grade has them).
        field_accuracy: share of the facts found in the reply, 0 to 1.
    """

    trial_id: str
    position: int
    prompt_id: str
    phase: Phase = "measured"
    status: RequestStatus = "ok"
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    count_source: CountSource = "engine"
    cached_tokens: int | None = None
    ttft_s: float | None = None
    ttft_visible_s: float | None = None
    last_token_s: float | None = None
    e2e_s: float | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    lane_taken: str = ""
    lane_reason: str = ""
    seed: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    drafted: int | None = None
    accepted: int | None = None
    target_calls: int | None = None
    illegal_drafts: int | None = None
    conformance: str | None = None
    conformance_detail: str = ""
    unchecked_formats: tuple[str, ...] = ()
    field_accuracy: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptRow:
    """Drafts of one trial at one draft position (0 = first draft), summed over its requests."""

    trial_id: str
    position: int = field(metadata={"column": "pos"})
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """All that one trial observed; stored in one transaction or not at all."""

    trial: TrialRow
    requests: tuple[RequestRow, ...] = ()
    accepts: tuple[AcceptRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceRow:
    """One place where a reply parts from its reference, as the engine's oracle judged it.

    The oracle is fed the reply itself (teacher forcing), so a reply may have several.

    Args:
        trial_id, prompt_id: the reply of the cell under test.
        reference: canonical name of the cell it must equal.
        position: index of the emitted token that differs; the reply's length when it ended there.
        gap: difference of the two best final scores there; below the epsilon it is a near-tie.
        epsilon: the largest gap a near-tie may have in this precision.
    """

    trial_id: str
    prompt_id: str
    reference: str
    position: int
    gap: float | None
    epsilon: float = 2e-4

    @property
    def is_near_tie(self) -> bool:
        """True when the two best scores were too close to tell apart."""
        return self.gap is not None and abs(self.gap) < self.epsilon


@dataclass(frozen=True, slots=True, kw_only=True)
class LawRow:
    """What the draws of one sampled reply say of the law they are due to, as the oracle sees it.

    Args:
        trial_id, position: the request.
        draws: draws that were judged, the end token one of them.
        impossible_at: index of the first token that the law excludes, None for none; what follows
            it was not judged.
        evidence: for each rival of the law, by its name, the sum of log a - log p over the tokens.
    """

    trial_id: str
    position: int
    draws: int
    impossible_at: int | None
    evidence: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionRow:
    """The state of the machine at one instant of a run.

    Args:
        phase: "preflight" before the first trial, "running" during trials, "trial" behind each,
            "end" behind the last.
        window_s: the time the shares are of; None where too little had passed for any.
        cores: CPUs this process may run on; the shares in cores are of these.
        ours_cores, others_cores: used by our processes, and by all others.
        heaviest: the others that used most: pid, name, cores.
        stolen_share: time the hypervisor took, of the time of all `cores`.
        throttled_share: scheduling periods in which the control group's quota was used up.
        memory_wait_share: time in which a task waited for memory.
        swapped_bytes: swapped in and out.
        heat_events: how often a CPU was slowed down because of heat.
        standing: what changes seldom, see harness.conditions.reading.Standing.
        warnings: what deserves mention there, one line each.
    """

    run_id: str
    sampled_at: str
    phase: str
    trial_id: str | None = None
    load_1m: float | None = None
    cpu_pct: float | None = None
    memory_available_bytes: int | None = None
    swap_used_bytes: int | None = None
    process_rss_bytes: int | None = None
    temperature_c: float | None = None
    frequency_mhz: float | None = None
    on_battery: bool | None = None
    window_s: float | None = None
    cores: int | None = None
    ours_cores: float | None = None
    others_cores: float | None = None
    heaviest: tuple[Mapping[str, Any], ...] = ()
    stolen_share: float | None = None
    throttled_share: float | None = None
    memory_wait_share: float | None = None
    swapped_bytes: int | None = None
    heat_events: int | None = None
    standing: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRow:
    """The verdict of one correctness gate on one cell; model, workload and cell are names.

    Args:
        name: conformance, identity, law, routing, acceptance or completeness.
        observed: the share that was as it must be, 0 to 1; None when nothing was seen.
        n: what was looked at: replies, draws, requests, drafts or trials.
        detail: one line for people.
    """

    run_id: str
    name: str
    status: GateStatus
    model: str = ""
    workload: str = ""
    cell: str = ""
    observed: float | None = None
    n: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """A ratio as it was judged when the run ended; the raw rows can always give it again."""

    run_id: str
    model: str
    workload: str
    cell: str
    baseline: str
    metric: str
    n: int
    estimate: float | None
    low: float | None
    high: float | None
    verdict: Verdict | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionRow:
    """That a run was written to a results page.

    Args:
        quotable: False when rows that are not quotable were written too, with these `reasons`.
        destination: the page, as it was named.
    """

    promotion_id: str
    run_id: str
    promoted_at: str
    quotable: bool
    reasons: tuple[str, ...]
    destination: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run with everything it is going to do; written before the first trial starts."""

    run: RunRow
    models: tuple[ModelRow, ...]
    workloads: tuple[WorkloadRow, ...]
    cells: tuple[CellRow, ...]
    trials: tuple[TrialRow, ...]
