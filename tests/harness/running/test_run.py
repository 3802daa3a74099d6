"""The run loop: every trial is kept, failures are rows, and a run goes on where it stopped."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ModelError, SettingError
from harness import exit_codes
from harness.judging import gates
from harness.planning.choices import Choices
from harness.running.plan_rows import (
    choices_of,
    pending_trials,
)
from harness.running.progress import LineProgress
from harness.running.run import RunLoop
from harness.store import (
    ConditionRow,
    SaveOutcome,
    TrialRecord,
    TurnRow,
)
from harness.trials.target import TrialJob
from harness.workloads.workload import Prompt
from tests.harness.running.bench import CHOICES, begin, condition, matrix_of
from tests.harness.scripted import Scripted


def test_every_planned_trial_runs_once_in_shuffled_blocks(tmp_path: Path) -> None:
    bench, target = begin(tmp_path), Scripted()
    assert bench.go(target).ending == "finished"
    assert {trial.status for trial in bench.data.trials} == {"done"}
    assert len(target.ran) == len(set(target.ran)) == len(bench.data.trials) == 9
    planned = [(trial.block, trial.order) for trial in bench.matrix.trials()]
    assert planned == sorted(planned)


def test_the_plan_stands_in_the_database_before_the_first_trial(tmp_path: Path) -> None:
    bench = begin(tmp_path)
    seen: list[Counter[str]] = []

    def look(job: TrialJob) -> None:
        seen.append(Counter(trial.status for trial in bench.data.trials))

    bench.go(Scripted(before=look))
    done = [count["done"] for count in seen]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, 8)
    assert all(count["done"] + count["pending"] == 9 for count in seen)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ModelError("weights are gone"), "weights are gone"),
        (ValueError("two\nlines"), "ValueError at test_run.py:"),
        (MemoryError(), "MemoryError at"),
    ],
)
def test_a_failing_trial_is_a_row_and_the_run_goes_on(
    tmp_path: Path, error: Exception, told: str
) -> None:
    bench = begin(tmp_path)

    def fail(job: TrialJob) -> None:
        if job.cell.name == "serial+spec" and job.trial.block == 1:
            raise error

    assert bench.go(Scripted(before=fail)).ending == "finished"
    (failed,) = [trial for trial in bench.data.trials if trial.status == "failed"]
    assert told in failed.reason
    assert "\n" not in failed.reason
    assert sum(trial.status == "done" for trial in bench.data.trials) == 8
    assert gates.exit_code(gates.evaluate(bench.data)) == exit_codes.INCOMPLETE


def test_a_model_that_breaks_later_fails_its_trials_only(tmp_path: Path) -> None:
    choices = Choices(
        cells=("serial",), models=("a", "b"), workloads=("chat",), blocks=2, prompts=1
    )
    bench = begin(tmp_path, choices)
    bench.go(Scripted(broken={"a": ModelError("a is damaged")}))
    by_model = Counter((trial.model, trial.status) for trial in bench.data.trials)
    assert by_model == {
        (bench.models["a"].key, "failed"): 2,
        (bench.models["b"].key, "done"): 2,
    }


@given(stop_at=st.integers(0, 8), cause=st.sampled_from(["interrupt", "kill"]))
@settings(max_examples=12)
def test_an_interrupted_run_goes_on_with_nothing_lost_or_doubled(
    tmp_path_factory: pytest.TempPathFactory, stop_at: int, cause: str
) -> None:
    bench = begin(tmp_path_factory.mktemp("run"))
    first = Scripted()

    class KilledError(BaseException):
        """Ends the loop without any handler of it."""

    def stop(job: TrialJob) -> None:
        if len(first.ran) == stop_at:
            raise KeyboardInterrupt if cause == "interrupt" else KilledError

    first.before = stop
    if cause == "interrupt":
        assert bench.go(first).ending == "interrupted"
    else:
        with pytest.raises(KilledError):
            bench.go(first)
    assert sum(trial.status == "done" for trial in bench.data.trials) == stop_at
    second = Scripted()
    assert bench.go(second).ending == "finished"
    assert sorted(first.ran + second.ran) == sorted(trial.trial_id for trial in bench.data.trials)
    assert gates.exit_code(gates.evaluate(bench.data)) == exit_codes.PASS
    counts = Counter(row.trial_id for row in bench.data.requests)
    assert set(counts.values()) == {2}


def test_what_a_run_was_asked_can_be_read_back(tmp_path: Path) -> None:
    bench = begin(tmp_path)
    assert choices_of(bench.data.run) == CHOICES
    assert choices_of(begin(tmp_path / "sampled", SAMPLED).data.run) == SAMPLED


def test_a_run_is_not_resumed_under_another_plan(tmp_path: Path) -> None:
    bench = begin(tmp_path)
    other = matrix_of(Choices(cells=("serial",), models=("m",), workloads=("chat",)))
    with pytest.raises(SettingError, match="start a new run"):
        pending_trials(other, bench.store.load_plan(bench.run_id), bench.models)


def test_a_reply_that_parts_is_judged_and_turns_the_gate_red(tmp_path: Path) -> None:
    def drifting(job: TrialJob, prompt: Prompt) -> tuple[int, ...]:
        return (1, 2, 9) if job.cell.name == "serial+spec" else (1, 2, 3)

    bench, target = begin(tmp_path), Scripted(answer=drifting, gap=1.0)
    bench.go(target)
    assert {parting.cell.name for parting in target.judged} == {"serial+spec"}
    assert {parting.reference for parting in target.judged} == {"serial"}
    verdicts = {row.cell: row.status for row in bench.gate("identity")}
    assert verdicts == {"serial+spec": "fail", "batch2": "pass"}
    assert gates.exit_code(gates.evaluate(bench.data)) == exit_codes.CORRECTNESS


SAMPLED = Choices(
    cells=("spec", "spec@rejection"),
    models=("m",),
    workloads=("chat",),
    blocks=3,
    prompts=2,
    temperature=0.7,
)


def drifting_by_rejection(job: TrialJob, prompt: Prompt) -> tuple[int, ...]:
    return (1, 9) if job.cell.name == "serial+spec@rejection" else (1, 2)


def test_sampled_replies_under_rejection_are_weighed_and_are_no_partings(tmp_path: Path) -> None:
    bench, target = begin(tmp_path, SAMPLED), Scripted(answer=drifting_by_rejection, gap=1.0)
    bench.go(target)
    assert not target.judged
    assert {reply.cell.name for reply in target.weighed} == {"serial+spec@rejection"}
    assert len(target.weighed) == 6
    assert len({reply.row.seed for reply in target.weighed}) == 6
    (law,) = bench.gate("law")
    assert (law.status, law.n) == ("pass", 18)
    assert {row.cell: row.status for row in bench.gate("identity")} == {"serial+spec": "pass"}
    assert gates.exit_code(gates.evaluate(bench.data)) == exit_codes.PASS


def test_greedy_replies_under_rejection_are_partings(tmp_path: Path) -> None:
    bench = begin(tmp_path, replace(SAMPLED, temperature=0.0))
    target = Scripted(answer=drifting_by_rejection, gap=1.0)
    bench.go(target)
    assert {parting.cell.name for parting in target.judged} == {"serial+spec@rejection"}
    assert not target.weighed
    assert gates.exit_code(gates.evaluate(bench.data)) == exit_codes.CORRECTNESS


def test_all_cells_of_a_block_draw_with_one_seed_a_prompt_and_no_two_blocks_do(
    tmp_path: Path,
) -> None:
    bench = begin(tmp_path, SAMPLED)
    bench.go(Scripted())
    blocks = {trial.trial_id: trial.block for trial in bench.data.trials}
    seeds: dict[tuple[int, str], set[int | None]] = {}
    for row in bench.data.requests:
        seeds.setdefault((blocks[row.trial_id], row.prompt_id), set()).add(row.seed)
    assert all(len(found) == 1 for found in seeds.values())
    assert len(set.union(*seeds.values())) == len(seeds) == 6


def test_draws_that_cannot_be_judged_are_not_green(tmp_path: Path) -> None:
    bench = begin(tmp_path, SAMPLED)

    class Blind(Scripted):
        def weigh(self, reply: object) -> object:  # type: ignore[override]  # breaks
            raise ZeroDivisionError

    stream = io.StringIO()
    assert bench.go(Blind(), stream).ending == "finished"
    assert "was not judged: ZeroDivisionError" in stream.getvalue()
    assert {row.status for row in bench.gate("law")} == {"incomplete"}


def test_draws_of_a_trial_that_failed_wait_for_no_judge(tmp_path: Path) -> None:
    """Its first turns went well; the oracle has those of trials that are done alone."""
    bench = begin(tmp_path, SAMPLED)

    def fail(job: TrialJob) -> None:
        if job.cell.name == "serial+spec@rejection" and job.trial.block == 0 and job.turn:
            raise ModelError("weights are gone")

    bench.go(Scripted(before=fail))
    assert any(trial.status == "failed" for trial in bench.data.trials)
    (law,) = bench.gate("law")
    # Of two trials of two replies, four tokens and an end each.
    assert (law.status, law.n) == ("pass", 20)
    assert "not judged" not in law.detail


def test_a_parting_that_cannot_be_judged_is_not_green(tmp_path: Path) -> None:
    def drifting(job: TrialJob, prompt: Prompt) -> tuple[int, ...]:
        return (1, 2) if job.cell.name == "batch2" else (1, 2, 3)

    bench = begin(tmp_path)

    class Blind(Scripted):
        def judge(self, parting: object) -> list[object]:  # type: ignore[override]  # breaks
            raise ZeroDivisionError

    stream = io.StringIO()
    assert bench.go(Blind(answer=drifting), stream).ending == "finished"
    assert "was not judged: ZeroDivisionError" in stream.getvalue()
    assert {row.status for row in bench.gate("identity") if row.cell == "batch2"} == {"fail"}


def test_partings_of_trials_done_before_a_kill_are_judged_after_it(tmp_path: Path) -> None:
    def drifting(job: TrialJob, prompt: Prompt) -> tuple[int, ...]:
        is_first = job.trial.block == 0 and job.turn == 0
        return (1,) if is_first and job.cell.name == "serial+spec" else (1, 2)

    bench = begin(tmp_path)

    class DiedJudging(Scripted):
        def judge(self, parting: object) -> list[object]:  # type: ignore[override]  # breaks
            raise KeyboardInterrupt

    assert bench.go(DiedJudging(answer=drifting)).ending == "interrupted"
    assert not [trial for trial in bench.data.trials if trial.status == "pending"]
    resumed = Scripted(answer=drifting, gap=1e-6)
    assert bench.go(resumed).ending == "finished"
    assert resumed.judged
    assert {row.status for row in bench.gate("identity")} == {"pass"}


def test_a_store_that_takes_no_more_rows_ends_the_run_and_keeps_the_sample(tmp_path: Path) -> None:
    bench = begin(tmp_path)
    kept: list[TrialRecord] = []

    class FullStore:
        """The disk fills up with the third trial."""

        def record_trial(
            self, record: TrialRecord, rows: list[ConditionRow], turns: list[TurnRow]
        ) -> SaveOutcome:
            kept.append(record)
            if len(kept) < 3:
                return bench.store.record_trial(record)
            return SaveOutcome(saved=False, spool=tmp_path / "spool.jsonl", reason="disk full")

    target = Scripted()
    loop = RunLoop(
        store=FullStore(),  # type: ignore[arg-type]  # only what the loop uses
        target=target,
        progress=LineProgress(io.StringIO()),
        observe=condition,
        clock=target.clock,
    )
    stored = bench.store.load_plan(bench.run_id)
    outcome = loop.run(pending_trials(bench.matrix, stored, bench.models), [])
    assert outcome.ending == "spooled"
    assert outcome.save is not None
    assert outcome.save.reason == "disk full"
    assert len(kept) == 3


def test_time_left_follows_what_trials_took(tmp_path: Path) -> None:
    stream = io.StringIO()
    bench = begin(tmp_path)
    bench.go(Scripted(speeds={"serial+spec": 100.0, "batch2": 10.0, "serial": 10.0}), stream)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 9
    assert lines[0].startswith("1/9 m chat ")
    assert "left" in lines[0]
    assert "left" not in lines[-1]
    # Everything has been seen once after the first block: 240 s are left.
    assert "about 4 min 00 s left" in lines[2]
