"""Whether replies are the token ids of their reference, near-ties apart: pure functions.

A reply may part from its reference only where the two best final scores lie closer together than
two orders of floating-point summation can tell apart. Each such place was judged by the engine's
oracle, which is fed the reply itself, so that the comparison goes on behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.store.rows import DivergenceRow

TOKENS_PER_NEAR_TIE = 5000
"""At most one near-tie in so many tokens; a sample smaller than this may hold one."""


def allowed_near_ties(tokens: int) -> int:
    """Return how many near-ties that many compared tokens may hold."""
    return max(1, tokens // TOKENS_PER_NEAR_TIE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyIdentity:
    """One reply beside its reference.

    Args:
        tokens: tokens of the reply that were compared.
        near_ties: places that explain why it differs, empty when it does not.
        problem: why it is not its reference's reply, one line; "" when it is.
        is_unjudged: True where it differs and nobody asked the oracle.
    """

    tokens: int
    near_ties: tuple[DivergenceRow, ...] = ()
    problem: str = ""
    is_unjudged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """All replies of a cell beside their references.

    Args:
        replies, matching: replies compared, and those that are equal or part only at near-ties.
        problems: one line for each thing that is wrong.
    """

    replies: int
    matching: int
    tokens: int
    near_ties: int
    problems: tuple[str, ...]


def compare_reply(
    reply: Sequence[int], reference: Sequence[int], judged: Sequence[DivergenceRow]
) -> ReplyIdentity:
    """Return whether a reply is its reference's reply.

    Args:
        reply, reference: emitted token ids, end token excluded.
        judged: what the oracle said of a reply that differs; empty when nobody asked it.
    """
    position = first_difference(reply, reference)
    if position is None:
        return ReplyIdentity(tokens=len(reply))
    return explain_difference(len(reply), position, judged)


def explain_difference(
    tokens: int, position: int, judged: Sequence[DivergenceRow]
) -> ReplyIdentity:
    """Return whether near-ties explain a reply of so many tokens that differs at a position."""
    if not judged:
        return ReplyIdentity(
            tokens=tokens,
            problem=f"differs at token {position} and was not judged",
            is_unjudged=True,
        )
    for place in judged:
        if not place.is_near_tie:
            gap = "an unknown gap" if place.gap is None else f"a gap of {place.gap:.3g}"
            return ReplyIdentity(
                tokens=tokens,
                problem=f"differs at token {place.position} with {gap} "
                f"(a near-tie is below {place.epsilon:.3g})",
            )
    return ReplyIdentity(tokens=tokens, near_ties=tuple(judged))


def first_difference(one: Sequence[object], other: Sequence[object]) -> int | None:
    """Return the first index at which two sequences differ, None when they are equal."""
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return None if len(one) == len(other) else min(len(one), len(other))


def sum_up(
    replies: Iterable[tuple[str, ReplyIdentity]], *, equal: int = 0, equal_tokens: int = 0
) -> Identity:
    """Return the verdict on several replies, each with the id of its prompt.

    Args:
        equal, equal_tokens: further replies that are their reference's to the last id, and how
            many tokens they have together.
    """
    found = list(replies)
    problems = [f"prompt {prompt} {reply.problem}" for prompt, reply in found if reply.problem]
    tokens = equal_tokens + sum(reply.tokens for _, reply in found)
    near_ties = sum(len(reply.near_ties) for _, reply in found)
    if near_ties > allowed_near_ties(tokens):
        problems.append(
            f"{near_ties} near-ties in {tokens} tokens; at most 1 in {TOKENS_PER_NEAR_TIE} may be"
        )
    return Identity(
        replies=equal + len(found),
        matching=equal + sum(not reply.problem for _, reply in found),
        tokens=tokens,
        near_ties=near_ties,
        problems=tuple(problems),
    )
