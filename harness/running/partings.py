"""Which replies the oracle judges: those that part from their reference, and sampled ones.

Batch row and serial row have to be equal, and spec and plain; a sampled reply under rejection
acceptance promises its law instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.judging.law import portions
from harness.planning.matrix import Pair
from harness.sampling import params_of, promises_ids
from harness.store.rows import RequestRow, TrialRecord
from harness.trials.target import Parting, SampledReply

Replies = Mapping[str, RequestRow]
"""Prompt id -> the reply to it."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A trial that ran, with the pair it belongs to."""

    pair: Pair
    record: TrialRecord

    @property
    def key(self) -> tuple[str, ...]:
        """Model, workload and cell."""
        return (self.pair.model, self.pair.workload.name, self.pair.cell.name)


def find_partings(finished: Sequence[Finished]) -> tuple[Parting, ...]:
    """Return the replies of one model on one workload that differ from their reference by ids.

    Compared is within a block; a prompt that the reference did not answer there is not.
    """
    answers = {
        (trial.record.trial.block, trial.pair.cell.name): {
            row.prompt_id: row for row in _comparable(trial.record)
        }
        for trial in finished
    }
    return tuple(
        parting
        for trial in finished
        if trial.pair.reference is not None
        for parting in _partings(
            trial, answers.get((trial.record.trial.block, trial.pair.reference), {})
        )
    )


def find_sampled(finished: Sequence[Finished]) -> tuple[SampledReply, ...]:
    """Return the replies of one model on one workload whose draws are judged by their law."""
    by_cell: dict[str, list[Finished]] = {}
    for trial in sorted(finished, key=lambda item: item.record.trial.block):
        by_cell.setdefault(trial.pair.cell.name, []).append(trial)
    return tuple(
        SampledReply(
            row=portion.row,
            cell=pair.cell,
            workload=pair.workload,
            prompt=next(item for item in pair.workload.prompts if item.id == portion.row.prompt_id),
            max_tokens=pair.max_tokens,
            draws=portion.draws,
        )
        for trials in by_cell.values()
        for pair in [trials[0].pair]
        for portion in portions(
            row
            for trial in trials
            for row in _comparable(trial.record)
            if not promises_ids(pair.cell.config.acceptance, row)
        )
    )


def _partings(trial: Finished, expected: Replies) -> Iterator[Parting]:
    pair = trial.pair
    reference_name = pair.reference or ""
    prompts = {prompt.id: prompt for prompt in pair.workload.prompts}
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for row in _comparable(trial.record):
        reference = expected.get(row.prompt_id)
        if reference is None or not promises_ids(pair.cell.config.acceptance, row):
            continue
        ids, expected_ids = row.token_ids or (), reference.token_ids or ()
        if ids == expected_ids:
            continue
        if (row.prompt_id, ids) in seen:
            continue
        seen.add((row.prompt_id, ids))
        yield Parting(
            trial_id=row.trial_id,
            reference=reference_name,
            cell=pair.cell,
            workload=pair.workload,
            prompt=prompts[row.prompt_id],
            max_tokens=pair.max_tokens,
            reply=ids,
            expected=expected_ids,
            reply_ended=row.finish_reason == "stop",
            expected_ended=reference.finish_reason == "stop",
            sampling=params_of(row),
        )


def _comparable(record: TrialRecord) -> Iterator[RequestRow]:
    for row in record.requests:
        if row.phase == "measured" and row.status == "ok" and row.token_ids is not None:
            yield row
