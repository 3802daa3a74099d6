"""A step whose forward is on the device, and what its rows choose from the scores.

Everything here happens while that forward runs: the draws are laid out, the masks are filled, and
the choice of every position is built. Nothing waits for the device.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from engine.grammar.mask import MaskJob, apply_mask, fill_masks, words
from engine.plan import Slot, StepKind, StepPlan
from engine.sampler import IDLE, Draw, adjust, choose


@dataclass(slots=True)
class Flight:
    """A launched step.

    Args:
        drafts: legal drafts of each slot.
        logits: [rows * width, vocab] with the rows of the plan's range, None when the step
            samples nothing.
        width: columns of logits of each row.
        positions: token positions computed, padding included.
    """

    plan: StepPlan
    drafts: tuple[tuple[int, ...], ...]
    logits: mx.array | None
    width: int
    positions: int
    started_s: float
    draft_s: float = 0.0
    mask_s: float = 0.0
    mask_positions: int = 0

    @property
    def is_over(self) -> bool:
        """True when no row is left that could take a token from it."""
        return all(slot.sequence.is_finished for slot in self.plan.slots)

    @property
    def num_tokens(self) -> int:
        """Computed positions that are a row's tokens or drafts."""
        return sum(slot.num_known for slot in self.plan.slots) + sum(map(len, self.drafts))

    def column(self, slot: Slot) -> int:
        """Return the first column at which `slot` samples; a prompt chunk has one column."""
        return slot.num_known - 1 if self.plan.kind is StepKind.DECODE else 0


def select(flight: Flight) -> mx.array | None:
    """Build the choice of every position, [rows, width]; None when the step samples nothing.

    A row for which nothing is legal gets its `error` set; its choice means nothing.
    """
    if flight.logits is None:
        return None
    draws = _draws(flight)
    scores = adjust(flight.logits, draws)
    bitmask = _masks(flight, scores.shape[-1])
    if bitmask is not None:
        scores = apply_mask(scores, mx.array(bitmask))
    return choose(scores, draws).reshape(flight.plan.num_rows, flight.width)


def _draws(flight: Flight) -> list[Draw]:
    draws = [IDLE] * (flight.plan.num_rows * flight.width)
    for slot, draft in zip(flight.plan.slots, flight.drafts, strict=True):
        sequence = slot.sequence
        params = sequence.request.sampling
        first = flight.column(slot)
        for column in range(first, flight.width):
            offset = column - first
            history = () if params.is_plain else (*sequence.ids, *draft[:offset])
            position = sequence.num_emitted + offset
            draws[flight.plan.row(slot) * flight.width + column] = Draw(
                params, sequence.seed, position, history, sequence.num_prompt
            )
    return draws


def _masks(flight: Flight, vocab_size: int) -> np.ndarray | None:
    """Return the bitmask of all positions, [rows * width, words], None without a grammar."""
    jobs: list[MaskJob] = []
    owners: list[int] = []
    for owner, (slot, draft) in enumerate(zip(flight.plan.slots, flight.drafts, strict=True)):
        matcher = slot.sequence.matcher
        if matcher is not None and slot.samples and not slot.sequence.is_finished:
            row = flight.plan.row(slot) * flight.width + flight.column(slot)
            jobs.append(MaskJob(matcher, row, draft))
            owners.append(owner)
    if not jobs:
        return None
    started_s = time.perf_counter()
    rows = flight.plan.num_rows * flight.width
    bitmask = np.full((rows, words(vocab_size)), -1, dtype=np.int32)
    failed = [index for index, _ in fill_masks(jobs, bitmask)]
    if failed:
        _mask_undrafted(flight, [jobs[i] for i in failed], [owners[i] for i in failed], bitmask)
    flight.mask_s = time.perf_counter() - started_s
    flight.mask_positions = sum(1 + len(job.draft) for job in jobs)
    return bitmask


def _mask_undrafted(
    flight: Flight, jobs: list[MaskJob], owners: list[int], bitmask: np.ndarray
) -> None:
    """Mask rows again without their drafts: a draft's dead end is not the row's."""
    flight.drafts = tuple(
        () if owner in owners else draft for owner, draft in enumerate(flight.drafts)
    )
    for index, error in fill_masks([replace(job, draft=()) for job in jobs], bitmask):
        flight.plan.slots[owners[index]].sequence.error = error
