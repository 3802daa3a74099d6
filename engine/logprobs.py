"""Log-probabilities of chosen tokens and of the likeliest ones, for the rows that ask.

The log-softmax of the target's raw logits in float32. The device picks a few numbers a position;
they are read together with the tokens and become `TokenLogprobs` on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from engine.request import TokenLogprobs

_IDS = 2**32
"""A rank is score * _IDS + id: one whole number that orders by score, then lower ids first."""


@dataclass(frozen=True, slots=True)
class Scored:
    """Positions scored on the device.

    Args:
        tokens: the token of each position, [n] int32.
        logits: its raw logit, [n] float32.
        totals: log-sum-exp of all logits of the position, [n] float32.
        ranks: ranks of the likeliest tokens in no order, [n, most alternatives] int64.
        num_top: alternatives wanted at each position, [n].
        vocab_size: what ranks are read with.
    """

    tokens: mx.array
    logits: mx.array
    totals: mx.array
    ranks: mx.array
    num_top: NDArray[np.int64]
    vocab_size: int

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """What has to be read, in the order `report` takes it."""
        return self.tokens, self.logits, self.totals, self.ranks

    def report(self, values: Sequence[NDArray[Any]]) -> list[TokenLogprobs]:
        """Return the record of each position from `arrays`, read."""
        tokens, logits, totals, ranks = values
        logprobs = (logits - totals).tolist()
        ranks = -np.sort(-ranks, axis=1)
        ids = (self.vocab_size - 1 - ranks % _IDS).tolist()
        tops = (_floats(ranks // _IDS) - totals[:, None]).tolist()
        return [
            TokenLogprobs(token, logprob, _listed(token, logprob, top_ids[:count], top[:count]))
            for token, logprob, top_ids, top, count in zip(
                tokens.tolist(), logprobs, ids, tops, self.num_top.tolist(), strict=True
            )
        ]


def score(logits: mx.array, tokens: mx.array, num_top: NDArray[np.int64]) -> Scored:
    """Score positions; does not wait.

    Args:
        logits: raw logits of the target, [n, vocab].
        tokens: the token of each position, [n] int32.
        num_top: alternatives wanted at each position, [n].
    """
    logits = logits.astype(mx.float32)
    num_rows, vocab_size = logits.shape
    most = min(int(num_top.max()), vocab_size)
    return Scored(
        tokens,
        mx.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0],
        mx.logsumexp(logits, axis=-1),
        mx.topk(_ranks(logits), most, axis=-1) if most else mx.zeros((num_rows, 0), mx.int64),
        num_top,
        vocab_size,
    )


def _listed(
    token: int, logprob: float, ids: list[int], logprobs: list[float]
) -> tuple[tuple[int, float], ...]:
    """Return the likeliest tokens, then the chosen one when it is not among them."""
    listed = tuple(zip(ids, logprobs, strict=True))
    return (*listed, (token, logprob)) if ids and token not in ids else listed


def _ranks(logits: mx.array) -> mx.array:
    """Return float32 logits as whole numbers of the same order, distinct for distinct ids."""
    bits = (logits + 0.0).view(mx.int32)  # + 0.0 makes one zero of the two
    ordered = mx.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(mx.int64)
    vocab_size = logits.shape[-1]
    return ordered * _IDS + (vocab_size - 1 - mx.arange(vocab_size)).astype(mx.int64)


def _floats(ordered: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the logits that `_ranks` took its whole numbers from."""
    bits = np.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered)
    return bits.astype(np.int32).view(np.float32)
