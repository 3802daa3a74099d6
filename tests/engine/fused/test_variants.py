"""An engine that has been opened has asked for every kernel that its requests will ask for.

The stand-in for mx.fast.cuda_kernel notes what is asked for and answers zeros, so that every draft
is right and steps of every width come up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import runner
from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.draft.source import DraftSource
from engine.fused import kernels, parts
from engine.fused.parts import Parts, take_parts
from engine.fused.variants import Shape, Variant, covering, variants
from engine.loop import Engine
from engine.models.load import LoadedModel
from engine.request import Request
from engine.shapes import ROW_BUCKETS, STEP_WIDTHS
from engine.testing import ScriptedDrafter, tiny_model

from .conftest import small_llama

LANES = {
    "serial": EngineConfig(),
    "serial+spec": EngineConfig(num_draft_tokens=3, draft_budgets="fixed"),
    "batch": EngineConfig(max_rows=12),
    "batch+spec": EngineConfig(
        max_rows=12, num_draft_tokens=7, draft_budgets="fixed", spec_batching="batched"
    ),
    "two models": EngineConfig(
        max_rows=3,
        num_draft_tokens=3,
        draft_budgets="fixed",
        spec_batching="batched",
        drafter="two_model",
    ),
}


class Asked:
    """Kernels that were asked for since it was last taken."""

    def __init__(self) -> None:
        self._variants: set[Variant] = set()

    def kernel(self, name: str, _inputs: str) -> Any:
        """Stand in for kernels._kernel."""

        def answer(**call: Any) -> list[mx.array]:
            self._variants.add((name, tuple(call["template"])))
            return [mx.zeros(call["output_shapes"][0], call["output_dtypes"][0])]

        return answer

    def take(self) -> set[Variant]:
        """Return them and begin anew."""
        taken, self._variants = self._variants, set()
        return taken


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    asked = Asked()
    monkeypatch.setattr(kernels, "_kernel", asked.kernel)
    monkeypatch.setattr(runner, "prefers_fused_steps", lambda: True)
    mx.disable_compile()  # a traced step asks once
    yield asked
    mx.enable_compile()


def half_llama(group: int) -> LoadedModel:
    """A model for the kernels, with the tiny model's tokenizer."""
    tiny = tiny_model()
    heads = {"num_attention_heads": 2 * group, "num_key_value_heads": 2}
    model = small_llama(vocab_size=tiny.vocab_size, **heads)
    model.set_dtype(mx.bfloat16)
    return replace(tiny, name="half", model=model, config={}, path=None)


def drafter_of(config: EngineConfig, model: LoadedModel) -> DraftSource | None:
    """A drafter that always has as many drafts as it may, right ones."""
    if config.drafter == "two_model":
        return build_drafter(config, model)
    return ScriptedDrafter(lambda _: [0] * config.num_draft_tokens)


def requests(rows: int, drafts: int | None) -> list[Request]:
    """Rows that come and go at different times, so that every number of them is met."""
    return [
        Request(
            prompt_ids=(*range(40, 50 + row),),
            max_tokens=20 + 5 * row,
            ignore_eos=True,
            num_draft_tokens=drafts,
        )
        for row in range(2 * rows)
    ]


LIMITS = {
    "small weights": (kernels.SMALL_BYTES, parts.LIGHT_BYTES),
    "large weights of a light model": (0, parts.LIGHT_BYTES),
    "large weights of a heavy model": (0, 0),
}
"""SMALL_BYTES and LIGHT_BYTES."""


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("lane", LANES)
def test_no_request_asks_for_a_kernel_that_opening_the_engine_did_not(
    asked: Asked, lane: str, group: int, limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "SMALL_BYTES", limits[0])
    monkeypatch.setattr(parts, "LIGHT_BYTES", limits[1])
    config, model = LANES[lane], half_llama(group)
    engine = Engine(model, config, drafter_of(config, model))
    opened = asked.take()
    assert engine.stats().kv_bytes == 0, "the cache is as it was"
    for drafts in (0, 1, None):
        engine.generate(requests(config.max_rows, drafts))
    assert asked.take() == opened, "and nothing is compiled in vain"


@pytest.mark.parametrize("lane", LANES)
def test_without_kernels_nothing_is_computed_when_an_engine_opens(lane: str) -> None:
    config = LANES[lane]
    engine = Engine(tiny_model(), config, drafter_of(config, tiny_model()))
    before = engine.stats().host_syncs
    engine._runner.warm_up(config.max_rows, widest=8)
    assert engine.stats().host_syncs == before


@cache
def biased_parts(light_bytes: int) -> Parts:
    """A model for the kernels, as they see it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "LIGHT_BYTES", light_bytes)
        taken = take_parts(small_llama(attention_bias=True))
    assert taken is not None
    return taken


shapes = st.builds(Shape, st.sampled_from(ROW_BUCKETS), st.sampled_from(STEP_WIDTHS))


@given(
    asked_for=st.sets(shapes, min_size=1),
    small_bytes=st.sampled_from([0, 1 << 17, 1 << 30]),
    light_bytes=st.sampled_from([0, parts.LIGHT_BYTES]),
)
def test_a_few_of_any_steps_ask_for_all_their_kernels(
    asked_for: set[Shape], small_bytes: int, light_bytes: int
) -> None:
    taken = biased_parts(light_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "SMALL_BYTES", small_bytes)
        chosen = covering(taken, asked_for)
        assert set(chosen) <= asked_for
        wanted = frozenset().union(*(variants(taken, shape) for shape in asked_for))
        assert frozenset().union(*(variants(taken, shape) for shape in chosen)) == wanted
        assert len(chosen) <= len(wanted)
