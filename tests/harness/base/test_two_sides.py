"""Cells go to the code of their side; what the base cannot do is left out with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from engine.errors import FmError
from harness.base.two_sides import TwoSides
from harness.cells.cell import Cell, load_cells
from harness.planning.choices import GATE_CELLS, Choices
from harness.planning.matrix import identity_reference, plan_matrix, ratio_baseline
from harness.running.plan_rows import cell_row, choices_of, settings_of
from harness.running.session import checked, command_of
from harness.store import ModelRow, RunRow
from harness.trials.target import CannotRunError, TrialJob
from harness.workloads.workload import Workload
from tests.harness.jobs import CATALOGUE, CHAT, PEOPLE, cell_of, job_of
from tests.harness.scripted import Scripted

SHA = "c" * 40


def matrix(cells: tuple[str, ...] = GATE_CELLS, **choices: object):
    chosen = Choices(cells=cells, models=("m",), workloads=("people",), base=SHA, **choices)
    return plan_matrix(chosen, CATALOGUE, {"people": PEOPLE}, lambda model: model)


def test_every_cell_with_a_speed_has_a_twin_and_nothing_else_has() -> None:
    cells = ("spec", "batch4+spec@routed", "mlx-lm")
    names = [pair.cell.name for pair in matrix(cells, preset="gate").pairs]
    assert [name for name in names if name.endswith("@base")] == [
        "serial@base",
        "serial+spec@base",
    ]
    assert {"serial@aa", "batch4+spec@routed", "mlx-lm"} <= set(names)


def test_a_twin_is_compared_within_its_side() -> None:
    found = {pair.cell.name: pair for pair in matrix().pairs}
    twin = found["batch4+spec+grammar@draft_budgets=fixed@base"]
    assert twin.baseline == "batch4+grammar@base"
    assert twin.reference == "serial+grammar@base"
    assert twin.baseline in found
    assert twin.reference in found
    assert found["serial@base"].baseline is None
    row = cell_row(twin.cell)
    assert row.bare == "batch4@base"
    assert row.settings == cell_row(found["batch4+spec+grammar@draft_budgets=fixed"].cell).settings


def test_names_on_a_side_keep_it_whatever_is_taken_away() -> None:
    key = replace(cell_of("batch4+spec+grammar").key, side="base")
    assert str(key.without("spec")) == "batch4+grammar@base"
    assert str(key.serial()) == "serial+spec+grammar@base"
    assert str(ratio_baseline(replace(cell_of("batch4"), key=key))) == "batch4+grammar@base"
    assert str(identity_reference(replace(cell_of("batch4"), key=key))) == "serial+grammar@base"


def test_the_base_is_part_of_the_plan_and_of_the_command() -> None:
    with_base, without = matrix(), matrix()
    without = replace(without, choices=replace(without.choices, base=""))
    assert with_base.digest != without.digest
    chosen = with_base.choices
    assert command_of(chosen).startswith(f"fm gate --base {SHA} --cells serial,")
    run = RunRow(
        run_id="r",
        created_at="",
        tag="",
        command="",
        preset="gate",
        seed=0,
        blocks=1,
        prompts=1,
        settings=settings_of(chosen),
    )
    assert choices_of(run) == chosen


def test_a_server_of_others_has_no_base() -> None:
    with pytest.raises(FmError, match="drop --base or --target"):
        Choices(target="http://localhost:1/v1", base=SHA)


@dataclass
class Limited(Scripted):
    """A base that knows less."""

    row: dict[str, object] = field(default_factory=dict)
    unknown: str = "no such cell"

    def open(self, model: str) -> ModelRow:
        return replace(super().open(model), **self.row)

    def check(self, cell: Cell, workload: Workload) -> None:
        if cell.name.startswith(self.unknown):
            raise FmError(f"unknown setting of {cell.name}")


def sides(**changes: object) -> TwoSides:
    return TwoSides(head=Scripted(), base=Limited(**changes))


def test_a_trial_runs_on_its_side() -> None:
    both = sides()
    cell = cell_of("serial")
    own, twin = job_of(cell), job_of(replace(cell, key=replace(cell.key, side="base")))
    both.run(own, lambda count: None)
    both.run(twin, lambda count: None)
    assert both.head.ran == [own.trial.trial_id]
    assert both.base.ran == [twin.trial.trial_id]


@pytest.mark.parametrize("older", ["head", "base", ""])
def test_both_sides_begin_a_turn_as_the_older_one_can(older: str) -> None:
    """One that knows of no turns empties its cache and replays masks in each of them."""
    seen: list[tuple[int, bool]] = []

    def note(job: TrialJob) -> None:
        seen.append((job.turn, job.wants_replay))

    both = TwoSides(
        head=Scripted(before=note, takes_turns=older != "head"),
        base=Scripted(before=note, takes_turns=older != "base"),
    )
    cell = cell_of("serial")
    for side in ("", "base"):
        job = job_of(replace(cell, key=replace(cell.key, side=side)))
        both.run(replace(job, turn=2, num_turns=4, wants_replay=False), lambda count: None)
    assert seen == [(0, True) if older else (2, False)] * 2


def skips(both: TwoSides) -> dict[str, str]:
    both.open("m")
    pairs = checked(matrix(("spec@draft_budgets=fixed",)), "m", both).pairs
    return {pair.cell.name: pair.skip_reason for pair in pairs if pair.skip_reason}


def test_what_the_base_cannot_run_is_skipped_with_the_reason() -> None:
    assert skips(sides()) == {}
    (found,) = skips(sides(unknown="serial+spec")).items()
    assert found[0] == "serial+spec@draft_budgets=fixed@base"
    assert found[1].startswith("the base cannot run it: unknown setting")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": {"dtype": "float16"}}, "the base opens another m: dtype float16, not "),
        ({"row": {"digest": "other"}}, "digest other, not digest of m"[:20]),
        ({"broken": {"m": FmError("no such file")}}, "the base cannot open m: no such file"),
    ],
)
def test_another_model_on_the_base_is_compared_with_nothing(
    changes: dict[str, object], message: str
) -> None:
    found = skips(sides(**changes))
    assert set(found) == {"serial@base", "serial+spec@draft_budgets=fixed@base"}
    assert all(message in reason for reason in found.values())


def test_an_error_of_the_head_is_raised() -> None:
    both = TwoSides(head=Limited(unknown="serial"), base=Scripted())
    both.open("m")
    with pytest.raises(FmError, match="unknown setting of serial"):
        both.check(cell_of("serial"), CHAT)


def test_peers_and_errors_of_the_base_are_told_apart() -> None:
    both = sides(unknown="serial")
    both.open("m")
    twin = cell_of("serial")
    with pytest.raises(CannotRunError):
        both.check(replace(twin, key=replace(twin.key, side="base")), CHAT)


def test_the_cells_of_a_gate_have_files_and_count_the_same_each_time() -> None:
    catalogue = load_cells(Path(__file__).parents[3] / "cells")
    for cell in catalogue.get_all(GATE_CELLS):
        assert cell.config.num_draft_tokens == 0 or cell.config.draft_budgets == "fixed"
