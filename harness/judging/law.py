"""Whether sampled replies come from the target's law: evidence in their draws, and its verdict.

An acceptance rule that keeps the law and not the ids cannot be compared with a reference, so its
draws are judged by the law itself, recomputed by the oracle after each prefix of the reply. Two
things are asked. Every token has to be possible under the law. And no other law may explain the
tokens much better: each rival is the law p raised to a power and normalised, a^(k) = p^k / sum p^k,
flatter for k < 1, sharper for k > 1; k = 0 is any legal token, and p at another temperature is one
of them. Tokens that follow drafts instead of the law are unlikely ones, as under a flatter rival.

The ratio of likelihoods a/p, multiplied over draws, is a martingale of mean 1 when the tokens come
from p, and so is the mean of the ratios of several rivals. It reaches 1/alpha with probability
alpha at most (Ville, 1939), for any number of draws and whatever the laws are: unlike for a
normalised sum of log-probabilities, which a single rare token of a sharp law throws off, no
approximation is involved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.store.rows import LawRow, RequestRow

if TYPE_CHECKING:
    from engine.oracle import LawfulDraw

EXPONENTS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.1, 1.35, 2.0, 4.0)
"""Powers of the law that its rivals are; the ratio of neighbours bounds what stays unseen."""

FALSE_ALARM = 1e-4
"""Probability with which a lawful cell fails, at most."""

MAX_DRAWS = 2048
"""Draws of a cell on a workload that are judged: the oracle computes each again, and what rounding
adds to the evidence, at most half the variance of a log-probability a draw, stays harmless."""


class Drawn(Protocol):
    """What a stored reply tells of its draws."""

    @property
    def prompt_id(self) -> str:
        """What was asked."""
        ...

    @property
    def seed(self) -> int | None:
        """With which its tokens were drawn."""
        ...

    @property
    def finish_reason(self) -> str | None:
        """Why it ended; with "stop" the end token was drawn too."""
        ...

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        """What was drawn, without the end token."""
        ...


R = TypeVar("R", bound=Drawn)


@dataclass(frozen=True, slots=True)
class Portion(Generic[R]):
    """The part of a reply that is judged: its first `draws` draws."""

    row: R
    draws: int


@dataclass(slots=True)
class Portions(Generic[R]):
    """Which draws of a cell's replies are judged, chosen without regard to what they are.

    A prompt that fills a wave of a batch a second time repeats its seed: it says nothing new.

    Args:
        left: draws that may still be chosen.
    """

    left: int = MAX_DRAWS
    _found: dict[tuple[str, int | None], Portion[R]] = field(default_factory=dict)

    def offer(self, row: R) -> None:
        """Choose the draws of one more reply, as far as there are any left."""
        if not self.left or (row.prompt_id, row.seed) in self._found:
            return
        num_draws = len(row.token_ids or ()) + (row.finish_reason == "stop")
        if num_draws:
            portion = Portion(row, min(num_draws, self.left))
            self._found[row.prompt_id, row.seed] = portion
            self.left -= portion.draws

    @property
    def portions(self) -> tuple[Portion[R], ...]:
        """What was chosen, in the order in which it was offered."""
        return tuple(self._found.values())


@dataclass(frozen=True, slots=True)
class LawVerdict:
    """What the draws of a cell say.

    Args:
        replies, draws: what was judged.
        impossible: tokens that the law excludes.
        log_evidence: natural logarithm of the evidence against the law; a lawful cell reaches
            -log(FALSE_ALARM) with that probability at most.
        problems: one line for each thing that is wrong.
    """

    replies: int
    draws: int
    impossible: int
    log_evidence: float
    problems: tuple[str, ...]

    @property
    def line(self) -> str:
        """The verdict as one line for people."""
        return (
            f"{self.draws} draws of {self.replies} replies (at most {MAX_DRAWS} are judged): "
            f"{self.impossible} impossible, evidence against the law 10^{self.power:.1f} "
            f"(from 10^{-np.log10(FALSE_ALARM):.0f} on it fails: a false alarm in 1 of "
            f"{1 / FALSE_ALARM:.0f} lawful cells at most)"
        )

    @property
    def power(self) -> float:
        """The evidence as a power of ten."""
        return self.log_evidence / float(np.log(10))


def portions(rows: Iterable[R]) -> tuple[Portion[R], ...]:
    """Return which draws of a cell's replies are judged; no more replies are read than it takes."""
    chosen: Portions[R] = Portions()
    for row in rows:
        chosen.offer(row)
        if not chosen.left:
            break
    return chosen.portions


def law_row(row: RequestRow, draws: Iterable[LawfulDraw]) -> LawRow:
    """Return what the draws of one reply say, as it is stored."""
    ratios = np.zeros(len(EXPONENTS))
    count, impossible_at = 0, None
    for draw in draws:
        if not draw.is_possible:
            impossible_at = count
        else:
            ratios += _log_ratios(draw)
        count += 1
    return LawRow(
        trial_id=row.trial_id,
        position=row.position,
        draws=count,
        impossible_at=impossible_at,
        evidence={str(k): float(ratio) for k, ratio in zip(EXPONENTS, ratios, strict=True)},
    )


def judge_law(rows: Sequence[tuple[str, LawRow]]) -> LawVerdict:
    """Return the verdict on several replies, each with the id of its prompt."""
    problems = [
        f"prompt {prompt} has an impossible token at {row.impossible_at}"
        for prompt, row in rows
        if row.impossible_at is not None
    ]
    evidence = _mixed([row.evidence for _, row in rows])
    if evidence >= -np.log(FALSE_ALARM):
        problems.append("the tokens do not come from the law")
    return LawVerdict(
        replies=len(rows),
        draws=sum(row.draws for _, row in rows),
        impossible=sum(row.impossible_at is not None for _, row in rows),
        log_evidence=evidence,
        problems=tuple(problems),
    )


def _log_ratios(draw: LawfulDraw) -> NDArray[np.float64]:
    """Return log a(token) - log p(token) for each rival p^k, normalised, [rivals]."""
    exponents = np.array(EXPONENTS)
    possible = draw.log_probs[np.isfinite(draw.log_probs)]
    peak = possible.max()
    sums = np.exp(exponents[:, None] * (possible - peak)).sum(axis=1)
    ratios: NDArray[np.float64] = (
        (exponents - 1) * draw.log_probs[draw.outcome] - exponents * peak - np.log(sums)
    )
    return ratios


def _mixed(evidence: Sequence[Mapping[str, float]]) -> float:
    """Return the logarithm of the mean over rivals of their likelihood ratio over all replies."""
    rivals = sorted({name for each in evidence for name in each})
    if not rivals:
        return 0.0
    sums = [sum(each.get(name, 0.0) for each in evidence) for name in rivals]
    return float(np.logaddexp.reduce(sums) - np.log(len(rivals)))
