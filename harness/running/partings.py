"""Which replies the oracle judges: those that part from their reference, and sampled ones.

Batch row and serial row have to be equal, and spec and plain; a sampled reply under rejection
acceptance promises its law instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.judging.law import portions
from harness.planning.matrix import Pair
from harness.sampling import always_promises_ids, params_of, promises_ids
from harness.store import RequestRow, TrialRow
from harness.store.replies import ReadReplies, Reply
from harness.trials.target import Parting, SampledReply

ReadRequests = Callable[[TrialRow], Sequence[RequestRow]]
"""Returns the requests of a trial by position."""

Answers = Mapping[str, Reply]
"""Prompt id -> the reply to it."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A trial that ran, with the pair it belongs to; what it saw is in the database."""

    pair: Pair
    trial: TrialRow

    @property
    def key(self) -> tuple[str, ...]:
        """Model, workload and cell."""
        return (self.pair.model, self.pair.workload.name, self.pair.cell.name)


def find_partings(finished: Sequence[Finished], read: ReadReplies) -> Iterator[Parting]:
    """Yield the replies of one model on one workload that differ from their reference by ids.

    Compared is within a block, and one block is held at a time; a prompt that the reference did
    not answer there is not compared.
    """
    blocks: dict[int, list[Finished]] = {}
    for item in finished:
        blocks.setdefault(item.trial.block, []).append(item)
    for block in blocks.values():
        references = {item.pair.reference for item in block}
        answers = {
            name: _answers(read(item.trial))
            for item in block
            if (name := item.pair.cell.name) in references
        }
        for item in block:
            expected = answers.get(item.pair.reference or "")
            if expected:
                yield from _partings(item, read(item.trial), expected)


def find_sampled(finished: Sequence[Finished], read: ReadRequests) -> Iterator[SampledReply]:
    """Yield the replies of one model on one workload whose draws are judged by their law."""
    by_cell: dict[str, list[Finished]] = {}
    for item in sorted(finished, key=lambda item: item.trial.block):
        if not always_promises_ids(item.pair.cell.config.acceptance):
            by_cell.setdefault(item.pair.cell.name, []).append(item)
    for items in by_cell.values():
        yield from _sampled(items, read)


def _sampled(finished: Sequence[Finished], read: ReadRequests) -> Iterator[SampledReply]:
    """Yield what is judged of one cell."""
    pair = finished[0].pair
    prompts = {prompt.id: prompt for prompt in pair.workload.prompts}
    due = (
        row
        for item in finished
        for row in _told(read(item.trial))
        if not promises_ids(pair.cell.config.acceptance, row)
    )
    for portion in portions(due):
        yield SampledReply(
            row=portion.row,
            cell=pair.cell,
            workload=pair.workload,
            prompt=prompts[portion.row.prompt_id],
            max_tokens=pair.max_tokens,
            draws=portion.draws,
        )


def _partings(item: Finished, replies: Sequence[Reply], expected: Answers) -> Iterator[Parting]:
    pair = item.pair
    prompts = {prompt.id: prompt for prompt in pair.workload.prompts}
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for reply in _answers_told(replies):
        reference = expected.get(reply.prompt_id)
        if reference is None or not promises_ids(pair.cell.config.acceptance, reply):
            continue
        if reply.has_ids_of(reference):
            continue
        ids = reply.token_ids or ()
        if (reply.prompt_id, ids) in seen:
            continue
        seen.add((reply.prompt_id, ids))
        yield Parting(
            trial_id=reply.trial_id,
            reference=pair.reference or "",
            cell=pair.cell,
            workload=pair.workload,
            prompt=prompts[reply.prompt_id],
            max_tokens=pair.max_tokens,
            reply=ids,
            expected=reference.token_ids or (),
            reply_ended=reply.finish_reason == "stop",
            expected_ended=reference.finish_reason == "stop",
            sampling=params_of(reply),
        )


def _answers(replies: Iterable[Reply]) -> Answers:
    return {reply.prompt_id: reply for reply in _answers_told(replies)}


def _answers_told(replies: Iterable[Reply]) -> Iterator[Reply]:
    """Yield the measured replies that went well and have ids."""
    return (reply for reply in replies if reply.status == "ok" and reply.ids is not None)


def _told(rows: Iterable[RequestRow]) -> Iterator[RequestRow]:
    """Yield, as _answers_told does, of requests."""
    for row in rows:
        if row.phase == "measured" and row.status == "ok" and row.token_ids is not None:
            yield row
