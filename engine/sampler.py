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

_GOLDEN = 0x9E3779B97F4A7C15
_UINT64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Draw:
    """What one row of logits needs to become a token.

    Args:
        position: index the token will have among the row's emitted tokens.
        history: ids before it (prompt and emitted) where `params` looks at them, else empty.
        num_prompt: how many of `history` are prompt.
    """

    params: SamplingParams
    seed: int
    position: int
    history: Sequence[int] = ()
    num_prompt: int = 0


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


def gumbel_noise(draws: Sequence[Draw], vocab_size: int) -> mx.array:
    """Return the noise of each draw, [draws, vocab] float32."""
    words = np.array([draw_key(draw.seed, draw.position) for draw in draws], dtype=np.uint32)
    noise: mx.array = mx.vmap(lambda key: mx.random.gumbel((vocab_size,), key=key))(mx.array(words))
    return noise


def adjust(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    """Apply penalties and logit bias, the first stage.

    Args:
        logits: [rows, vocab].
        draws: one per row.

    Returns:
        Scores, [rows, vocab] float32; `logits` itself when no row asks for any.
    """
    touched = [(row, draw) for row, draw in enumerate(draws) if not draw.params.is_plain]
    if not touched:
        return logits
    logits = logits.astype(mx.float32)
    scores = mx.array(logits)
    for row, draw in touched:
        ids, factor, shift = _adjustments(draw, logits.shape[-1])
        if not len(ids):
            continue
        index, divisor = mx.array(ids), mx.array(factor)
        held = logits[row][index]
        held = mx.where(held > 0, held / divisor, held * divisor)
        scores[row, index] = held + mx.array(shift)
    return scores


def _adjustments(
    draw: Draw, vocab_size: int
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """Return ids with the factor that divides and the shift that is added to each one's score."""
    params = draw.params
    seen = set(draw.history) if params.repetition_penalty != 1.0 else set()
    emitted = Counter(draw.history[draw.num_prompt :])
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


def choose(scores: mx.array, draws: Sequence[Draw]) -> mx.array:
    """Return the token of each row, the last stages: temperature, truncation, draw.

    Args:
        scores: adjusted and masked logits, [rows, vocab].
        draws: one per row; temperature 0 takes the largest score.

    Returns:
        Token ids, [rows] int32.
    """
    sampled = [row for row, draw in enumerate(draws) if draw.params.temperature > 0]
    if not sampled:
        return mx.argmax(scores, axis=-1).astype(mx.int32)
    return mx.argmax(final_scores(scores, draws), axis=-1).astype(mx.int32)


def final_scores(scores: mx.array, draws: Sequence[Draw]) -> mx.array:
    """Return what the token is the argmax of, [rows, vocab] float32.

    Greedy rows keep their scores; sampled rows are scaled, truncated and carry their noise.
    """
    scores = scores.astype(mx.float32)
    is_greedy = mx.array([draw.params.temperature == 0 for draw in draws])[:, None]
    noisy = temper(scores, draws) + gumbel_noise(draws, scores.shape[-1])
    return mx.where(is_greedy, scores, noisy)


def temper(scores: mx.array, draws: Sequence[Draw]) -> mx.array:
    """Apply temperature and truncation: the log-probabilities, up to a constant, of a draw.

    Args:
        scores: adjusted and masked logits, [rows, vocab].
        draws: one per row; temperature 0 scales nothing.

    Returns:
        [rows, vocab] float32, -inf where a token is excluded.
    """
    divisor = np.array([draw.params.divisor for draw in draws], dtype=np.float32)
    return _truncate(scores.astype(mx.float32) / mx.array(divisor)[:, None], draws)


def _truncate(scores: mx.array, draws: Sequence[Draw]) -> mx.array:
    """Drop what top-k, top-p and min-p exclude, each on what the one before kept."""
    params = [draw.params for draw in draws]
    if all(p.top_k == 0 and p.top_p == 1 and p.min_p == 0 for p in params):
        return scores
    vocab_size = scores.shape[-1]
    top_k = np.array([p.top_k or vocab_size for p in params], dtype=np.int64)
    top_p = np.array([p.top_p for p in params], dtype=np.float32)
    min_p = np.array([p.min_p for p in params], dtype=np.float32)
    ordered = -mx.sort(-scores, axis=-1)
    kept = mx.arange(vocab_size)[None] < mx.array(np.minimum(top_k, vocab_size))[:, None]
    probs = mx.softmax(mx.where(kept, ordered, -mx.inf), axis=-1)
    before = mx.cumsum(probs, axis=-1) - probs
    kept = kept & ((before < mx.array(top_p)[:, None]) | mx.array(top_p >= 1)[:, None])
    kept = kept & (probs >= mx.array(min_p)[:, None] * probs[:, :1])
    kept = kept | (mx.arange(vocab_size)[None] == 0)
    lowest = mx.min(mx.where(kept, ordered, mx.inf), axis=-1, keepdims=True)
    return mx.where(scores >= lowest, scores, -mx.inf)
