"""Whatever a drafter proposes, what is emitted under rejection has the target's masked law."""

from __future__ import annotations

from functools import cache

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from engine import rejection
from engine.rejection import (
    NO_DRAFT,
    Drafted,
    RowDraft,
    Stream,
    acceptance_uniforms,
    judge,
    law,
    lay_out,
    stream_seeds,
)
from engine.request import Request, SamplingParams
from engine.row_params import RECORD, Draws, record_of
from engine.sampler import choose, draw_keys, gumbel_noise

VOCAB = 6
START = VOCAB
DRAWS = 100_000
RNG = np.random.default_rng(7)
TARGET = RNG.normal(size=(VOCAB + 1, VOCAB)).astype(np.float32) * 1.5
"""Logits of the token after each token, and after the START of a row."""
LEGAL = np.array([1, 1, 0, 1, 0, 1], dtype=bool)
TEMPERATURES = [0.5, 1.0, 1.5]


def certain(tokens: np.ndarray) -> np.ndarray:
    """The law that is sure of one token after each token."""
    return np.where(np.arange(VOCAB) == tokens[:, None], 0.0, -np.inf).astype(np.float32)


DRAFTERS = {
    "one-hot right": lambda p: certain(p.argmax(-1)),
    "one-hot wrong": lambda p: certain(p.argmin(-1)),
    "equal": lambda p: p,
    "close": lambda p: p + np.sin(np.arange(VOCAB)).astype(np.float32) / 3,
    "far": lambda p: -2 * np.where(np.isfinite(p), p, 3),
    "uniform": np.zeros_like,
    "never legal": lambda p: np.where(LEGAL, -np.inf, 0).astype(np.float32) + 0 * TARGET,
}


def target_law(temperature: float, masked: bool) -> np.ndarray:
    """The law after each token as log-probabilities, -inf where illegal."""
    scores = TARGET / np.float32(temperature)
    return np.where(LEGAL, scores, -np.inf).astype(np.float32) if masked else scores


def draws_of(seeds: np.ndarray, position: int = 0, temperature: float = 1.0) -> Draws:
    """One draw of every seed."""
    request = Request(prompt_ids=(0,), sampling=SamplingParams(temperature=temperature))
    records = np.full(len(seeds), np.array(record_of(request, 0), dtype=RECORD))
    records["seed"] = seeds
    return Draws(records, np.full(len(seeds), position))


@cache
def noise(stream: Stream, position: int) -> mx.array:
    """Gumbel noise of DRAWS rows, or their uniforms for ACCEPT."""
    seeds = np.arange(DRAWS, dtype=np.uint64)
    if stream is Stream.ACCEPT:
        return acceptance_uniforms(draws_of(seeds, position))
    return gumbel_noise(draws_of(stream_seeds(seeds, stream), position), VOCAB)


def draft(q: np.ndarray, last: mx.array, position: int) -> mx.array:
    """Draw one draft a row from the drafter's law after `last`."""
    scores = mx.array(q)[last] + noise(Stream.DRAFT, position)
    return mx.argmax(scores, axis=-1).astype(mx.int32)


def decide(p: np.ndarray, q: np.ndarray, last: mx.array, start: int, count: int) -> mx.array:
    """One step of all rows with `count` drafts, [DRAWS, 1 + 2 * count]: drafts, then tokens."""
    path = [last]
    for offset in range(count):
        path.append(draft(q, path[-1], start + offset))
    before = mx.stack(path, axis=1)
    ids = mx.concatenate([before[:, 1:], mx.full((DRAWS, 1), NO_DRAFT)], axis=1)
    is_certain = bool((np.isfinite(q).sum(-1) == 1).all())
    drafted = Drafted(ids, None if is_certain else mx.array(q)[before])
    positions = range(start, start + count + 1)
    tokens = judge(
        mx.array(p)[before],
        drafted,
        mx.stack([noise(Stream.ACCEPT, position) for position in positions], axis=1),
        mx.stack([noise(Stream.TARGET, position) for position in positions], axis=1),
    )
    return mx.concatenate([ids[:, :count], tokens], axis=1)


def emitted(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The first two tokens of DRAWS rows, the second by a further step where it is needed."""
    first = np.array(decide(p, q, mx.full((DRAWS,), START), 0, 2))
    drafts, tokens = first[:, :2], first[:, 2:]
    again = np.array(decide(p, q, mx.array(tokens[:, 0]), 1, 1))[:, 1]
    second = np.where(tokens[:, 0] == drafts[:, 0], tokens[:, 1], again)
    return np.stack([tokens[:, 0], second], axis=1)


def p_value(pairs: np.ndarray, p: np.ndarray) -> float:
    """How well the pairs fit the joint law of two positions; 0 when an impossible one is there."""
    probs = np.exp(p.astype(np.float64))
    probs /= probs.sum(-1, keepdims=True)
    expected = (probs[START][:, None] * probs[:VOCAB]).ravel() * len(pairs)
    observed = np.bincount(pairs[:, 0] * VOCAB + pairs[:, 1], minlength=VOCAB * VOCAB)
    if observed[expected == 0].any():
        return 0.0
    common = expected >= 5
    groups = [(observed[common], expected[common])]
    if expected[~common].sum() > 0:
        groups.append((observed[~common].sum(keepdims=True), expected[~common].sum(keepdims=True)))
    seen, wanted = (np.concatenate(column) for column in zip(*groups, strict=True))
    return float(chisquare(seen, wanted).pvalue)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_two_positions_have_the_targets_joint_law(
    drafter: str, masked: bool, temperature: float
) -> None:
    p = target_law(temperature, masked)
    assert p_value(emitted(p, DRAFTERS[drafter](p)), p) > 1e-4


def test_the_count_of_accepted_drafts_is_the_overlap_of_both_laws() -> None:
    p = target_law(1.0, masked=True)
    for drafter, make in DRAFTERS.items():
        q = make(p)
        drafts, tokens = np.array(decide(p, q, mx.full((DRAWS,), START), 0, 1))[:, :2].T
        overlap = np.minimum(*(np.array(mx.softmax(mx.array(x[START]))) for x in (p, q))).sum()
        assert abs(np.mean(drafts == tokens) - overlap) < 0.006, drafter


BROKEN = {
    "every draft is accepted": ("accepts", lambda p, q, ids, uniforms: mx.ones(ids.shape) > 0),
    "the residual is the target's law": ("residual", lambda p, q: p),
    "the residual is taken the wrong way round": ("residual", lambda p, q: mx.maximum(q - p, 0)),
    "the ratio is the wrong way round": (
        "accepts",
        lambda p, q, ids, uniforms: rejection_accepts(q, p, ids, uniforms),
    ),
}
rejection_accepts = rejection.accepts


@pytest.mark.parametrize("drafter", ["close", "far", "uniform"])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_rule_fails_the_same_test(
    broken: str, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, mutant = BROKEN[broken]
    monkeypatch.setattr(rejection, name, mutant)
    p = target_law(1.0, masked=True)
    assert p_value(emitted(p, DRAFTERS[drafter](p)), p) < 1e-9


def test_noise_shared_by_drafter_and_target_fails_the_same_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The replacement is then likelier to be what was drafted next to it."""
    shared = {Stream.DRAFT: Stream.TARGET}
    monkeypatch.setitem(globals(), "noise", lambda s, n, of=noise: of(shared.get(s, s), n))
    p = target_law(1.0, masked=False)
    assert p_value(emitted(p, DRAFTERS["far"](p)), p) < 1e-9


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_positions_without_a_draft_are_drawn_as_in_plain_decoding(temperature: float) -> None:
    scores = mx.array(TARGET)
    draws = draws_of(np.arange(len(TARGET)), temperature=temperature)
    target, dice = law(scores, draws)[:, None], gumbel_noise(draws, VOCAB)[:, None]
    nothing = Drafted(mx.full((len(draws), 1), NO_DRAFT))
    tokens = judge(target, nothing, acceptance_uniforms(draws)[:, None], dice)
    assert tokens[:, 0].tolist() == choose(scores, draws).tolist()


@pytest.mark.parametrize("token", range(VOCAB))
@pytest.mark.parametrize("drafter", ["one-hot right", "close", "far", "uniform"])
def test_a_greedy_row_takes_the_best_token_whatever_was_drafted(drafter: str, token: int) -> None:
    draws = draws_of(np.arange(200), temperature=0)
    wide = mx.broadcast_to(mx.array(TARGET[START]), (len(draws), VOCAB))
    q = mx.broadcast_to(mx.array(DRAFTERS[drafter](TARGET)[START]), (len(draws), 1, VOCAB))
    drafted = Drafted(mx.full((len(draws), 1), token), q)
    uniforms = acceptance_uniforms(draws)[:, None]
    tokens = judge(
        law(wide, draws)[:, None], drafted, uniforms, gumbel_noise(draws, VOCAB)[:, None]
    )
    assert set(tokens[:, 0].tolist()) == {int(TARGET[START].argmax())}


scores_of = st.lists(
    st.sampled_from([-np.inf, -200.0, -90.0, -1.0, 0.0, 0.3, 40.0]), min_size=VOCAB, max_size=VOCAB
).filter(lambda row: np.isfinite(row).any())


@settings(max_examples=300)
@given(
    p=scores_of,
    q=scores_of,
    token=st.integers(0, VOCAB - 1),
    uniform=st.sampled_from([0.0, 2.0**-24, 0.5, 1 - 2.0**-24]),
    seed=st.integers(0, 50),
)
def test_no_law_however_odd_lets_an_impossible_token_through(
    p: list[float], q: list[float], token: int, uniform: float, seed: int
) -> None:
    """Also drafts that their own law excludes, vanishing probabilities, and p equal to q."""
    dice = gumbel_noise(draws_of(np.array([seed])), VOCAB)[None]
    for scores in (q, p, None):
        laws = None if scores is None else mx.array([[scores]])
        drafted = Drafted(mx.array([[token]]), laws)
        chosen = judge(mx.array([[p]]), drafted, mx.array([[uniform]]), dice).item()
        assert np.isfinite(p[chosen])
        if scores is p and np.array(mx.softmax(mx.array(p)))[token] > 0:
            assert chosen == token, "a draft of the target's own law is kept"


def test_drafts_are_laid_out_where_they_belong_and_certain_ones_get_one_hot_laws() -> None:
    drafts = [RowDraft(0, 0, (1, 2), mx.array(TARGET[:2])), RowDraft(2, 1, (3,))]
    drafted = lay_out(drafts, rows=3, width=3, vocab_size=VOCAB)
    assert drafted.ids.tolist() == [[1, 2, -1], [-1, -1, -1], [-1, 3, -1]]
    np.testing.assert_array_equal(np.array(drafted.scores[0, :2]), TARGET[:2])
    assert np.flatnonzero(np.isfinite(np.array(drafted.scores[2, 1]))).tolist() == [3]
    assert lay_out(drafts[1:], rows=3, width=3, vocab_size=VOCAB).scores is None


def test_streams_of_a_row_and_rows_of_a_stream_share_no_key() -> None:
    seeds, positions = np.arange(20, dtype=np.uint64), np.arange(500)
    keys = {
        tuple(key)
        for stream in Stream
        for key in draw_keys(
            np.repeat(stream_seeds(seeds, stream), len(positions)), np.tile(positions, len(seeds))
        ).tolist()
    }
    assert len(keys) == 20 * len(Stream) * 500
    assert stream_seeds(seeds, Stream.TARGET).tolist() == seeds.tolist()


def test_uniforms_are_even_and_stay_below_one() -> None:
    uniforms = np.array(noise(Stream.ACCEPT, 0))
    assert uniforms.min() >= 0
    assert uniforms.max() < 1
    assert chisquare(np.histogram(uniforms, bins=50, range=(0, 1))[0]).pvalue > 1e-4
