"""Every lane is one loop: same ids as the oracle, whatever runs beside a row or drafts for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import arrays
from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.errors import RequestError, SettingError
from engine.loop import Engine
from engine.models.load import LoadedModel
from engine.oracle import Oracle
from engine.request import (
    Completion,
    Constraint,
    ConstraintKind,
    FinishReason,
    Provenance,
    Request,
    SamplingParams,
)
from engine.sequence import Sequence
from engine.testing import ScriptedDrafter, request_for, scripted_model, tiny_model

LANES = {
    "serial": EngineConfig(),
    "serial, not pipelined": EngineConfig(pipelined=False),
    "serial, tiny chunks": EngineConfig(prefill_chunk=3),
    "batch": EngineConfig(max_rows=4),
    "serial+spec": EngineConfig(num_draft_tokens=3, draft_budgets="fixed"),
    "serial+spec wide": EngineConfig(num_draft_tokens=15, draft_budgets="fixed"),
    "batch+spec": EngineConfig(
        max_rows=4, num_draft_tokens=3, draft_budgets="fixed", spec_batching="batched"
    ),
    "batch+spec routed": EngineConfig(
        max_rows=4, num_draft_tokens=3, draft_budgets="fixed", spec_batching="serial"
    ),
}
TWO_MODEL = {
    "serial+spec two_model": EngineConfig(
        num_draft_tokens=4, draft_budgets="fixed", drafter="two_model"
    ),
    "batch+spec two_model": EngineConfig(
        max_rows=4,
        num_draft_tokens=3,
        draft_budgets="fixed",
        drafter="two_model",
        spec_batching="batched",
    ),
}


def engine_of(model: LoadedModel, config: EngineConfig) -> Engine:
    """An engine whose two_model drafter is the target itself."""
    return Engine(model, config, build_drafter(config, model))


def prompts(lengths: list[int]) -> list[tuple[int, ...]]:
    """Prompts of given lengths over printable bytes, with repetitions to draft from."""
    return [tuple(33 + (7 * i * i + length) % 60 for i in range(length)) for length in lengths]


@pytest.mark.parametrize("name", [*LANES, *TWO_MODEL])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_row_of_every_lane_emits_the_oracles_ids(name: str, temperature: float) -> None:
    model = tiny_model()
    requests = [
        Request(
            prompt_ids=ids,
            max_tokens=40,
            sampling=SamplingParams(temperature=temperature, seed=seed),
        )
        for seed, ids in enumerate(prompts([1, 2, 7, 31, 32, 33, 128]))
    ]
    oracle = Oracle(model)
    completions = engine_of(model, (LANES | TWO_MODEL)[name]).generate(requests)
    for request, completion in zip(requests, completions, strict=True):
        assert list(completion.token_ids) == oracle.generate(request)


samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([1.0, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    frequency_penalty=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**32),
)
requests_of = st.builds(
    Request,
    prompt_ids=st.lists(st.integers(33, 120), min_size=1, max_size=30).map(tuple),
    max_tokens=st.integers(1, 20),
    sampling=samplings,
    num_draft_tokens=st.sampled_from([None, 0, 2]),
)


@settings(max_examples=25)
@given(requests=st.lists(requests_of, min_size=1, max_size=6), lane=st.sampled_from([*LANES]))
def test_a_row_is_the_same_alone_and_in_any_company(requests: list[Request], lane: str) -> None:
    model = tiny_model()
    together = engine_of(model, LANES[lane]).generate(requests)
    alone = [engine_of(model, EngineConfig()).generate([request])[0] for request in requests]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    assert [c.text for c in together] == [c.text for c in alone]
    assert [c.finish_reason for c in together] == [c.finish_reason for c in alone]


def answer(
    model: LoadedModel,
    config: EngineConfig,
    drafter: ScriptedDrafter | None = None,
    **settings: object,
) -> Completion:
    """One scripted answer."""
    return Engine(model, config, drafter).generate([request_for(model, **settings)])[0]


def right_drafter(model: LoadedModel, text: str) -> ScriptedDrafter:
    """A drafter that always knows the rest of the text, the end token and some junk behind it."""
    ids = [*model.tokenizer.encode(text), min(model.eos_ids), *model.tokenizer.encode("zz")]
    return ScriptedDrafter(lambda sequence: ids[sequence.num_emitted :])


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    ("settings", "text", "reason"),
    [
        ({"max_tokens": 4}, "ABCD", FinishReason.LENGTH),
        ({"max_tokens": 5}, "ABCDE", FinishReason.LENGTH),
        ({"max_tokens": 6}, "ABCDE", FinishReason.STOP),
        ({"max_tokens": 100}, "ABCDE", FinishReason.STOP),
        ({"max_tokens": 100, "stop": ("C",)}, "AB", FinishReason.STOP),
        ({"max_tokens": 100, "stop": ("BCD",)}, "A", FinishReason.STOP),
        ({"max_tokens": 100, "stop": ("Ex",)}, "ABCDE", FinishReason.STOP),
        ({"max_tokens": 3, "stop": ("CD",)}, "ABC", FinishReason.LENGTH),
        ({"max_tokens": 1}, "A", FinishReason.LENGTH),
    ],
    ids=str,
)
def test_stop_and_length_follow_one_rule_in_all_lanes(
    lane: str, settings: dict[str, object], text: str, reason: FinishReason
) -> None:
    model, config = scripted_model("ABCDE"), LANES[lane]
    drafter = right_drafter(model, "ABCDE") if config.num_draft_tokens else None
    engine = Engine(model, config, drafter)
    request_id = engine.submit(request_for(model, **settings))
    events = []
    while engine.has_work:
        events += engine.step()
    completion = engine.completion(request_id)
    assert (completion.text, completion.finish_reason) == (text, reason)
    assert "".join(event.text for event in events) == text
    assert [event.finish_reason for event in events if event.finish_reason] == [reason]
    assert len(completion.token_ids) == sum(event.token_id is not None for event in events)
    if not settings.get("stop"):
        assert len(completion.token_ids) == len(text)


@pytest.mark.parametrize("end", sorted(tiny_model().eos_ids))
@pytest.mark.parametrize("text", ["", "W"], ids=["at once", "after a token"])
def test_any_end_token_ends_a_row_and_is_neither_shown_nor_counted(end: int, text: str) -> None:
    completion = answer(scripted_model(text, end=end), EngineConfig())
    assert (completion.text, completion.finish_reason) == (text, FinishReason.STOP)
    assert len(completion.token_ids) == len(text)


def test_ignore_eos_goes_on_and_shows_no_text_for_the_end_token() -> None:
    model = scripted_model("W")
    completion = answer(model, EngineConfig(), max_tokens=3, ignore_eos=True)
    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.token_ids[1] in model.eos_ids
    assert completion.text == "W"


@pytest.mark.parametrize("end_at", range(5))
@pytest.mark.parametrize("budget", [1, 2, 4, 8])
def test_an_end_token_inside_a_burst_cuts_the_burst_there(end_at: int, budget: int) -> None:
    text = "ABCDE"[:end_at]
    model = scripted_model(text)
    drafter = right_drafter(model, text)
    completion = answer(
        model, EngineConfig(num_draft_tokens=budget, draft_budgets="fixed"), drafter
    )
    assert (completion.text, completion.finish_reason) == (text, FinishReason.STOP)
    assert completion.accepted == completion.drafted
    assert not drafter.open_rows


def test_a_drafted_end_token_the_target_rejects_changes_nothing_and_drafting_goes_on() -> None:
    model = scripted_model("abc")
    drafter = ScriptedDrafter(lambda sequence: [min(model.eos_ids)])
    completion = answer(model, EngineConfig(num_draft_tokens=3, draft_budgets="fixed"), drafter)
    assert (completion.text, completion.finish_reason) == ("abc", FinishReason.STOP)
    assert completion.drafted > 2
    assert completion.provenance[0] is Provenance.SAMPLED


@pytest.mark.parametrize(
    "propose",
    [
        lambda sequence: [],
        lambda sequence: [10**9],
        lambda sequence: [-1, 3],
        lambda sequence: [65] * 50,
        lambda sequence: list(sequence.ids[-1:]) * 3,
    ],
    ids=["nothing", "outside the vocabulary", "negative", "too many", "wrong"],
)
def test_a_broken_drafter_cannot_change_the_output(
    propose: Callable[[Sequence], list[int]],
) -> None:
    model = scripted_model("ABCDE")
    completion = answer(
        model, EngineConfig(num_draft_tokens=3, draft_budgets="fixed"), ScriptedDrafter(propose)
    )
    assert (completion.text, completion.finish_reason) == ("ABCDE", FinishReason.STOP)


def test_a_drafter_equal_to_its_target_is_accepted_entirely_over_a_long_run() -> None:
    model = tiny_model()
    config = EngineConfig(num_draft_tokens=4, draft_budgets="fixed", drafter="two_model")
    for temperature in (0.0, 0.9):
        request = request_for(
            model, "Once", max_tokens=600, ignore_eos=True, temperature=temperature, seed=3
        )
        completion = engine_of(model, config).generate([request])[0]
        assert completion.drafted == completion.accepted > 400
        assert set(completion.drafted_by_position) == {completion.target_calls} or (
            completion.drafted_by_position[0] == completion.target_calls
        )


@pytest.mark.parametrize("lane", ["serial", "batch"])
def test_plain_lanes_wait_for_the_device_once_a_step(lane: str) -> None:
    model = tiny_model()
    engine = engine_of(model, LANES[lane])
    for ids in prompts([3, 9, 4, 12]):
        engine.submit(Request(prompt_ids=ids, max_tokens=30, ignore_eos=True))
    steps = 0
    before = arrays.SYNCS.count
    while engine.has_work:
        engine.step()
        steps += 1
    assert arrays.SYNCS.count - before == steps == engine.stats().steps


def test_a_step_with_drafts_waits_once_more_only_when_the_drafter_does() -> None:
    model = tiny_model()
    engine = engine_of(model, EngineConfig(num_draft_tokens=4, draft_budgets="fixed"))
    before = arrays.SYNCS.count
    engine.generate([request_for(model, "abcabcabcabc", max_tokens=50, ignore_eos=True)])
    assert arrays.SYNCS.count - before == engine.stats().steps


PHASES = ("queued", "admitted", "between chunks", "decoding", "last step", "twice", "unknown")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("lane", ["batch", "batch+spec"])
def test_cancel_in_any_phase_frees_the_row_and_leaves_survivors_alone(
    phase: str, lane: str
) -> None:
    model = tiny_model()
    config = LANES[lane]
    config = EngineConfig(
        max_rows=2,
        prefill_chunk=8,
        num_draft_tokens=config.num_draft_tokens,
        draft_budgets="fixed",
        spec_batching=config.spec_batching,
    )
    survivor = Request(prompt_ids=prompts([30])[0], max_tokens=25, ignore_eos=True)
    victim = Request(prompt_ids=prompts([21])[0], max_tokens=8, ignore_eos=True)
    expected = engine_of(model, EngineConfig()).generate([survivor])[0].token_ids
    engine = engine_of(model, config)
    for _ in range(5):
        kept = engine.submit(survivor)
        fillers = [engine.submit(victim)] if phase == "queued" else []
        doomed = engine.submit(victim)
        steps = {"queued": 0, "admitted": 1, "between chunks": 6, "decoding": 9, "last step": 13}
        for _ in range(steps.get(phase, 9)):
            engine.step()
        was_live = engine.cancel("nobody") if phase == "unknown" else engine.cancel(doomed)
        if phase not in ("unknown", "last step"):
            assert was_live
            assert engine.completion(doomed).finish_reason is FinishReason.CANCELLED
        if phase == "twice":
            assert not engine.cancel(doomed)
        while engine.has_work:
            engine.step()
        assert engine.completion(kept).token_ids == expected
        for request_id in fillers:
            assert engine.completion(request_id).finish_reason is FinishReason.LENGTH
        stats = engine.stats()
        assert (stats.active, stats.pending) == (0, 0)


def test_a_waiting_row_starts_in_the_step_after_a_slot_is_freed() -> None:
    model = tiny_model()
    engine = engine_of(model, EngineConfig(max_rows=2))
    long = Request(prompt_ids=(65, 66), max_tokens=60, ignore_eos=True)
    first, _, third = (engine.submit(long) for _ in range(3))
    for _ in range(6):
        engine.step()
    engine.cancel(first)
    events = [event.request_id for _ in range(2) for event in engine.step()]
    assert third in events


def test_a_routed_row_runs_alone_and_says_so() -> None:
    model = tiny_model()
    engine = engine_of(model, LANES["batch+spec routed"])
    ids = [engine.submit(Request(prompt_ids=(65, 66), max_tokens=9)) for _ in range(3)]
    while engine.has_work:
        engine.step()
        assert engine.stats().active <= 1
    for request_id in ids:
        completion = engine.completion(request_id)
        assert completion.lane == "serial"
        assert "spec_batching" in completion.lane_reason


def test_seeded_rows_repeat_and_unseeded_rows_vary() -> None:
    model = tiny_model()
    engine = engine_of(model, EngineConfig(max_rows=4))
    seeded = [request_for(model, "tale", max_tokens=24, temperature=1.0, seed=42)] * 2
    unseeded = [request_for(model, "tale", max_tokens=24, temperature=1.0)] * 5
    done = engine.generate([*seeded, *unseeded])
    assert done[0].token_ids == done[1].token_ids
    assert len({completion.token_ids for completion in done[2:]}) > 1
    assert all(completion.seed for completion in done[2:])


@pytest.mark.parametrize(
    "request_", [{"text": "\x01", "logit": 10**6}], ids=["bias outside the vocabulary"]
)
def test_ids_outside_the_vocabulary_are_refused(request_: dict[str, int]) -> None:
    model = tiny_model()
    engine = engine_of(model, EngineConfig())
    with pytest.raises(RequestError, match="1000000"):
        engine.submit(
            Request(prompt_ids=(65,), sampling=SamplingParams(logit_bias={request_["logit"]: 1.0}))
        )
    with pytest.raises(RequestError, match="-3"):
        engine.submit(Request(prompt_ids=(-3,)))


def test_a_replay_forces_the_recorded_ids() -> None:
    model = tiny_model()
    engine = engine_of(model, EngineConfig())
    request = request_for(model, "x", max_tokens=5)
    report = engine.replay(request, [70, 71, 72, 73])
    assert len(report.step_s) == 3
    assert report.mask_s == (0, 0, 0)
    assert not engine.has_work


@pytest.mark.parametrize(
    ("ids", "constraint", "refusal"),
    [
        ([70, 10**6], None, "1000000"),
        ([70, 71], Constraint(kind=ConstraintKind.CHOICE, value=("xy",)), "cannot be replayed"),
    ],
    ids=["no such token", "refused by the grammar"],
)
def test_ids_that_cannot_be_replayed_are_refused(
    ids: list[int], constraint: Constraint | None, refusal: str
) -> None:
    model = tiny_model()
    engine = engine_of(model, EngineConfig())
    with pytest.raises(RequestError, match=refusal):
        engine.replay(request_for(model, "x", constraint=constraint), ids)
    assert not engine.has_work


def test_a_replay_beside_live_rows_is_refused() -> None:
    model = tiny_model()
    engine = engine_of(model, EngineConfig(max_rows=2))
    engine.submit(request_for(model, "x", max_tokens=5))
    with pytest.raises(RequestError, match="idle"):
        engine.replay(request_for(model, "x"), [70, 71])


def test_drafts_without_a_drafter_are_refused() -> None:
    with pytest.raises(SettingError, match="num_draft_tokens is 3"):
        Engine(tiny_model(), EngineConfig(num_draft_tokens=3, draft_budgets="fixed"))


def test_a_batch_with_a_refused_request_leaves_nothing_behind() -> None:
    model = tiny_model()
    engine = engine_of(model, EngineConfig())
    with pytest.raises(RequestError):
        engine.generate([request_for(model, request_id="a"), Request(prompt_ids=(-3,))])
    assert not engine.has_work
    engine.submit(request_for(model, request_id="a"))


def test_an_id_is_taken_until_its_completion_is() -> None:
    model = tiny_model()
    engine = engine_of(model, EngineConfig())
    request = request_for(model, request_id="a", max_tokens=1)
    engine.submit(request)
    with pytest.raises(RequestError, match="'a'"):
        engine.submit(request)
    engine.step()
    with pytest.raises(RequestError, match="'a'"):
        engine.submit(request)
    engine.completion("a")
    engine.submit(request)


def test_cancelling_the_last_row_leaves_no_step_to_run() -> None:
    model = tiny_model()
    engine = engine_of(model, EngineConfig(prefill_chunk=4))
    for steps in (1, 5):
        doomed = engine.submit(request_for(model, "x" * 9, max_tokens=30, ignore_eos=True))
        for _ in range(steps):
            engine.step()
        engine.cancel(doomed)
        before = engine.stats().steps
        assert engine.step() == []
        assert engine.stats().steps == before


def test_a_prefill_step_reports_every_position_it_computed() -> None:
    model = tiny_model()
    engine = engine_of(model, EngineConfig(prefill_chunk=4))
    engine.submit(request_for(model, "x" * 6, max_tokens=1))
    positions = []
    while engine.has_work:
        engine.step()
        assert engine.last_step is not None
        positions.append(engine.last_step.positions)
    assert positions == [4, 2]
