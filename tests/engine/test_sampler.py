"""One order, one source of randomness: what a row draws depends on its own parameters alone."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from engine import sampler
from engine.oracle import _final, _penalised
from engine.request import Request, SamplingParams
from engine.row_params import RECORD, Draws, record_of
from engine.sampler import Adjustment, adjust, choose, draw_key, draw_keys, final_scores, truncate

VOCAB = 12


def draws_of(rows: list[tuple[SamplingParams, int, int]]) -> Draws:
    """The draws of rows given as (parameters, seed, position)."""
    requests = [Request(prompt_ids=(0,), sampling=params) for params, _, _ in rows]
    records = [
        record_of(request, seed) for request, (_, seed, _) in zip(requests, rows, strict=True)
    ]
    positions = np.array([position for _, _, position in rows], dtype=np.int64)
    return Draws(np.array(records, dtype=RECORD), positions)


def logits_of(seed: int, rows: int = 1) -> mx.array:
    """Random logits, [rows, VOCAB]."""
    return mx.random.normal((rows, VOCAB), key=mx.random.key(seed)) * 3


def counts_of(logits: mx.array, params: SamplingParams, draws: int) -> np.ndarray:
    """How often each token is drawn from one row of logits over many positions."""
    wide = mx.broadcast_to(logits, (draws, VOCAB))
    tokens = choose(wide, draws_of([(params, 11, index) for index in range(draws)]))
    return np.bincount(np.array(tokens), minlength=VOCAB)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_softmax(temperature: float) -> None:
    logits = logits_of(3)
    counts = counts_of(logits, SamplingParams(temperature=temperature), 20_000)
    expected = np.array(mx.softmax(logits[0] / temperature), dtype=np.float64) * 20_000
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    keep = wanted > 0
    assert chisquare(observed[keep], wanted[keep] * observed.sum() / wanted.sum()).pvalue > 1e-3


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(temperature=1, top_k=3), [0, 1, 2]),
        (SamplingParams(temperature=1, top_p=0.0), [0]),
        (SamplingParams(temperature=1, top_p=1e-9), [0]),
        (SamplingParams(temperature=1, top_p=0.6), [0, 1]),
        (SamplingParams(temperature=1, min_p=0.99), [0]),
        (SamplingParams(temperature=1, min_p=0.2), [0, 1, 2]),
        (SamplingParams(temperature=1, top_k=2, top_p=0.99, min_p=0.01), [0, 1]),
    ],
    ids=["top-k", "top-p 0", "top-p tiny", "top-p", "min-p high", "min-p", "all three"],
)
def test_truncation_keeps_exactly_the_likeliest_tokens(
    params: SamplingParams, kept: list[int]
) -> None:
    probs = np.array([0.4, 0.25, 0.15, 0.06, 0.05, 0.03, 0.02, 0.01, 0.01, 0.01, 0.005, 0.005])
    counts = counts_of(mx.array(np.log(probs), dtype=mx.float32), params, 2_000)
    assert np.flatnonzero(counts).tolist() == kept


def test_a_fully_masked_token_is_never_drawn_however_hot() -> None:
    logits = np.zeros(VOCAB, dtype=np.float32)
    logits[[2, 5]] = -np.inf
    counts = counts_of(mx.array(logits), SamplingParams(temperature=50, top_p=0.9), 3_000)
    assert counts[[2, 5]].tolist() == [0, 0]
    assert not np.isnan(counts).any()


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-45, 5e-324])
def test_the_coldest_temperatures_take_the_likeliest_token(temperature: float) -> None:
    logits = logits_of(4)
    counts = counts_of(logits, SamplingParams(temperature=temperature, top_p=0.9), 50)
    assert counts[int(mx.argmax(logits[0]))] == 50


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32], ids=str)
def test_a_bias_keeps_its_size_in_every_dtype(dtype: mx.Dtype) -> None:
    logits = mx.array([[20.0, 20.0, 0.0]], dtype=dtype)
    finest = SamplingParams(logit_bias={1: 0.001})
    scores = adjust(logits, [Adjustment(0, finest, (), 0)])
    assert choose(scores, draws_of([(finest, 0, 0)])).item() == 1
    banned = SamplingParams(temperature=1, top_p=0.5, logit_bias=dict.fromkeys(range(3), -1e30))
    assert mx.isfinite(adjust(logits, [Adjustment(0, banned, (), 0)])).all()


def test_keys_of_a_row_never_repeat_and_seeds_differ() -> None:
    keys = {draw_key(seed, position) for seed in range(20) for position in range(500)}
    assert len(keys) == 20 * 500


@given(
    draws=st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**31)), min_size=1, max_size=20
    )
)
def test_keys_made_together_are_those_of_the_formula(draws: list[tuple[int, int]]) -> None:
    seeds = np.array([seed for seed, _ in draws], dtype=np.uint64)
    positions = np.array([position for _, position in draws], dtype=np.int64)
    together = [tuple(words) for words in draw_keys(seeds, positions).tolist()]
    assert together == [draw_key(seed, position) for seed, position in draws]


@pytest.mark.parametrize(
    ("seed", "position", "token"),
    [(0, 0, 903), (0, 1, 512), (42, 7, 144), (2**63, 3, 124), (2**64 - 1, 2**31, 593)],
    ids=str,
)
def test_a_seed_keeps_its_tokens_over_versions(seed: int, position: int, token: int) -> None:
    flat = mx.zeros((1, 1000))
    params = SamplingParams(temperature=1)
    assert choose(flat, draws_of([(params, seed, position)])).item() == token


sampling = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 4]),
    top_p=st.sampled_from([0.0, 0.5, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.4]),
    logit_bias=st.dictionaries(
        st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 2.5]), max_size=3
    ),
)
history = st.lists(st.integers(0, VOCAB - 1), max_size=8)


@settings(max_examples=150)
@given(
    rows=st.lists(
        st.tuples(sampling, st.integers(0, 2**63), history, history), min_size=1, max_size=5
    ),
    seed=st.integers(0, 1000),
)
def test_rows_of_a_mixed_batch_choose_what_each_would_choose_alone(
    rows: list[tuple[SamplingParams, int, list[int], list[int]]], seed: int
) -> None:
    logits = logits_of(seed, len(rows))
    together = choose_for(logits, rows)
    alone = [choose_for(logits[row : row + 1], [rows[row]])[0] for row in range(len(rows))]
    assert together == alone


def choose_for(
    logits: mx.array, rows: list[tuple[SamplingParams, int, list[int], list[int]]]
) -> list[int]:
    """The tokens of rows given as (parameters, seed, prompt, emitted)."""
    adjustments = [
        Adjustment(row, params, (*prompt, *emitted), len(prompt))
        for row, (params, _, prompt, emitted) in enumerate(rows)
        if not params.is_plain
    ]
    draws = draws_of([(params, seed, len(emitted)) for params, seed, _, emitted in rows])
    chosen: list[int] = choose(adjust(logits, adjustments), draws).tolist()
    return chosen


@settings(max_examples=150)
@given(params=sampling, prompt=history, emitted=history, seed=st.integers(0, 10_000))
def test_the_sampler_agrees_with_the_oracles_own_arithmetic(
    params: SamplingParams, prompt: list[int], emitted: list[int], seed: int
) -> None:
    logits = logits_of(seed)
    ours = adjust(logits, [Adjustment(0, params, (*prompt, *emitted), len(prompt))])
    if params.temperature > 0:
        ours = final_scores(ours, draws_of([(params, seed, len(emitted))]))
    request = Request(prompt_ids=tuple(prompt) or (0,), sampling=params)
    if not prompt and params.repetition_penalty != 1.0:
        return
    scores = _penalised(np.array(logits[0]), request, emitted)
    theirs = _final(scores, params, seed, len(emitted))
    np.testing.assert_allclose(np.array(ours[0]), theirs, atol=1e-4)


@settings(max_examples=150)
@given(
    rows=st.lists(st.lists(st.sampled_from([-np.inf, 0.0, 1.0, 2.0]), min_size=8, max_size=8)),
    cuts=st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2, 3, 7, 8, 100]),
            st.sampled_from([0.0, 0.26, 0.5, 0.77, 1.0]),
            st.sampled_from([0.0, 0.2, 0.5, 1.0]),
        ),
        min_size=1,
    ),
)
def test_a_cut_through_equal_scores_keeps_the_lower_ids_as_the_oracle_does(
    rows: list[list[float]], cuts: list[tuple[int, float, float]]
) -> None:
    rows = [row for row in rows if np.isfinite(row).any()][: len(cuts)]
    if not rows:
        return
    params = [
        SamplingParams(temperature=1, top_k=top_k, top_p=top_p, min_p=min_p)
        for top_k, top_p, min_p in cuts[: len(rows)]
    ]
    scores = np.array(rows, dtype=np.float32)
    ours = truncate(mx.array(scores), draws_of([(each, 0, 0) for each in params]))
    theirs = [_final(row, each, 0, 0) for row, each in zip(scores, params, strict=True)]
    assert np.isfinite(np.array(ours)).tolist() == np.isfinite(theirs).tolist()


def test_top_k_keeps_exactly_k_of_a_flat_row() -> None:
    params = SamplingParams(temperature=1, top_k=3)
    kept = truncate(mx.zeros((1, 1000)), draws_of([(params, 0, 0)]))
    assert np.flatnonzero(np.isfinite(np.array(kept[0]))).tolist() == [0, 1, 2]


def test_only_sampled_rows_are_given_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    greedy, warm = SamplingParams(), SamplingParams(temperature=1)
    wanted: list[int] = []
    make = sampler.gumbel_noise

    def count(draws: Draws, vocab_size: int) -> mx.array:
        wanted.append(len(draws))
        return make(draws, vocab_size)

    monkeypatch.setattr(sampler, "gumbel_noise", count)
    choose(logits_of(0, 3), draws_of([(greedy, 0, 0), (warm, 0, 0), (greedy, 0, 0)]))
    choose(logits_of(0, 2), draws_of([(greedy, 0, 0)] * 2))
    assert wanted == [1]
