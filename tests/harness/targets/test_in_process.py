"""The local target: what a trial on a real (tiny) model records, and what it does not count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import FmError, ModelError
from engine.loop import Engine
from engine.models.load import load_model
from engine.models.registry import pull
from engine.request import FinishReason as Finish
from engine.request import Request, TokenEvent
from harness.report.attribution import step_time
from harness.sampling import Sampling
from harness.store import RequestRow, TrialRecord
from harness.targets.in_process import InProcess
from harness.trials.clock import StepTally
from harness.trials.drive import Watch, drive
from harness.trials.target import Parting, SampledReply, ignore_tokens
from harness.trials.turns import joined
from tests.harness.jobs import CATALOGUE, CHAT, PEOPLE, cell_of, ids, job_of, measured, run


@pytest.fixture
def target() -> Iterator[InProcess]:
    opened = InProcess(load=load_model, folder_of=pull)
    opened.open("tiny-thinking")
    yield opened
    opened.close()


ONLY_SOME = ("draft", "mask")

DRAFTS = "spec@two-model@draft_budgets=fixed"
"""A cell that drafts whatever a step costs on the machine of the test."""


def test_a_trial_records_every_request_in_order_with_times_and_counts(target: InProcess) -> None:
    record = run(target, "serial")
    rows = measured(record)
    assert [row.prompt_id for row in rows] == [prompt.id for prompt in CHAT.prompts[:4]]
    assert [row.position for row in record.requests] == list(range(len(record.requests)))
    for row in rows:
        assert row.completion_tokens == len(row.token_ids or ())
        assert row.count_source == "engine"
        assert row.cached_tokens == 0
        assert row.prompt_tokens
        if row.completion_tokens:
            assert 0 < (row.ttft_s or 0) <= (row.last_token_s or 0) <= (row.e2e_s or 0)
    trial = record.trial
    assert trial.status == "done"
    assert trial.tokens == sum(row.completion_tokens or 0 for row in rows)
    assert trial.wall_s is not None
    assert trial.wall_s >= max(row.e2e_s or 0 for row in rows)
    assert trial.peak_mlx_bytes
    assert trial.peak_rss_bytes


@pytest.mark.parametrize("cell", ["serial", "batch4", "serial+spec", "serial+spec+grammar"])
def test_a_trial_tells_where_its_steps_spent_their_time(target: InProcess, cell: str) -> None:
    trial = run(target, cell, PEOPLE).trial
    told = step_time([trial])
    assert told is not None
    assert trial.decode_steps
    assert all(seconds > 0 for part, seconds in told.parts_s.items() if part not in ONLY_SOME)
    assert bool(told.parts_s["mask"]) == ("grammar" in cell)
    assert sum(told.parts_s.values()) == pytest.approx(told.step_s)
    assert trial.weight_bytes
    assert trial.kv_token_bytes
    assert trial.kv_row_bytes == 0


def test_the_aggregate_of_the_serial_lane_is_all_decode_steps(target: InProcess) -> None:
    record = run(target, "serial")
    rows = measured(record)
    # The first token of a reply comes out of its prefill.
    decoded = sum(max(0, (row.completion_tokens or 0) - 1) for row in rows)
    assert record.trial.aggregate_tokens == decoded
    assert record.trial.aggregate_s == record.trial.step_s
    assert (record.trial.aggregate_s or 0) < (record.trial.wall_s or 0)


@pytest.mark.parametrize(
    "cell", ["serial", "batch2", "spec@draft_budgets=fixed", "batch2+spec@draft_budgets=fixed"]
)
def test_a_trial_in_turns_saw_what_it_sees_in_one_go(target: InProcess, cell: str) -> None:
    whole = run(target, cell, PEOPLE)
    job = job_of(cell_of(cell), PEOPLE)
    waves = [job.prompts[start : start + job.cell.rows] for start in range(0, 4, job.cell.rows)]
    parts = [
        target.run(replace(job, prompts=wave, turn=turn, num_turns=len(waves)), ignore_tokens)
        for turn, wave in enumerate(waves)
    ]
    record = joined(parts)
    assert len(parts) > 1
    assert ids(record) == ids(whole)
    assert [row.prompt_id for row in measured(record)] == [prompt.id for prompt in job.prompts]
    assert record.trial.counters == whole.trial.counters
    assert [(row.position, row.drafted, row.accepted) for row in record.accepts] == [
        (row.position, row.drafted, row.accepted) for row in whole.accepts
    ]
    for name in ("tokens", "aggregate_tokens", "decode_steps", "mask_tokens", "lane_taken"):
        assert getattr(record.trial, name) == getattr(whole.trial, name)


def test_the_replay_is_made_in_one_turn_of_a_trial(target: InProcess) -> None:
    job = job_of(cell_of("grammar"), PEOPLE, count=1, max_tokens=60)
    assert target.run(job, ignore_tokens).trial.replay_tokens is not None
    later = replace(job, turn=1, num_turns=2, wants_replay=False)
    assert target.run(later, ignore_tokens).trial.replay_tokens is None


def test_the_aggregate_of_a_batch_counts_full_steps_only(target: InProcess) -> None:
    trial = run(target, "batch4").trial
    assert trial.aggregate_tokens
    assert trial.aggregate_tokens < (trial.tokens or 0)
    assert (trial.aggregate_s or 0) <= (trial.step_s or 0)


def test_warm_up_is_stored_once_and_is_in_no_sum(target: InProcess) -> None:
    """Case ha-07: warm-up prompts are never measured ones."""
    first, second = run(target, "batch4"), run(target, "batch4")
    warm = [row for row in first.requests if row.phase == "warmup"]
    assert len(warm) == 4
    assert {row.prompt_id for row in warm} == {"somebody else"}
    assert not [row for row in second.requests if row.phase == "warmup"]
    assert first.trial.tokens == second.trial.tokens
    assert {row.phase for row in run(target, "batch4", PEOPLE).requests} == {"warmup", "measured"}


@pytest.mark.parametrize(
    "cell", ["batch4", "batch3", "spec", "batch4+spec", "batch4+spec@routed", "spec@two-model"]
)
def test_every_lane_gives_the_ids_of_the_serial_lane(target: InProcess, cell: str) -> None:
    count = 3 if cell == "batch3" else 4
    assert ids(run(target, cell, count=count)) == ids(run(target, "serial", count=count))


@pytest.mark.parametrize("cell", ["batch4+grammar", "spec+grammar", "batch4+spec+grammar"])
def test_every_grammar_lane_gives_the_ids_of_the_serial_grammar_lane(
    target: InProcess, cell: str
) -> None:
    reference = run(target, "grammar", PEOPLE, max_tokens=40)
    assert ids(run(target, cell, PEOPLE, max_tokens=40)) == ids(reference)


OURS = [cell.name for cell in CATALOGUE.cells.values() if not cell.key.is_peer]


@pytest.mark.parametrize("cell", OURS)
def test_the_lane_taken_is_the_lane_declared(target: InProcess, cell: str) -> None:
    chosen = CATALOGUE.get(cell)
    constrained = PEOPLE if chosen.key.has("grammar") else CHAT
    record = run(target, cell, constrained, max_tokens=40)
    assert record.trial.lane_taken == chosen.lane_taken
    assert record.trial.lane_reason


def test_replies_under_a_grammar_conform_and_free_ones_are_graded_too(target: InProcess) -> None:
    for row in measured(run(target, "grammar", PEOPLE, max_tokens=40)):
        assert row.conformance == "ok", row.conformance_detail
        assert row.field_accuracy in {0.0, 1.0}
    free = measured(run(target, "serial", PEOPLE))
    assert all(row.conformance not in {None, "ok"} for row in free)
    assert all(row.conformance is None for row in measured(run(target, "serial")))


def test_grammar_overhead_is_measured_on_the_same_ids_in_grammar_cells_only(
    target: InProcess,
) -> None:
    with_grammar = run(target, "grammar", PEOPLE, max_tokens=40).trial
    assert with_grammar.replay_tokens
    assert 0 < (with_grammar.replay_mask_s or 0) < (with_grammar.replay_masked_s or 0)
    assert with_grammar.replay_plain_s
    assert with_grammar.mask_tokens
    assert run(target, "serial", PEOPLE).trial.replay_tokens is None


def test_speculation_is_told_by_position_and_only_where_it_is_on(target: InProcess) -> None:
    record = run(target, DRAFTS, max_tokens=24)
    assert record.accepts
    assert record.accepts[0].drafted >= record.accepts[0].accepted > 0
    assert sum(row.drafted or 0 for row in measured(record)) == sum(
        point.drafted for point in record.accepts
    )
    plain = run(target, "serial")
    assert not plain.accepts
    assert all(row.drafted is row.target_calls is None for row in measured(plain))


def test_a_draft_equal_to_the_target_has_all_drafts_accepted_but_the_last_burst(
    target: InProcess,
) -> None:
    for row in measured(run(target, DRAFTS, max_tokens=24)):
        assert row.drafted
        assert row.drafted - (row.accepted or 0) <= 3


def test_an_engine_that_failed_is_replaced(
    target: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ids(run(target, "batch4"))
    (broken,) = target.engines.values()

    def fail(engine: Engine) -> list[TokenEvent]:
        raise RuntimeError("device lost")

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", fail)
        with pytest.raises(RuntimeError, match="device lost"):
            run(target, "batch4")
    assert broken not in target.engines.values()
    assert ids(run(target, "batch4")) == before


def test_another_model_drops_the_one_that_was_open(target: InProcess) -> None:
    run(target, "serial")
    assert target.engines
    first = target.model
    target.open("tiny-thinking")
    assert target.model is first
    with pytest.raises(FmError):
        target.open("nonesuch")
    assert not target.engines


def parting(record: TrialRecord, reply: tuple[int, ...], cell: str = "spec") -> Parting:
    row = measured(record)[0]
    return Parting(
        trial_id=record.trial.trial_id,
        reference="serial",
        cell=CATALOGUE.get(cell),
        workload=CHAT,
        prompt=CHAT.prompts[0],
        max_tokens=24,
        reply=reply,
        expected=row.token_ids or (),
        reply_ended=row.finish_reason == "stop",
        expected_ended=row.finish_reason == "stop",
    )


def test_the_oracle_finds_nothing_in_a_true_reply_and_the_place_of_a_wrong_token(
    target: InProcess,
) -> None:
    record = run(target, "serial")
    true = measured(record)[0].token_ids or ()
    assert len(true) > 3
    assert target.judge(parting(record, true)) == []
    wrong = (*true[:2], (true[2] + 1) % 256, *true[3:])
    places = target.judge(parting(record, wrong))
    assert places[0].position == 2
    assert places[0].gap is not None
    assert places[0].gap > places[0].epsilon


def test_the_oracle_weighs_each_draw_of_a_sampled_reply_and_finds_an_impossible_token(
    target: InProcess,
) -> None:
    sampling = Sampling(temperature=0.9, seed=1)
    record = run(target, "spec+grammar@rejection", PEOPLE, max_tokens=40, sampling=sampling)
    for row in measured(record):
        assert row.sampling == {"temperature": 0.9}
        assert row.seed == sampling.params(0, row.prompt_id).seed
        drawn = target.weigh(sampled(row, 400))
        assert len(row.token_ids or ()) <= drawn.draws <= len(row.token_ids or ()) + 1
        assert drawn.impossible_at is None
        assert target.weigh(sampled(row, 3)).draws == 3
        ids = row.token_ids or ()
        wrong = replace(row, token_ids=(*ids[:2], 0, *ids[3:]))
        assert target.weigh(sampled(wrong, 400)).impossible_at == 2


def sampled(row: RequestRow, draws: int) -> SampledReply:
    return SampledReply(
        row=row,
        cell=CATALOGUE.get("spec+grammar@rejection"),
        workload=PEOPLE,
        prompt=next(prompt for prompt in PEOPLE.prompts if prompt.id == row.prompt_id),
        max_tokens=40,
        draws=draws,
    )


def test_a_cell_whose_drafter_speaks_another_vocabulary_is_refused(target: InProcess) -> None:
    cell = CATALOGUE.get("spec@two-model")
    other = replace(cell, config=replace(cell.config, draft_model="smollm2-135m-first8"))
    if "smollm2-135m" not in {path.parent.name for path in cached_models()}:
        pytest.skip("the default model was never fetched here")
    with pytest.raises(ModelError, match="vocabular"):
        target.check(other, CHAT)


def cached_models() -> list[Path]:
    from engine.models.entry import find_entry
    from engine.models.pull import is_cached

    found = is_cached(find_entry("smollm2-135m"))
    return [Path("smollm2-135m") / "x"] if found else []


def event(token: int | None = 1, text: str = "", finish: Finish | None = None) -> TokenEvent:
    return TokenEvent("r", token, text, 0, finish_reason=finish)


def test_the_first_token_and_the_first_text_are_two_instants() -> None:
    """Case ha-01: a token without text is no text, and the end event is no token."""
    watch = Watch(submitted_s=0.0)
    for now_s, seen in [
        (0.21, event(text="")),
        (0.24, event(text="A")),
        (0.26, event(text="B")),
        (0.28, event(token=None, finish=Finish.STOP)),
    ]:
        watch.see(seen, now_s)
    times = watch.times()
    assert times.first_token_s == 0.21
    assert times.first_text_s == 0.24
    assert times.last_token_s == 0.26
    assert times.ended_s == 0.28


def test_an_empty_reply_has_no_first_token_rather_than_a_quick_one() -> None:
    """Cases ha-01 and ha-04."""
    watch = Watch(submitted_s=5.0)
    watch.see(event(token=None, finish=Finish.STOP), 5.03)
    times = watch.times()
    assert times.since_submission(times.first_token_s) is None
    assert times.since_submission(times.first_text_s) is None
    assert times.since_submission(times.ended_s) == pytest.approx(0.03)


def test_several_tokens_of_one_step_are_all_counted(target: InProcess) -> None:
    """Case ha-03: counts come from ids, never from events or text."""
    for row in measured(run(target, DRAFTS, max_tokens=24)):
        assert row.completion_tokens == len(row.token_ids or ())
        assert (row.target_calls or 0) < (row.completion_tokens or 0)


def test_steps_below_full_occupancy_count_as_time_but_not_as_rate() -> None:
    tally = StepTally()
    tally.add(is_full=True, committed=4, seconds=1.0)
    tally.add(is_full=False, committed=1, seconds=9.0)
    assert (tally.full_tokens, tally.full_s, tally.steps, tally.seconds) == (4, 1.0, 2, 10.0)


def test_a_wave_is_done_before_the_next_one_starts(target: InProcess) -> None:
    run(target, "serial")
    assert target.model is not None
    engine = Engine(target.model, EngineConfig(max_rows=2))
    requests = [Request(prompt_ids=(10, 20 + n), max_tokens=4, ignore_eos=True) for n in range(5)]
    rows: list[int] = []

    def look(tokens: int) -> None:
        if engine.last_step is not None and engine.last_step.is_decode:
            rows.append(engine.last_step.rows)

    ticks = iter(range(10_000))
    done = drive(engine, requests, 2, lambda: float(next(ticks)), look)
    assert [served.completion.prompt_tokens for served in done.served] == [2] * 5
    assert rows == [2, 2, 2, 2, 2, 2, 1, 1, 1]
    assert done.tally.full_tokens == 12
