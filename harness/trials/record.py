"""From what a trial saw to the rows of the eval database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.request import Completion, FinishReason, SamplingParams
from harness.judging.grade import grade_reply
from harness.sampling import stored
from harness.store.rows import AcceptRow, Phase, RequestRow, RequestStatus, TrialRow
from harness.trials.clock import StepTally, TokenTimes
from harness.trials.target import TrialJob
from harness.workloads.workload import Prompt

STATUSES: dict[FinishReason, RequestStatus] = {
    FinishReason.STOP: "ok",
    FinishReason.LENGTH: "ok",
    FinishReason.CANCELLED: "cancelled",
    FinishReason.ERROR: "error",
}


@dataclass(frozen=True, slots=True)
class Served:
    """One finished request and when its tokens came."""

    completion: Completion
    times: TokenTimes


def reply_rows(
    job: TrialJob,
    prompts: Sequence[Prompt],
    served: Sequence[Served],
    phase: Phase = "measured",
    start: int = 0,
) -> list[RequestRow]:
    """Return the rows of a trial's replies, graded where they are measured.

    Args:
        prompts, served: in the order of submission.
        start: position of the first one in the trial.
    """
    return [
        _reply_row(job, prompt, item, phase, position)
        for position, (prompt, item) in enumerate(zip(prompts, served, strict=True), start=start)
    ]


def _reply_row(
    job: TrialJob, prompt: Prompt, served: Served, phase: Phase, position: int
) -> RequestRow:
    completion = served.completion
    row = request_row(
        job.trial,
        position,
        prompt,
        completion,
        served.times,
        speculates=job.cell.key.has("spec"),
        sampling=job.sampling.params(job.trial.block, prompt.id),
        phase=phase,
    )
    if phase == "warmup":
        return row
    conformance = completion.conformance
    accepted = None if conformance is None else conformance != "failed"
    return graded(row, prompt, is_accepting=accepted)


def request_row(
    trial: TrialRow,
    position: int,
    prompt: Prompt,
    completion: Completion,
    times: TokenTimes,
    *,
    speculates: bool,
    sampling: SamplingParams,
    phase: Phase = "measured",
) -> RequestRow:
    """Return the row of one finished request; figures it does not have stay None."""
    return RequestRow(
        trial_id=trial.trial_id,
        position=position,
        prompt_id=prompt.id,
        phase=phase,
        status=STATUSES[completion.finish_reason],
        finish_reason=completion.finish_reason.value,
        prompt_tokens=completion.prompt_tokens,
        completion_tokens=len(completion.token_ids),
        cached_tokens=completion.cached_tokens,
        ttft_s=times.since_submission(times.first_token_s),
        ttft_visible_s=times.since_submission(times.first_text_s),
        last_token_s=times.since_submission(times.last_token_s),
        e2e_s=times.since_submission(times.ended_s),
        text=completion.text,
        token_ids=completion.token_ids,
        lane_taken=str(completion.lane),
        lane_reason=completion.lane_reason,
        seed=completion.seed,
        sampling=stored(sampling),
        drafted=completion.drafted if speculates else None,
        accepted=completion.accepted if speculates else None,
        target_calls=completion.target_calls if speculates else None,
        illegal_drafts=completion.illegal_drafts if speculates else None,
        error=completion.error,
    )


def graded(row: RequestRow, prompt: Prompt, is_accepting: bool | None) -> RequestRow:
    """Return the row with its grade, where the prompt has a schema to grade against.

    Args:
        is_accepting: whether the matcher accepted the end, None for a reply without one.
    """
    if prompt.schema is None:
        return row
    grade = grade_reply(
        row.text,
        row.finish_reason,
        prompt.schema,
        expected=prompt.expected,
        is_accepting=is_accepting,
        error=row.error,
    )
    return replace(
        row,
        conformance=grade.outcome.value,
        conformance_detail=grade.detail,
        unchecked_formats=grade.unchecked_formats,
        field_accuracy=grade.field_accuracy,
    )


def filled_trial(
    trial: TrialRow, rows: Sequence[RequestRow], tally: StepTally | None, wall_s: float
) -> TrialRow:
    """Return the planned row with the sums of a trial that ran to its end.

    Args:
        tally: None where nobody tells of decode steps.
    """
    measured = [row for row in rows if row.phase == "measured"]
    lane, reason = common_lane(rows)
    told = replace(
        trial,
        status="done",
        wall_s=wall_s,
        tokens=sum(row.completion_tokens or 0 for row in measured),
        lane_taken=lane,
        lane_reason=reason,
    )
    if tally is None:
        return told
    return replace(
        told,
        aggregate_tokens=tally.full_tokens,
        aggregate_s=tally.full_s,
        decode_steps=tally.steps,
        step_s=tally.seconds,
        mask_tokens=tally.masked,
        plan_s=tally.parts_s.get("plan"),
        draft_s=tally.parts_s.get("draft"),
        build_s=tally.parts_s.get("build"),
        launch_s=tally.parts_s.get("launch"),
        mask_s=tally.parts_s.get("mask"),
        sample_s=tally.parts_s.get("sample"),
        wait_s=tally.parts_s.get("wait"),
        commit_s=tally.parts_s.get("commit"),
    )


def common_lane(rows: Iterable[RequestRow]) -> tuple[str, str]:
    """Return the lane of all measured requests and why it was taken, "" where they differ."""
    lanes = sorted({(row.lane_taken, row.lane_reason) for row in rows if row.phase == "measured"})
    return lanes[0] if len(lanes) == 1 else ("", f"{len(lanes)} lanes were taken")


def with_step_bytes(trial: TrialRow, told: Mapping[str, int | None]) -> TrialRow:
    """Return the row with what a step has to read.

    Args:
        told: the fields of the engine's StepBytes; empty where nobody tells.
    """
    return replace(
        trial,
        weight_bytes=told.get("weights"),
        kv_token_bytes=told.get("kv_per_token"),
        kv_row_bytes=told.get("kv_per_row"),
    )


def accept_rows(trial: TrialRow, completions: Sequence[Completion]) -> tuple[AcceptRow, ...]:
    """Return the drafts of all completions, summed by position."""
    drafted = _summed([item.drafted_by_position for item in completions])
    accepted = _summed([item.accepted_by_position for item in completions])
    return tuple(
        AcceptRow(
            trial_id=trial.trial_id,
            position=position,
            drafted=count,
            accepted=accepted[position] if position < len(accepted) else 0,
        )
        for position, count in enumerate(drafted)
    )


def _summed(counts: Sequence[Sequence[int]]) -> list[int]:
    width = max((len(row) for row in counts), default=0)
    return [sum(row[place] for row in counts if place < len(row)) for place in range(width)]
