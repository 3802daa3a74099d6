"""The count of reasoning tokens that comes with every event."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.loop import Engine
from engine.request import Reasoning, Request, SamplingParams, TokenEvent
from engine.testing import tiny_model

OPENING, CLOSING = 259, 260
LANES = {
    "serial": EngineConfig(),
    "batch4+spec": EngineConfig(
        max_rows=4, num_draft_tokens=4, draft_budgets="fixed", spec_batching="batched"
    ),
}


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    ("reasoning", "bias"),
    [
        (Reasoning.OPEN, {CLOSING: 8.0}),
        (Reasoning.OPTIONAL, {OPENING: 9.0, CLOSING: 9.0}),
        (Reasoning.OPEN, {CLOSING: -100.0}),
        (Reasoning.NONE, {}),
    ],
    ids=["open", "optional", "never closed", "none"],
)
def test_a_token_is_reasoning_exactly_when_the_last_count_reaches_it(
    lane: str, reasoning: Reasoning, bias: dict[int, float]
) -> None:
    model, config = tiny_model(), LANES[lane]
    engine = Engine(model, config, build_drafter(config))
    prompt = tuple(model.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}]))
    for seed in range(4):
        name = engine.submit(
            Request(
                prompt_ids=prompt,
                max_tokens=40,
                sampling=SamplingParams(logit_bias=bias, temperature=1, seed=seed),
                reasoning=reasoning,
            )
        )
        events: list[TokenEvent] = []
        while engine.has_work:
            events += engine.step()
        record = engine.completion(name)
        counts = [event.reasoning_tokens for event in events]
        assert counts == sorted(counts)
        assert all(event.reasoning_tokens <= event.position + 1 for event in events)
        assert counts[-1] == record.reasoning_tokens
        tokens = [event for event in events if event.token_id is not None]
        for event in (event for event in tokens if event.reasoning or event.text):
            assert (event.position < event.reasoning_tokens) == bool(event.reasoning)
        assert reasoning is not Reasoning.NONE or counts[-1] == 0
