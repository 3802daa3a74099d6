"""Speculation with a draft model gives mlx-lm's own ids and keeps both caches in step."""

from __future__ import annotations

from dataclasses import fields, replace

import mlx.core as mx
import pytest
from mlx_lm import stream_generate
from mlx_lm.models.llama import Model, ModelArgs

from engine.config import EngineConfig
from engine.draft.registry import DRAFTERS, build_drafter
from engine.draft.two_model import TwoModelDrafter
from engine.errors import ModelError, SettingError
from engine.loop import Engine
from engine.models.load import LoadedModel
from engine.models.tokenizer import Tokenizer
from engine.request import Request
from engine.sequence import Sequence
from engine.testing import tiny_model


def other_model(seed: int) -> LoadedModel:
    """A model of the tiny model's vocabulary with other weights: nearly all drafts are wrong."""
    tiny = tiny_model()
    mx.random.seed(seed)
    args = ModelArgs(
        model_type="llama",
        hidden_size=32,
        num_hidden_layers=1,
        intermediate_size=64,
        num_attention_heads=2,
        rms_norm_eps=1e-5,
        vocab_size=tiny.vocab_size,
    )
    model = Model(args)
    mx.eval(model.parameters())
    return replace(tiny, name="other", model=model, num_layers=1, path=None)


def config(num_draft_tokens: int, **settings: object) -> EngineConfig:
    """Settings of a two_model engine."""
    return EngineConfig.from_mapping(
        {
            "num_draft_tokens": num_draft_tokens,
            "draft_budgets": "fixed",
            "drafter": "two_model",
            **settings,
        }
    )


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3, 7, 15])
@pytest.mark.parametrize("drafter", ["equal", "wrong"])
def test_ids_are_those_of_mlx_lms_speculative_loop(num_draft_tokens: int, drafter: str) -> None:
    target = tiny_model()
    draft = target if drafter == "equal" else other_model(5)
    prompt = target.tokenizer.encode("The quick brown fox")
    settings = config(num_draft_tokens)
    completion = Engine(target, settings, build_drafter(settings, draft)).generate(
        [Request(prompt_ids=tuple(prompt), max_tokens=60)]
    )[0]
    theirs = []
    for response in stream_generate(
        target.model,
        target.tokenizer.wrapper,
        prompt,
        max_tokens=60,
        draft_model=draft.model,
        num_draft_tokens=num_draft_tokens,
    ):
        if response.token in target.eos_ids:
            break
        theirs.append(response.token)
    assert list(completion.token_ids) == theirs


def test_every_drafter_row_holds_its_sequences_prefix_after_each_step() -> None:
    target, draft = tiny_model(), other_model(6)
    settings = config(3, max_rows=3, spec_batching="batched", prefill_chunk=5)
    drafter = build_drafter(settings, draft)
    assert isinstance(drafter, TwoModelDrafter)
    engine = Engine(target, settings, drafter)
    for length in (2, 17, 9, 30):
        engine.submit(
            Request(prompt_ids=tuple(40 + i % 50 for i in range(length)), max_tokens=12 + length)
        )
    while engine.has_work:
        engine.step()
        for row in drafter._table:
            assert row.num_cached < len(row.sequence.ids)
    assert len(drafter._table) == 0
    assert not drafter._by_sequence


class Pause:
    """Draft budgets of a row that pays at its beginning and its end."""

    def budget(self, sequence: Sequence, rows: int, pending: int = 0) -> int:
        is_between = 3 < sequence.num_emitted < 480
        return 0 if is_between else max(0, min(2, sequence.remaining - 1 - pending))


def test_a_drafter_catches_up_within_the_cache_its_row_was_given() -> None:
    target = tiny_model()
    row = Request(prompt_ids=tuple(range(40, 50)), max_tokens=486, ignore_eos=True)
    settings = config(2)
    engine = Engine(target, settings, build_drafter(settings, other_model(6)))
    engine._scheduler._draft_budgets = Pause()
    assert engine._scheduler.row_tokens(engine._intake.row(row)) == 512
    expected = Engine(target, EngineConfig()).generate([row])[0].token_ids
    assert engine.generate([row])[0].token_ids == expected


def test_a_drafter_of_another_vocabulary_is_refused_with_both_sizes() -> None:
    target = tiny_model()

    class Foreign(Tokenizer):
        @property
        def vocabulary(self) -> dict[str, int]:
            return {"a": 0}

    tokenizer = object.__new__(Foreign)
    draft = replace(other_model(1), tokenizer=tokenizer)
    with pytest.raises(ModelError, match=r"1 tokens against \d+"):
        Engine(target, config(2), build_drafter(config(2), draft))


def test_a_two_model_drafter_without_a_model_and_an_unknown_drafter_are_refused() -> None:
    with pytest.raises(SettingError, match="draft_model"):
        build_drafter(config(2))
    with pytest.raises(SettingError, match=r"drafter is 'oracle'; .*ngram, two_model"):
        EngineConfig(drafter="oracle")


def test_the_setting_chooses_among_the_drafters_that_exist() -> None:
    (drafter,) = (item for item in fields(EngineConfig) if item.name == "drafter")
    assert drafter.metadata["choices"] == tuple(DRAFTERS)
