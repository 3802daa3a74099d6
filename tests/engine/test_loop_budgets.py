"""Adaptive budgets in the loop: the ids stay, bad drafts end, good ones go on, nothing is kept."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.costs import step_costs
from engine.draft.budget import PROBE_EVERY
from engine.draft.registry import build_drafter
from engine.loop import Engine
from engine.models.load import LoadedModel
from engine.request import Completion, Request, SamplingParams
from engine.sequence import Sequence
from engine.testing import ScriptedDrafter, tiny_model

NUM_DRAFTS = 7
MAX_TOKENS = 80
LANES = {
    "serial": EngineConfig(num_draft_tokens=NUM_DRAFTS, draft_budgets="adaptive"),
    "serial, not pipelined": EngineConfig(
        num_draft_tokens=NUM_DRAFTS, draft_budgets="adaptive", pipelined=False
    ),
    "batch": EngineConfig(
        max_rows=3,
        num_draft_tokens=NUM_DRAFTS,
        draft_budgets="adaptive",
        spec_batching="batched",
    ),
}
COSTS = step_costs({(1, 1): 1.0, (1, 2): 1.1, (1, 4): 1.3, (1, 8): 1.6}, ahead=0.06)
SCRIPTS = ("always right", "always wrong", "alternating")


def requests() -> list[Request]:
    """Rows of different lengths and temperatures."""
    return [
        Request(
            prompt_ids=tuple(40 + (5 * i + seed) % 60 for i in range(3 + 4 * seed)),
            max_tokens=MAX_TOKENS,
            ignore_eos=True,
            sampling=SamplingParams(temperature=0.8 * (seed % 2), seed=seed),
        )
        for seed in range(4)
    ]


def plain(model: LoadedModel) -> list[Completion]:
    return Engine(model, EngineConfig()).generate(requests())


def scripted(script: str, texts: dict[int, tuple[int, ...]]) -> ScriptedDrafter:
    """A drafter that knows every text, and tells it, its opposite, or both in turns."""

    def propose(sequence: Sequence) -> list[int]:
        text = texts[sequence.seed]
        ids = list(text[sequence.num_emitted :][:NUM_DRAFTS])
        is_right = script == "always right" or (
            script == "alternating" and sequence.num_emitted % 2 == 0
        )
        return ids if is_right else [(token + 1) % 100 for token in ids]

    return ScriptedDrafter(propose)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("script", SCRIPTS)
def test_ids_are_those_of_not_speculating_whatever_is_drafted(lane: str, script: str) -> None:
    model = tiny_model()
    expected = [completion.token_ids for completion in plain(model)]
    drafter = scripted(script, dict(enumerate(expected)))
    engine = Engine(model, LANES[lane], drafter)

    completions = engine.generate(requests())

    assert [completion.token_ids for completion in completions] == expected
    assert not drafter.open_rows
    assert engine._proposer._budgets is not None
    assert not engine._proposer._budgets._rows


@pytest.mark.parametrize("lane", LANES)
def test_rejected_drafts_stop_being_proposed_and_accepted_ones_do_not(lane: str) -> None:
    model = tiny_model()
    expected = dict(enumerate(completion.token_ids for completion in plain(model)))
    wrong, right = (
        Engine(model, LANES[lane], scripted(script, expected), COSTS).generate(requests())
        for script in ("always wrong", "always right")
    )

    assert all(0 < completion.drafted_by_position[0] < MAX_TOKENS / 2 for completion in wrong)
    assert all(completion.accepted == completion.drafted for completion in right)
    assert all(completion.target_calls < MAX_TOKENS / 2 for completion in right)


@pytest.mark.parametrize("drafter", ["ngram", "two_model"])
def test_real_drafters_give_the_same_ids_after_being_parked(drafter: str) -> None:
    model = tiny_model()
    config = EngineConfig(
        max_rows=3,
        num_draft_tokens=3,
        drafter=drafter,
        draft_budgets="adaptive",
        spec_batching="batched",
    )
    engine = Engine(model, config, build_drafter(config, model))

    completions = engine.generate(requests())

    assert [c.token_ids for c in completions] == [c.token_ids for c in plain(model)]


def test_measuring_step_costs_leaves_no_wait_and_no_cache_behind() -> None:
    model = tiny_model()
    config = LANES["batch"]
    stats = Engine(model, config, build_drafter(config)).stats()

    assert stats.kv_bytes == 0
    assert stats.host_syncs == 0


def test_steps_of_parked_rows_are_launched_ahead_but_for_their_trials() -> None:
    model = tiny_model()
    expected = dict(enumerate(completion.token_ids for completion in plain(model)))
    engine = Engine(model, LANES["serial"], scripted("always wrong", expected), COSTS)
    engine.submit(requests()[0])
    launched = []
    while engine.has_work:
        engine.step()
        launched.append(engine._flight is not None)

    assert not any(launched[:4])
    # Two trials: neither they nor their successors are launched ahead, and the last step has none.
    ahead = sum(launched[-2 * PROBE_EVERY :])
    assert 2 * PROBE_EVERY - 6 <= ahead <= 2 * PROBE_EVERY - 4
