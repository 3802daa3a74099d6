"""An engine is stepped by whichever thread likes to, one at a time: none is the one it belongs to.

MLX lets a thread evaluate only what it has built itself, so a step leaves nothing half done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle

import mlx.core as mx
import pytest
from mlx_lm.models import llama

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.loop import Engine
from engine.models import second_core
from engine.models.exchange import VECTOR_MATH, exchange_functions
from engine.models.load import LoadedModel
from engine.models.rotary import share_rotations
from engine.models.second_core import SHARED_ROWS, SHARED_WEIGHTS
from engine.models.tiled import TiledLinear, tile_weights
from engine.request import Constraint, ConstraintKind, Request, SamplingParams
from engine.testing import tiny_model
from tests.engine.cache.families import family


@cache
def tuned_model() -> LoadedModel:
    """A model of random weights that computes as a real one does on a CPU, large products too."""
    tiny = tiny_model()
    args = {
        "model_type": "llama",
        "hidden_size": 384,
        "num_hidden_layers": 2,
        "intermediate_size": 832,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": tiny.vocab_size,
    }
    mx.random.seed(1)
    model = llama.Model(llama.ModelArgs.from_dict(args))
    share_rotations(model)
    exchange_functions(model, VECTOR_MATH)
    tile_weights(model)
    mx.eval(model.parameters())
    down = model.model.layers[0].mlp.down_proj
    assert isinstance(down, TiledLinear)
    assert down.tiles.size >= SHARED_WEIGHTS
    return replace(tiny, name="tuned", model=model, config={}, path=None)


@dataclass(frozen=True)
class Lane:
    """Settings on a model."""

    config: EngineConfig
    model: Callable[[], LoadedModel] = tiny_model

    def open(self) -> Engine:
        is_pair = self.config.drafter == "two_model"
        drafter = build_drafter(self.config, self.model() if is_pair else None)
        return Engine(self.model(), self.config, drafter)


BATCH = EngineConfig(max_rows=3, prefill_chunk=64, interleaved_prefill=48)
SPEC = replace(BATCH, num_draft_tokens=3, draft_budgets="fixed")
LANES = {
    "serial": Lane(EngineConfig(prefill_chunk=32, prefix_cache_bytes=10**7)),
    "batch": Lane(replace(BATCH, prefix_cache_bytes=10**7)),
    "batch, not pipelined": Lane(replace(BATCH, pipelined=False)),
    "batch+ngram": Lane(SPEC),
    "batch+two_model": Lane(replace(SPEC, drafter="two_model")),
    "batch+rejection": Lane(replace(SPEC, acceptance="rejection")),
    "batch+kv8": Lane(replace(BATCH, kv_bits=8), lambda: family("llama")),
    "gemma3": Lane(SPEC, lambda: family("gemma3_text")),
    "mamba2": Lane(SPEC, lambda: family("mamba2")),
    "qwen3_next": Lane(SPEC, lambda: family("qwen3_next")),
    "lfm2": Lane(BATCH, lambda: family("lfm2")),
    "tuned": Lane(SPEC, tuned_model),
}


def requests() -> list[Request]:
    """Rows that come and go at different times: long and short, drawn, and with a grammar."""
    text = tuple(33 + (7 * i * i) % 60 for i in range(110))
    word = Constraint(kind=ConstraintKind.REGEX, value="[a-f]{3}(x|y){4}")
    drawn = SamplingParams(temperature=0.8, seed=3, logprobs=True, top_logprobs=2)
    return [
        Request(prompt_ids=text, max_tokens=14, ignore_eos=True),
        Request(prompt_ids=text[:70], max_tokens=9, ignore_eos=True, sampling=drawn),
        Request(prompt_ids=(65, 66, 65, 66, 67), max_tokens=12, constraint=word),
        Request(prompt_ids=text[:SHARED_ROWS], max_tokens=20, ignore_eos=True),
        Request(prompt_ids=(70,), max_tokens=6, ignore_eos=True),
    ]


def run(engine: Engine, steppers: Iterator[ThreadPoolExecutor]) -> list[tuple[int, ...]]:
    """Run all rows, each step by the next stepper; returns their ids."""
    names = [engine.submit(request) for request in requests()]
    while engine.has_work:
        next(steppers).submit(engine.step).result()
    completions = [engine.completion(name) for name in names]
    assert [completion.error for completion in completions] == [None] * len(names)
    return [completion.token_ids for completion in completions]


@pytest.fixture(autouse=True)
def two_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let large products take a second core, however many there are."""
    monkeypatch.setattr(second_core, "_num_streams", lambda: 2)


@cache
def expected(lane: str) -> list[tuple[int, ...]]:
    """The ids of a run in the thread that opened the engine."""
    return [completion.token_ids for completion in LANES[lane].open().generate(requests())]


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("lane", LANES)
def test_rows_get_the_same_ids_whichever_threads_take_the_steps(
    lane: str, num_threads: int
) -> None:
    wanted, engine = expected(lane), LANES[lane].open()
    with ExitStack() as stack:
        pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(num_threads)]
        assert run(engine, cycle(pools)) == wanted
        assert run(engine, cycle(pools)) == wanted, "what is kept serves other threads too"


@pytest.mark.parametrize("lane", ["batch", "tuned"])
def test_an_engine_may_be_opened_and_a_model_loaded_by_a_thread_that_is_gone(lane: str) -> None:
    with ThreadPoolExecutor(1) as opener:
        engine = opener.submit(LANES[lane].open).result()
    with ThreadPoolExecutor(1) as stepper:
        assert run(engine, cycle([stepper])) == expected(lane)
