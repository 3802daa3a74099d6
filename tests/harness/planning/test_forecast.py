"""The time a plan is said to need: by past runs on this machine, else by a rate that is stated."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.commands.plan_text import plan_json, plan_lines
from harness.planning.choices import Choices
from harness.planning.forecast import STATED_STEPS_PER_S, Past, forecast, mean_length, read_past
from harness.planning.matrix import Matrix
from harness.running.session import matrix_of
from harness.store.history import Length, PastCell
from tests.harness.nursery import CHOICES, session
from tests.harness.scripted import Scripted

SMOKE = Choices(
    cells=("batch2", "spec+grammar"),
    models=("tiny-thinking",),
    workloads=("short-chat", "json-extract"),
    blocks=2,
    prompts=3,
    max_tokens=30,
)


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return matrix_of(SMOKE)


def past_cell(cell: str, workload: str = "short-chat", rows: int = 1) -> PastCell:
    """Ten replies of 20 tokens, five of them cut, in 40 s."""
    return PastCell(
        model="tiny-thinking",
        workload=workload,
        cell=cell,
        max_rows=rows,
        trials=5,
        seconds=40.0,
        tokens=200,
        lengths=(Length(20, True, 5), Length(20, False, 5)),
    )


def seconds(matrix: Matrix, past: Past) -> dict[tuple[str, str], tuple[float, str]]:
    return {
        (item.pair.workload.name, item.pair.cell.name): (
            pytest.approx(item.estimate.seconds),
            item.estimate.source,
        )
        for item in forecast(matrix, past).pairs
        if item.estimate is not None
    }


def test_without_a_past_every_reply_is_as_long_as_it_may_be_at_the_stated_rate(
    matrix: Matrix,
) -> None:
    found = seconds(matrix, Past())
    assert found["short-chat", "serial"] == (2 * 3 * 30 / STATED_STEPS_PER_S, "stated rate")
    # Two rows a step, and a fourth prompt that fills the last wave.
    assert found["short-chat", "batch2"] == (2 * 4 * 30 / 2 / STATED_STEPS_PER_S, "stated rate")
    grammar = matrix.pairs[-1].workload.max_tokens
    assert found["json-extract", "serial+grammar"][0] == 2 * 3 * grammar / STATED_STEPS_PER_S


def test_a_past_run_of_the_cell_says_how_long_it_takes_per_token_and_reply(matrix: Matrix) -> None:
    past = Past([("new", past_cell("serial")), ("old", replace(past_cell("serial"), seconds=9.0))])
    found = forecast(matrix, past)
    serial = found.pairs[0].estimate
    assert serial is not None
    # Replies of 25 tokens under a budget of 30, at 40 s for 200 tokens.
    assert (serial.seconds, serial.source) == (pytest.approx(6 * 25 * 0.2), "past run")
    assert serial.run_id == "new"
    other = {item.pair.cell.name: item.estimate for item in found.pairs if item.estimate}["batch2"]
    assert (other.source, other.run_id) == ("this model", "new")


def test_other_cells_of_the_model_say_what_a_step_takes(matrix: Matrix) -> None:
    found = seconds(matrix, Past([("r", past_cell("batch4", rows=4))]))
    # 50 steps took 40 s.
    assert found["short-chat", "serial"] == (6 * 25 * 0.8, "this model")
    assert found["short-chat", "batch2"] == (8 * 25 / 2 * 0.8, "this model")
    assert found["json-extract", "serial"] == (6 * 30 * 0.8, "this model")


def test_another_model_says_nothing(matrix: Matrix) -> None:
    stranger = replace(past_cell("serial"), model="other")
    assert seconds(matrix, Past([("r", stranger)])) == seconds(matrix, Past())


def test_replies_that_were_cut_use_up_a_larger_budget_and_none_a_smaller_one() -> None:
    cell = past_cell("serial")
    assert mean_length([cell], 100) == (5 * 100 + 5 * 20) / 10
    assert mean_length([cell], 10) == 10
    assert mean_length([replace(cell, lengths=())], 10) == 10


def test_a_pair_that_cannot_run_takes_no_time_and_says_why(matrix: Matrix) -> None:
    plan = forecast(matrix, Past())
    skipped = [item for item in plan.pairs if item.estimate is None]
    assert {item.pair.cell.name for item in skipped} == {"serial+grammar", "serial+spec+grammar"}
    assert {(item.trials, item.requests) for item in skipped} == {(0, 0)}
    lines = plan_lines(plan)
    assert (
        "skipped serial+grammar, serial+spec+grammar: workload short-chat has no constraint for a "
        "grammar cell"
    ) in lines
    assert any("at a stated 15" in line for line in lines)


def test_a_plan_is_a_table_of_at_most_80_columns_for_each_model_and_workload() -> None:
    cells = ("serial", "batch4+spec+grammar", "spec@num_draft_tokens=15")
    choices = replace(SMOKE, cells=cells, workloads=("short-chat", "json-extract"))
    lines = plan_lines(forecast(matrix_of(choices), Past()))
    assert "tiny-thinking on short-chat" in lines
    assert "tiny-thinking on json-extract" in lines
    told = [line for line in lines if not line.startswith("skipped ")]
    assert max(map(len, told)) <= 80


def test_the_plan_for_programs_holds_the_same(matrix: Matrix) -> None:
    plan = forecast(matrix, Past([("r", past_cell("serial"))]))
    found = json.loads(plan_json(plan))
    assert (found["blocks"], found["prompts"], found["max_tokens"]) == (2, 3, 30)
    assert found["plan"] == matrix.digest
    assert found["trials"] == len(matrix.trials())
    assert found["seconds"] == pytest.approx(plan.seconds, abs=1e-3)
    pairs = {(pair["workload"], pair["cell"]): pair for pair in found["pairs"]}
    assert pairs["short-chat", "serial"]["past_run"] == "r"
    assert pairs["short-chat", "serial+grammar"]["seconds"] is None
    assert "no constraint" in pairs["short-chat", "serial+grammar"]["skipped"]
    assert pairs["json-extract", "serial+spec+grammar"]["reference"] == "serial+grammar"


def test_runs_on_this_machine_are_found_in_the_database_and_others_are_not(tmp_path: Path) -> None:
    assert not read_past(tmp_path / "fm.db", "in-process").cells
    assert not list(tmp_path.iterdir())
    matrix = matrix_of(CHOICES)
    # Instants count in milliseconds in SQLite.
    session(tmp_path, Scripted(before=lambda job: time.sleep(0.01))).start(matrix)
    past = read_past(tmp_path / "fm.db", "in-process")
    assert {item.estimate.source for item in forecast(matrix, past).pairs if item.estimate} == {
        "past run"
    }
    for _, cell in past.cells:
        assert cell.trials == CHOICES.blocks
        assert cell.tokens == 4 * sum(length.count for length in cell.lengths)
        assert cell.seconds > 0
    assert not read_past(tmp_path / "fm.db", "http").cells
    newest = session(tmp_path, Scripted()).start(matrix)
    again = read_past(tmp_path / "fm.db", "in-process")
    assert {run for run, _ in again.cells} == {newest.run_id}
    assert [cell.names for _, cell in again.cells] == [cell.names for _, cell in past.cells]


def test_a_database_that_cannot_be_read_is_a_note_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "fm.db").write_bytes(b"no database, though it is long enough to be one" * 30)
    past = read_past(tmp_path / "fm.db", "in-process")
    assert not past.cells
    assert "past runs are not known" in past.note
    assert past.note in plan_lines(forecast(matrix_of(SMOKE), past))
