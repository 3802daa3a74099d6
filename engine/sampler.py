"""Logits to tokens, for many rows at once and in one fixed order.

penalties and logit bias -> grammar mask -> temperature -> top-k, top-p, min-p -> draw.

A draw adds Gumbel noise and takes the largest score, which samples the softmax exactly. The noise
of a row is a function of (seed, emitted position) alone, so a seeded row gives the same tokens
alone, in a batch and under speculation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from engine.request import SamplingParams
from engine.row_params import Draws

_GOLDEN = 0x9E3779B97F4A7C15
_UINT64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A row of logits that penalties or a bias change.

    Args:
        row: index of the row.
        history: ids before it, prompt and emitted.
        num_prompt: how many of `history` are prompt.
    """

    row: int
    params: SamplingParams
    history: Sequence[int]
    num_prompt: int


def draw_key(seed: int, position: int) -> tuple[int, int]:
    """Return the two 32-bit words of the random key of a draw.

    One SplitMix64 finalisation of `seed + (position + 1) * golden ratio` (Steele, Lea and Flood,
    2014): a bijection for a fixed seed, so no two positions of a row share a key.
    """
    word = (seed + (position + 1) * _GOLDEN) & _UINT64
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _UINT64
    word ^= word >> 31
    return word >> 32, word & 0xFFFFFFFF


def draw_keys(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return `draw_key` of many draws at once, [draws, 2]; uint64 arrays wrap as it does."""
    word = seeds + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    return np.stack([word >> np.uint64(32), word & np.uint64(0xFFFFFFFF)], axis=1).astype(np.uint32)


def gumbel_noise(draws: Draws, vocab_size: int) -> mx.array:
    """Return the noise of each draw, [draws, vocab] float32."""
    keys = mx.array(draw_keys(draws.records["seed"], draws.positions))
    noise: mx.array = mx.vmap(lambda key: mx.random.gumbel((vocab_size,), key=key))(keys)
    return noise


def adjust(logits: mx.array, adjustments: Sequence[Adjustment]) -> mx.array:
    """Apply penalties and logit bias, the first stage.

    Args:
        logits: [rows, vocab].
        adjustments: those rows that ask for any, each at most once.

    Returns:
        Scores, [rows, vocab] float32; `logits` itself when there is nothing to adjust.
    """
    parts = [(item.row, *_changes(item, logits.shape[-1])) for item in adjustments]
    if not any(len(ids) for _, ids, _, _ in parts):
        return logits
    rows = mx.array(np.concatenate([np.full(len(ids), row) for row, ids, _, _ in parts]))
    ids, divisor, shift = (
        mx.array(np.concatenate([part[field] for part in parts])) for field in (1, 2, 3)
    )
    scores = mx.array(logits.astype(mx.float32))
    held = scores[rows, ids]
    scores[rows, ids] = mx.where(held > 0, held / divisor, held * divisor) + shift
    return scores


def _changes(
    item: Adjustment, vocab_size: int
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """Return ids with the factor that divides and the shift that is added to each one's score."""
    params = item.params
    seen = set(item.history) if params.repetition_penalty != 1.0 else set()
    emitted = Counter(item.history[item.num_prompt :])
    ids = sorted({*seen, *emitted, *params.logit_bias})
    ids = [token for token in ids if token < vocab_size]
    factor = [params.repetition_penalty if token in seen else 1.0 for token in ids]
    shift = [
        params.logit_bias.get(token, 0.0)
        - params.frequency_penalty * emitted[token]
        - params.presence_penalty * (token in emitted)
        for token in ids
    ]
    return (
        np.array(ids, dtype=np.int32),
        np.array(factor, dtype=np.float32),
        np.array(shift, dtype=np.float32),
    )


def choose(scores: mx.array, draws: Draws) -> mx.array:
    """Return the token of each row, the last stages: temperature, truncation, draw.

    Only sampled rows are scaled and given noise; a greedy row takes its largest score.

    Args:
        scores: adjusted and masked logits, [rows, vocab].
        draws: one per row.

    Returns:
        Token ids, [rows] int32.
    """
    sampled = draws.sampled
    if len(sampled) == len(draws):
        return _likeliest(final_scores(scores, draws))
    tokens = _likeliest(scores)
    if len(sampled):
        rows = mx.array(sampled)
        tokens[rows] = _likeliest(final_scores(scores[rows], draws.take(sampled)))
    return tokens


def _likeliest(scores: mx.array) -> mx.array:
    return mx.argmax(scores, axis=-1).astype(mx.int32)


def final_scores(scores: mx.array, draws: Draws) -> mx.array:
    """Return what the token of a sampled row is the argmax of, [rows, vocab] float32.

    Args:
        scores: adjusted and masked logits, [rows, vocab].
        draws: one per row, none of them greedy.
    """
    return temper(scores, draws) + gumbel_noise(draws, scores.shape[-1])


def temper(scores: mx.array, draws: Draws) -> mx.array:
    """Apply temperature and truncation: the log-probabilities, up to a constant, of a draw.

    Args:
        scores: adjusted and masked logits, [rows, vocab].
        draws: one per row; a greedy one scales nothing.

    Returns:
        [rows, vocab] float32, -inf where a token is excluded.
    """
    divisor = mx.array(np.ascontiguousarray(draws.records["divisor"]))[:, None]
    return truncate(scores.astype(mx.float32) / divisor, draws)


def truncate(scores: mx.array, draws: Draws) -> mx.array:
    """Put -inf where top-k, top-p and min-p exclude a token, each on what the one before kept.

    Args:
        scores: scaled by the temperature, [rows, vocab] float32.
        draws: one per row.
    """
    cut = draws.truncated
    if not len(cut):
        return scores
    if len(cut) == len(draws):
        return _truncated(scores, draws)
    rows, result = mx.array(cut), mx.array(scores)
    result[rows] = _truncated(scores[rows], draws.take(cut))
    return result


def _truncated(scores: mx.array, draws: Draws) -> mx.array:
    """Keep a prefix of each row's tokens, ordered by score and then by id."""
    ordered = -mx.sort(-scores, axis=-1)
    count = _num_kept(ordered, draws)
    lowest = mx.take_along_axis(ordered, count - 1, axis=-1)
    above, tied = scores > lowest, scores == lowest
    spare = count - mx.sum(above, axis=-1, keepdims=True)
    kept = above | (tied & (mx.cumsum(tied.astype(mx.int32), axis=-1) <= spare))
    return mx.where(kept, scores, -mx.inf)


def _num_kept(ordered: mx.array, draws: Draws) -> mx.array:
    """Return how many of the largest scores stay, [rows, 1].

    Args:
        ordered: scores in falling order, [rows, vocab].
    """
    vocab_size = ordered.shape[-1]
    held = draws.records
    limit = np.where(held["top_k"] > 0, np.minimum(held["top_k"], vocab_size), vocab_size)
    top_k = mx.array(limit.astype(np.int32))[:, None]
    top_p, min_p = (
        mx.array(np.ascontiguousarray(held[key]))[:, None] for key in ("top_p", "min_p")
    )
    within_k = mx.arange(vocab_size)[None] < top_k
    probs = mx.softmax(mx.where(within_k, ordered, -mx.inf), axis=-1)
    before = mx.cumsum(probs, axis=-1) - probs
    within_p = within_k & ((before < top_p) | (top_p >= 1))
    within_m = within_k & (probs >= min_p * probs[:, :1])
    fewest = mx.minimum(
        mx.sum(within_p, axis=-1, keepdims=True), mx.sum(within_m, axis=-1, keepdims=True)
    )
    return mx.maximum(fewest, 1)
