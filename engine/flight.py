"""A step whose forward is on the device, and what its rows choose from the scores.

Everything here happens while that forward runs: the draws are laid out, the masks are filled, and
the choice of every position is built. Nothing waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from engine.grammar.mask import MaskJob, apply_mask, fill_masks, words
from engine.plan import StepPlan
from engine.rejection import RowDraft, acceptance_uniforms, judge, law, lay_out
from engine.sampler import Draw, adjust, choose, gumbel_noise


@dataclass(frozen=True, slots=True)
class Draft:
    """The part of a proposal that a step judges.

    Args:
        ids: drafts that are fed and may be accepted.
        tail: the draft behind them, or nothing: the grammar forbids it, ends with it, or knows no
            way on. It is not fed; `rejection` may choose it as the token behind `ids`. To forget
            it would prefer the tokens that the drafter's law finds unlikely.
        scores: the drafter's laws, [len(ids) + len(tail), vocab], None for one-hot laws.
    """

    ids: tuple[int, ...] = ()
    tail: tuple[int, ...] = ()
    scores: mx.array | None = None

    @property
    def judged(self) -> tuple[int, ...]:
        """Every draft that may be the choice at its position."""
        return self.ids + self.tail

    def unfed(self) -> Draft:
        """Return the first draft alone, as a tail."""
        return Draft((), self.judged[:1], None if self.scores is None else self.scores[:1])


@dataclass(slots=True)
class Flight:
    """A launched step.

    Args:
        drafts: what is judged for each slot.
        logits: [rows * width, vocab], None when the step samples nothing.
        width: positions of each row, padding included.
    """

    plan: StepPlan
    drafts: tuple[Draft, ...]
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


def select(flight: Flight, acceptance: str) -> mx.array | None:
    """Build the choice of every position, [rows, width]; None when the step samples nothing.

    A draft is accepted where it is the choice; `acceptance`, a name in CHOICES, says how to choose.
    A row for which nothing is legal gets its `error` set; its choice means nothing.
    """
    if flight.logits is None:
        return None
    draws = _draws(flight)
    scores = adjust(flight.logits, draws)
    bitmask = _masks(flight, scores.shape[-1])
    if bitmask is not None:
        scores = apply_mask(scores, mx.array(bitmask))
    tokens = CHOICES[acceptance](flight, scores, draws)
    return tokens.reshape(len(flight.plan.slots), flight.width)


def _by_match(_flight: Flight, scores: mx.array, draws: Sequence[Draw]) -> mx.array:
    """Let the target choose, whatever was drafted."""
    return choose(scores, draws)


def _by_rejection(flight: Flight, scores: mx.array, draws: Sequence[Draw]) -> mx.array:
    """Let the draft be the choice with min(1, p/q), another token otherwise."""
    drafts = [
        RowDraft(row, 0, draft.judged, draft.scores) for row, draft in enumerate(flight.drafts)
    ]
    is_drawn = any(draw.params.temperature for draw in draws)
    if not is_drawn or not any(draft.ids for draft in drafts):
        return choose(scores, draws)
    shape, vocab_size = (len(drafts), flight.width), scores.shape[-1]
    return judge(
        law(scores, draws).reshape(*shape, vocab_size),
        lay_out(drafts, *shape, vocab_size),
        acceptance_uniforms(draws).reshape(shape),
        gumbel_noise(draws, vocab_size).reshape(*shape, vocab_size),
    )


CHOICES: dict[str, Callable[[Flight, mx.array, Sequence[Draw]], mx.array]] = {
    "match": _by_match,
    "rejection": _by_rejection,
}


def _draws(flight: Flight) -> list[Draw]:
    draws: list[Draw] = []
    for slot, draft in zip(flight.plan.slots, flight.drafts, strict=True):
        sequence = slot.sequence
        params = sequence.request.sampling
        for offset in range(flight.width):
            history = () if params.is_plain else (*sequence.ids, *draft.ids[:offset])
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
            jobs.append(MaskJob(matcher, row * flight.width, draft.ids))
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
    flight.drafts = tuple(
        draft.unfed() if row in owners else draft for row, draft in enumerate(flight.drafts)
    )
    for index, error in fill_masks([replace(job, draft=()) for job in jobs], bitmask):
        flight.plan.slots[owners[index]].sequence.error = error
