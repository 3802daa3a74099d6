"""A step whose forward is on the device, and what its rows choose from the scores.

Everything a Selector does happens while that forward runs: positions are laid out, masks filled,
and the choice of every position is built. Nothing waits for the device but `Flight.read`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from engine import arrays
from engine.grammar.mask import MaskJob, apply_mask, bar_tokens, bits_of, fill_masks
from engine.logprobs import Scored, score
from engine.plan import Slot, StepKind, StepPlan
from engine.rejection import RowDraft, acceptance_uniforms, judge, law, lay_out
from engine.request import TokenLogprobs
from engine.row_params import Draws, Records, RowParams
from engine.sampler import Adjustment, adjust, choose, gumbel_noise
from engine.sequence import Sequence
from engine.step_time import StepTimer


@dataclass(frozen=True, slots=True)
class Draft:
    """The part of a proposal that a step judges.

    Args:
        ids: drafts that are fed and may be accepted.
        tail: the draft behind them, or nothing: the grammar forbids it, ends with it or knows no
            way on, or the step is too narrow. It is not fed; `rejection` may choose it as the token
            behind `ids`. To forget it would prefer the tokens that the drafter finds unlikely.
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
        drafts: what is judged for each slot; a row whose draft has no mask loses it.
        counts: tokens fed to each row, idle ones included, [rows].
        logits: [rows * width, vocab] with the rows of the plan's range, None when the step
            samples nothing.
        width: columns of logits of each row.
        positions: token positions computed, padding included.
        unread: what to wait for when the step samples nothing; None leaves that to later steps.
        scored: log-probabilities on the device, of the rows that ask.
        values: the same once read, as `scored` has them.
        logprobs: the same once taken: row -> one entry a sampled position.
    """

    plan: StepPlan
    drafts: tuple[Draft, ...]
    counts: tuple[int, ...]
    logits: mx.array | None
    width: int
    positions: int
    started_s: float
    unread: mx.array | None = None
    mask_positions: int = 0
    scored: Scored | None = None
    scored_rows: tuple[int, ...] = ()
    values: list[NDArray[Any]] = field(default_factory=list)
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """True when no row is left that could take a token from it."""
        return all(slot.sequence.is_finished for slot in self.plan.slots)

    def column(self, slot: Slot) -> int:
        """Return the first column at which `slot` samples; a prompt chunk has one column."""
        return slot.num_known - 1 if self.plan.kind is StepKind.DECODE else 0

    def read(self, tokens: mx.array | None) -> list[list[int]] | None:
        """Wait for the choices, and in the same wait for what rows ask to know about them.

        Args:
            tokens: what was selected; None when the step samples nothing, then so is the answer.
        """
        if tokens is None:
            if self.unread is not None:
                arrays.wait(self.unread)
            return None
        if self.scored is None:
            return arrays.read_tokens(tokens)
        chosen, *self.values = arrays.read(tokens, *self.scored.arrays)
        rows: list[list[int]] = chosen.tolist()
        return rows

    def take_logprobs(self) -> None:
        """Fill `logprobs` with what was read."""
        if self.scored is not None:
            for row, entry in zip(self.scored_rows, self.scored.report(self.values), strict=True):
                self.logprobs.setdefault(row, []).append(entry)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the rows of a step are sampled; rows without work have no such position.

    Args:
        records: parameters of each row, [rows].
        positions: index among the row's emitted tokens that each column chooses, [rows, width].
        is_sampled: whether a column is chosen from, [rows, width].
    """

    records: Records
    positions: NDArray[np.int64]
    is_sampled: NDArray[np.bool_]

    @property
    def draws(self) -> Draws:
        """The draws of all columns; those that are not sampled are greedy, which costs least."""
        records = np.repeat(self.records, self.positions.shape[1])
        records["is_greedy"] |= ~self.is_sampled.ravel()
        return Draws(records, self.positions.ravel())

    @property
    def barred(self) -> NDArray[np.int64]:
        """Which of all columns, row by row, come before the row's `min_tokens`."""
        is_early = self.positions < self.records["min_tokens"][:, None]
        return np.flatnonzero(self.is_sampled & is_early)

    @property
    def asking(self) -> NDArray[np.int64]:
        """Which of all columns, row by row, need log-probabilities."""
        return np.flatnonzero(self.is_sampled & (self.records["top_logprobs"] >= 0)[:, None])


class Selector:
    """Chooses the tokens of a step; knows the sampling parameters of every slot.

    Args:
        eos_ids: end tokens, illegal before a row's `min_tokens`.
        acceptance: when a draft is the choice at its position, a name in CHOICES.
        timer: told how long masks take.
    """

    def __init__(
        self,
        vocab_size: int,
        eos_ids: Iterable[int],
        num_slots: int,
        acceptance: str = "match",
        timer: StepTimer | None = None,
    ) -> None:
        self._choose = CHOICES[acceptance]
        self._timer = timer or StepTimer()
        self._params = RowParams(num_slots)
        self._end_bits = bits_of(eos_ids, vocab_size)

    def leave(self, sequence: Sequence) -> None:
        """Forget a row."""
        self._params.leave(sequence)

    def select(self, flight: Flight) -> mx.array | None:
        """Build the choice of every position, [rows, width]; None when the step samples nothing.

        A row for which nothing is legal gets its `error` set; its choice means nothing.
        """
        if flight.logits is None:
            return None
        layout = self._layout(flight)
        scores = adjust(flight.logits, _adjustments(flight, layout))
        bitmask = self._masks(flight, layout)
        if bitmask is not None:
            scores = apply_mask(scores, mx.array(bitmask))
        tokens = self._choose(flight, scores, layout.draws)
        _score(flight, layout, tokens)
        return tokens.reshape(-1, flight.width)

    def _layout(self, flight: Flight) -> Layout:
        assert flight.logits is not None
        first, num_rows = flight.plan.first, flight.plan.num_rows
        live = [
            (slot, draft)
            for slot, draft in zip(flight.plan.slots, flight.drafts, strict=True)
            if slot.samples and not slot.sequence.is_finished
        ]
        self._params.seat((slot.index, slot.sequence) for slot, _ in live)
        emitted, start, length = np.zeros((3, num_rows), dtype=np.int64)
        rows = [flight.plan.row(slot) for slot, _ in live]
        emitted[rows] = [slot.sequence.num_emitted for slot, _ in live]
        start[rows] = [flight.column(slot) for slot, _ in live]
        length[rows] = [1 + len(draft.ids) for _, draft in live]
        ahead = np.arange(flight.width) - start[:, None]
        return Layout(
            self._params.records(first, num_rows),
            emitted[:, None] + ahead,
            (ahead >= 0) & (ahead < length[:, None]),
        )

    def _masks(self, flight: Flight, layout: Layout) -> NDArray[np.int32] | None:
        """Return the bitmask of all columns, [rows * width, words]; None when all is legal.

        A grammar that leaves nothing but the end wins over `min_tokens`.
        """
        jobs, barred = _mask_jobs(flight), layout.barred
        if not jobs and not len(barred):
            return None
        self._timer.lap("sample")
        bitmask = np.full((layout.positions.size, len(self._end_bits)), -1, dtype=np.int32)
        _fill(flight, jobs, bitmask)
        if len(barred):
            bar_tokens(bitmask, barred, self._end_bits)
        self._timer.lap("mask")
        flight.mask_positions = sum(1 + len(job.draft) for job in jobs.values())
        return bitmask


def _by_match(_flight: Flight, scores: mx.array, draws: Draws) -> mx.array:
    """Let the target choose, whatever was drafted."""
    return choose(scores, draws)


def _by_rejection(flight: Flight, scores: mx.array, draws: Draws) -> mx.array:
    """Let the draft be the choice with min(1, p/q), another token otherwise."""
    drafts = [
        RowDraft(flight.plan.row(slot), flight.column(slot), draft.judged, draft.scores)
        for slot, draft in zip(flight.plan.slots, flight.drafts, strict=True)
    ]
    if not len(draws.sampled) or not any(draft.ids for draft in drafts):
        return choose(scores, draws)
    width, vocab_size = flight.width, scores.shape[-1]
    tokens = judge(
        law(scores, draws).reshape(-1, width, vocab_size),
        lay_out(drafts, len(draws) // width, width, vocab_size),
        acceptance_uniforms(draws).reshape(-1, width),
        gumbel_noise(draws, vocab_size).reshape(-1, width, vocab_size),
    )
    return tokens.reshape(-1)


CHOICES: dict[str, Callable[[Flight, mx.array, Draws], mx.array]] = {
    "match": _by_match,
    "rejection": _by_rejection,
}


def _adjustments(flight: Flight, layout: Layout) -> list[Adjustment]:
    """Return what penalties and biases see at every sampled position of the rows that have any."""
    found: list[Adjustment] = []
    if layout.records["is_plain"].all():
        return found
    for slot, draft in zip(flight.plan.slots, flight.drafts, strict=True):
        row, sequence = flight.plan.row(slot), slot.sequence
        if layout.records["is_plain"][row]:
            continue
        start = row * flight.width + flight.column(slot)
        found += [
            Adjustment(
                start + taken,
                sequence.request.sampling,
                (*sequence.ids, *draft.ids[:taken]),
                sequence.num_prompt,
            )
            for taken in range(1 + len(draft.ids))
        ]
    return found


def _score(flight: Flight, layout: Layout, tokens: mx.array) -> None:
    """Start the log-probabilities that rows ask for, ahead of any step launched after this."""
    columns = layout.asking
    if not len(columns) or flight.logits is None:
        return
    rows = columns // flight.width
    num_top = layout.records["top_logprobs"][rows]
    places = mx.array(columns)
    flight.scored = score(flight.logits[places], tokens[places], num_top)
    flight.scored_rows = tuple(rows.tolist())
    arrays.launch(tokens, *flight.scored.arrays)


def _mask_jobs(flight: Flight) -> dict[int, MaskJob]:
    """Return the masks to fill, by place in the plan."""
    jobs: dict[int, MaskJob] = {}
    for place, (slot, draft) in enumerate(zip(flight.plan.slots, flight.drafts, strict=True)):
        matcher = slot.sequence.matcher
        if matcher is not None and slot.samples and not slot.sequence.is_finished:
            row = flight.plan.row(slot) * flight.width
            jobs[place] = MaskJob(matcher, row + flight.column(slot), draft.ids)
    return jobs


def _fill(flight: Flight, jobs: dict[int, MaskJob], bitmask: NDArray[np.int32]) -> None:
    """Fill masks; a row that fails is tried without its drafts, whose dead end is not the row's."""
    places = list(jobs)
    failed = [places[index] for index, _ in fill_masks(list(jobs.values()), bitmask)]
    if not failed:
        return
    flight.drafts = tuple(
        draft.unfed() if place in failed else draft for place, draft in enumerate(flight.drafts)
    )
    undrafted = [replace(jobs[place], draft=()) for place in failed]
    for index, error in fill_masks(undrafted, bitmask):
        flight.plan.slots[failed[index]].sequence.error = error
