"""What choosing tokens costs a step: `pytest benchmarks/test_sampler.py --benchmark-enable`."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from engine.logprobs import score
from engine.request import Request, SamplingParams
from engine.row_params import RECORD, Draws, record_of
from engine.sampler import choose, draw_keys

VOCAB = 49_152
ROWS = [1, 8, 64]
SAMPLING = {
    "greedy": [SamplingParams()],
    "temperature": [SamplingParams(temperature=0.8)],
    "top-p": [SamplingParams(temperature=0.8, top_p=0.95)],
    "half greedy": [SamplingParams(), SamplingParams(temperature=0.8)],
}


def logits_of(num_rows: int) -> mx.array:
    """Scores of a real vocabulary's width."""
    logits = mx.random.normal((num_rows, VOCAB), key=mx.random.key(0)) * 4
    mx.eval(logits)
    return logits


def records_of(kinds: list[SamplingParams], num_rows: int) -> np.ndarray:
    """Parameters of rows that take turns in `kinds`."""
    return np.array(
        [
            record_of(Request(prompt_ids=(0,), sampling=kinds[row % len(kinds)]), row)
            for row in range(num_rows)
        ],
        dtype=RECORD,
    )


@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("kind", SAMPLING)
def test_choose(kind: str, num_rows: int, benchmark: BenchmarkFixture) -> None:
    """Scores of one step to tokens, device work included."""
    logits, records = logits_of(num_rows), records_of(SAMPLING[kind], num_rows)
    draws = Draws(records, np.arange(num_rows))
    benchmark(lambda: mx.eval(choose(logits, draws)))


@pytest.mark.parametrize("num_rows", ROWS)
def test_build(num_rows: int, benchmark: BenchmarkFixture) -> None:
    """The host's part of a step with plain temperatures: nothing is computed."""
    logits, records = logits_of(num_rows), records_of(SAMPLING["temperature"], num_rows)
    draws = Draws(records, np.arange(num_rows))
    benchmark(choose, logits, draws)


@pytest.mark.parametrize("num_rows", ROWS)
def test_keys(num_rows: int, benchmark: BenchmarkFixture) -> None:
    """The random keys of one step."""
    records = records_of(SAMPLING["temperature"], num_rows)
    benchmark(draw_keys, records["seed"], np.arange(num_rows))


@pytest.mark.parametrize("num_rows", ROWS)
@pytest.mark.parametrize("num_top", [0, 5, 20])
def test_logprobs(num_top: int, num_rows: int, benchmark: BenchmarkFixture) -> None:
    """Log-probabilities of one token a row."""
    logits, tokens = logits_of(num_rows), mx.zeros(num_rows, mx.int32)
    wanted = np.full(num_rows, num_top)
    benchmark(lambda: mx.eval(*score(logits, tokens, wanted).arrays))
