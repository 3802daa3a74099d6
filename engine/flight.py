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
from engine.plan import StepPlan
from engine.sampler import Draw, adjust, choose


@dataclass(slots=True)
class Flight:
    """A launched step.

    Args:
        drafts: legal drafts of each slot.
        logits: [rows * width, vocab], None when the step samples nothing.
        width: positions of each row, padding included.
    """

    plan: StepPlan
    drafts: tuple[tuple[int, ...], ...]
    logits: mx.array | None
    width: int
    started_s: float
    draft_s: float = 0.0
    mask_s: float = 0.0
    mask_positions: int = 0

    @property
    def is_over(self) -> bool:
        """True when no row is left that could take a token from it."""
        return all(slot.sequence.is_finished for slot in self.plan.slots)


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
    return choose(scores, draws).reshape(len(flight.plan.slots), flight.width)


def _draws(flight: Flight) -> list[Draw]:
    draws: list[Draw] = []
    for slot, draft in zip(flight.plan.slots, flight.drafts, strict=True):
        sequence = slot.sequence
        params = sequence.request.sampling
        for offset in range(flight.width):
            history = () if params.is_plain else (*sequence.ids, *draft[:offset])
            position = sequence.num_emitted + offset
            draws.append(Draw(params, sequence.seed, position, history, sequence.num_prompt))
    return draws


def _masks(flight: Flight, vocab_size: int) -> np.ndarray | None:
    """Return the bitmask of all positions, [rows * width, words], None without a grammar."""
    jobs: list[MaskJob] = []
    owners: list[int] = []
    for row, (slot, draft) in enumerate(zip(flight.plan.slots, flight.drafts, strict=True)):
        matcher = slot.sequence.matcher
        if matcher is not None and not slot.sequence.is_finished:
            jobs.append(MaskJob(matcher, row * flight.width, draft))
            owners.append(row)
    if not jobs:
        return None
    started_s = time.perf_counter()
    rows = len(flight.plan.slots) * flight.width
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
    flight.drafts = tuple(() if row in owners else draft for row, draft in enumerate(flight.drafts))
    for index, error in fill_masks([replace(job, draft=()) for job in jobs], bitmask):
        flight.plan.slots[owners[index]].sequence.error = error
