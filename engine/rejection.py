"""Rejection acceptance: a draft is kept with min(1, p/q), and what replaces it is due to (p - q)+.

p is the target's law at a position, after penalties, mask, temperature and truncation; q is the
drafter's law as it drafted. What is emitted has the law p whatever q is (Leviathan, Kalman and
Matias, 2023, "Fast inference from transformers via speculative decoding", appendix A.1). Every
position is decided at once and on the device: the draft where it is kept, another token where it
is not, so that the walk of `match` reads both.

Randomness is counter-based, in three streams of a row's seed: TARGET draws what replaces a draft or
follows the last one, ACCEPT decides, DRAFT is the drafter's own. A position that is decided again
by a later step uses the same noise, which nothing emitted before it depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from engine.row_params import Draws
from engine.sampler import draw_keys, temper

NO_DRAFT = -1
"""In place of a token id, where nothing was drafted."""


class Stream(IntEnum):
    """Independent noise of one row; TARGET is the one that plain decoding uses."""

    TARGET = 0
    ACCEPT = 1
    DRAFT = 2


@dataclass(frozen=True, slots=True)
class Drafted:
    """The drafts of a step.

    Args:
        ids: token drafted for each position, [rows, width] int32, NO_DRAFT where there is none.
        scores: the laws they were drawn from, log-probabilities up to a constant,
            [rows, width, vocab]; None when every draft was certain (a one-hot law).
    """

    ids: mx.array
    scores: mx.array | None = None


def stream_seeds(seeds: NDArray[np.uint64], stream: Stream) -> NDArray[np.uint64]:
    """Return the seeds of one stream of many rows; TARGET's are the rows' own.

    The others are the rows' words at positions -2 and -3, where no token is drawn.
    """
    if stream is Stream.TARGET:
        return seeds
    words = draw_keys(seeds, np.full(len(seeds), -1 - stream)).astype(np.uint64)
    joined: NDArray[np.uint64] = words[:, 0] << np.uint64(32) | words[:, 1]
    return joined


def acceptance_uniforms(draws: Draws) -> mx.array:
    """Return a number in [0, 1) for each draw, [draws] float32, from the ACCEPT stream."""
    keys = draw_keys(stream_seeds(draws.records["seed"], Stream.ACCEPT), draws.positions)
    return mx.array((keys[:, 0] >> 8).astype(np.float32) * np.float32(2.0**-24))


def law(scores: mx.array, draws: Draws) -> mx.array:
    """Return the law each row draws from, as log-probabilities up to a constant.

    Args:
        scores: adjusted and masked logits, [rows, vocab].
        draws: one per row.

    Returns:
        [rows, vocab] float32, -inf where a token is impossible: a greedy row has one token left.
    """
    tempered = temper(scores, draws)
    is_greedy = draws.records["is_greedy"]
    if not is_greedy.any():
        return tempered
    best = mx.argmax(tempered, axis=-1, keepdims=True)
    is_other = mx.arange(scores.shape[-1]) != best
    return mx.where(mx.array(is_greedy)[:, None] & is_other, -mx.inf, tempered)


@dataclass(frozen=True, slots=True)
class RowDraft:
    """The drafts of one row of a step.

    Args:
        row: index of the row in the step.
        first: the first position that has a draft; the others follow.
        ids: at most as many as the row has positions from there.
        scores: their laws, [len(ids), vocab]; None for one-hot laws.
    """

    row: int
    first: int
    ids: tuple[int, ...]
    scores: mx.array | None = None


def lay_out(drafts: Sequence[RowDraft], rows: int, width: int, vocab_size: int) -> Drafted:
    """Return the drafts of all rows as arrays; positions without one hold NO_DRAFT."""
    host = np.full((rows, width), NO_DRAFT, dtype=np.int32)
    for draft in drafts:
        host[draft.row, draft.first : draft.first + len(draft.ids)] = draft.ids
    ids = mx.array(host)
    if all(draft.scores is None for draft in drafts):
        return Drafted(ids)
    scores = mx.where(_is_draft(ids, vocab_size), mx.array(0.0), mx.array(-mx.inf))
    for draft in drafts:
        if draft.ids and draft.scores is not None:
            scores[draft.row, draft.first : draft.first + len(draft.ids)] = draft.scores
    return Drafted(ids, scores)


def judge(target: mx.array, drafted: Drafted, uniforms: mx.array, noise: mx.array) -> mx.array:
    """Return the token of every position, given that all drafts before it were kept.

    It is the draft where that is kept and never the draft where it is not; behind the last draft
    it is a draw of the target alone. Does not wait for the device.

    Args:
        target: p, log-probabilities up to a constant, -inf where impossible, [rows, width, vocab].
        uniforms: numbers in [0, 1), [rows, width].
        noise: Gumbel noise, [rows, width, vocab].

    Returns:
        Token ids, [rows, width] int32.
    """
    has_draft = drafted.ids != NO_DRAFT
    p = mx.softmax(target, axis=-1)
    q = _probabilities(drafted, target.shape[-1])
    is_kept = has_draft & accepts(p, q, drafted.ids, uniforms)
    others = mx.where(has_draft[..., None], mx.log(residual(p, q)), target)
    stops = mx.argmax(others + noise, axis=-1).astype(mx.int32)
    return mx.where(is_kept, drafted.ids, stops)


def accepts(p: mx.array, q: mx.array, ids: mx.array, uniforms: mx.array) -> mx.array:
    """Return where a draft is kept, [rows, width]: with probability min(1, p/q).

    Without a division, so that a vanished q(draft) does no harm; p(draft) = 0 is never kept.
    """
    index = ids[..., None]
    p_draft = mx.take_along_axis(p, index, axis=-1)[..., 0]
    q_draft = mx.take_along_axis(q, index, axis=-1)[..., 0]
    return uniforms * q_draft < p_draft


def residual(p: mx.array, q: mx.array) -> mx.array:
    """Return (p - q)+, not normalised, [rows, width, vocab].

    It is empty only where q is p, whose drafts are all kept, or is so up to rounding, where p
    stands in: an impossible token is not drawn even then.
    """
    left = mx.maximum(p - q, 0)
    return mx.where(mx.max(left, axis=-1, keepdims=True) > 0, left, p)


def _probabilities(drafted: Drafted, vocab_size: int) -> mx.array:
    if drafted.scores is None:
        return _is_draft(drafted.ids, vocab_size).astype(mx.float32)
    return mx.softmax(drafted.scores.astype(mx.float32), axis=-1)


def _is_draft(ids: mx.array, vocab_size: int) -> mx.array:
    return mx.arange(vocab_size) == ids[..., None]
