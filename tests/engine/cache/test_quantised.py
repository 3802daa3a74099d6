"""Quantised keys and values: a row's logits depend on nothing but its own tokens."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import QuantizedKVCache
from mlx_lm.models.llama import Model, ModelArgs

from benchmarks.kv_bits import agreement
from engine.config import EngineConfig
from engine.errors import ModelError, SettingError
from engine.loop import Engine
from engine.models.load import LoadedModel
from engine.request import Request
from engine.runner import Runner
from engine.sequence import Sequence
from engine.testing import ScriptedDrafter, tiny_model
from tests.engine.cache.families import family, padded, rows_at

CARRIED = ("llama", "gemma3_text", "ministral3", "qwen3_next", "falcon_h1")
FEW_STEPS = 0.5
"""What a few numbers rounded to the next step may do, as a share of what rounding them all does:
sums in another order differ in the last bit, and a number near the middle then goes up or down."""
ROWS = [(1, 2, 3), tuple(range(40, 60)), (9,) * 11]


def model_with_heads_of(dim: int) -> LoadedModel:
    """A one-layer llama with heads of `dim`."""
    mx.random.seed(1)
    args = ModelArgs(
        model_type="llama",
        hidden_size=32,
        num_hidden_layers=1,
        intermediate_size=64,
        num_attention_heads=2,
        head_dim=dim,
        rms_norm_eps=1e-5,
        vocab_size=tiny_model().vocab_size,
    )
    model = Model(args)
    mx.eval(model.parameters())
    return replace(tiny_model(), name=f"heads-{dim}", model=model, num_layers=1, path=None)


def logits_alone(name: str, bits: int | None, row: tuple[int, ...]) -> np.ndarray:
    """Return what a row alone scores behind its prompt and a 7, [2, vocab]."""
    runner = Runner(family(name), 1, bits)
    runner.cache.resize(1, 256)
    runner.prefill(mx.array([list(row)]), rows_at((0,), (len(row),)))
    return np.array(runner.forward(mx.array([[7, 8]]), rows_at((len(row),), (2,)))[0])


def size(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", CARRIED)
def test_rows_of_a_batch_get_the_logits_of_a_row_alone(name: str, bits: int) -> None:
    batch = Runner(family(name), 256, bits)
    batch.cache.resize(3, 256)
    lengths = [len(row) for row in ROWS]
    batch.prefill(padded(ROWS, 24), rows_at((0, 0, 0), lengths))
    then = mx.array([[7, 8], [7, 8], [7, 0]])
    together = np.array(batch.forward(then, rows_at(lengths, (2, 2, 1))))
    for index, row in enumerate(ROWS):
        count = 1 if index == 2 else 2
        alone, exact = (logits_alone(name, kept, row)[:count] for kept in (bits, None))
        assert size(together[index, :count] - alone) < FEW_STEPS * size(alone - exact)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_alone_gets_the_logits_of_mlx_lms_own_quantised_cache(bits: int) -> None:
    model = family("llama")
    runner = Runner(model, 1, bits)
    runner.cache.resize(1, 256)
    caches = [QuantizedKVCache(group_size=32, bits=bits) for _ in model.model.layers]
    ids = mx.array([list(range(40, 60))])
    ours = runner.forward(ids, rows_at((0,), (20,)))
    np.testing.assert_allclose(
        np.array(ours), np.array(model.model(ids, cache=caches)), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("lengths", [(3, 3), (3, 20)], ids=["uniform", "ragged"])
def test_a_rollback_is_bit_equal_to_never_having_drafted(
    bits: int, lengths: tuple[int, int]
) -> None:
    after = []
    for drafts in ((), (90, 91, 92)):
        runner = Runner(family("llama"), 1, bits)
        runner.cache.resize(2, 256)
        prompts = padded([range(n) for n in lengths], max(lengths))
        runner.prefill(prompts, rows_at((0, 0), lengths))
        if drafts:
            runner.forward(mx.array([[7, *drafts]] * 2), rows_at(lengths, (4, 4)))
            assert runner.settle(0, (1, 1)) == (1, 1)
        after.append(runner.forward(mx.array([[7], [7]]), rows_at(lengths, (1, 1))))
    assert mx.array_equal(*after)


@pytest.mark.parametrize(("dim", "group_size"), [(128, 64), (64, 64), (96, 32), (32, 32)])
def test_the_largest_group_that_divides_the_head_is_taken(dim: int, group_size: int) -> None:
    runner = Runner(model_with_heads_of(dim), 1, 8)
    runner.cache.resize(1, 256)
    assert runner.cache.views(0, (0,), (1,), 1)[0].group_size == group_size


def test_heads_that_no_group_divides_are_refused_by_their_dimension() -> None:
    with pytest.raises(ModelError, match="heads-48 has heads of dimension 48"):
        Runner(model_with_heads_of(48), 1, 8)


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_an_attention_that_reads_no_quantised_keys_is_refused_with_its_reason(name: str) -> None:
    with pytest.raises(ModelError, match=f"^{name} does not read quantised keys and values"):
        Runner(family(name), 1, 8)


@pytest.mark.parametrize("value", [2, 16, 8.0, True, "8"])
def test_kv_bits_is_eight_or_four_or_unset(value: object) -> None:
    with pytest.raises(SettingError, match="kv_bits"):
        EngineConfig.from_mapping({"kv_bits": value})


@pytest.mark.parametrize("bits", [8, 4])
def test_every_lane_emits_the_ids_of_the_quantised_serial_lane(bits: int) -> None:
    model = family("gemma3_text")
    requests = [Request(prompt_ids=row, max_tokens=20, ignore_eos=True) for row in ROWS]
    serial = Engine(model, EngineConfig(kv_bits=bits))
    expected = {
        request.prompt_ids: completion.token_ids
        for request, completion in zip(requests, serial.generate(requests), strict=True)
    }

    def propose(sequence: Sequence) -> list[int]:
        ahead = expected[sequence.request.prompt_ids][sequence.num_emitted :][:3]
        right = sequence.num_emitted % 4
        return [t if i < right else (t + 1) % 250 for i, t in enumerate(ahead)]

    for max_rows, drafts in [(3, 0), (1, 3), (3, 3)]:
        config = EngineConfig(
            max_rows=max_rows,
            num_draft_tokens=drafts,
            draft_budgets="fixed",
            spec_batching="batched",
            kv_bits=bits,
        )
        engine = Engine(model, config, ScriptedDrafter(propose))
        for request, completion in zip(requests, engine.generate(requests), strict=True):
            assert completion.token_ids == expected[request.prompt_ids]


def test_fewer_bits_agree_less_and_the_measure_says_on_how_many_tokens() -> None:
    unquantised, eight, four = (
        agreement(family("llama"), ROWS, bits, max_tokens=16) for bits in (None, 8, 4)
    )
    assert (unquantised.top1, unquantised.ids, unquantised.logit_error) == (1.0, 1.0, 0.0)
    assert unquantised.num_forced == unquantised.num_free == len(ROWS) * 16
    assert 0 < eight.logit_error < four.logit_error
    assert eight.top1 >= four.top1
