"""The matrix: which cells run with which baselines, in which order, and why others do not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import SettingError, UnknownNameError
from harness.cells.cell import CORE_CELLS, Cell, CellCatalogue, load_cells
from harness.planning.choices import PRESETS, Choices
from harness.planning.matrix import (
    Matrix,
    identity_reference,
    plan_matrix,
    ratio_baseline,
    skip_model,
    with_baselines,
)
from harness.workloads.workload import Prompt, Workload

CATALOGUE = load_cells(Path(__file__).parents[3] / "cells")


def workload(name: str = "chat", num_prompts: int = 8, is_constrained: bool = False) -> Workload:
    schema = {"type": "boolean"}
    prompts = tuple(
        Prompt(
            id=f"{name}-{number}",
            messages=({"role": "user", "content": str(number)},),
            schema_name="flag" if is_constrained else None,
        )
        for number in range(num_prompts + 1)
    )
    return Workload(
        name=name,
        kind="json" if is_constrained else "text",
        description="numbers",
        max_tokens=100,
        prompts=prompts[1:],
        warmup=prompts[:1],
        schemas={"flag": schema} if is_constrained else {},
        must_compile=0,
        allow_truncation=False,
        digest=name,
    )


def plan(
    choices: Choices,
    *workloads: Workload,
    catalogue: CellCatalogue = CATALOGUE,
    drafter: str | None = None,
) -> Matrix:
    chosen = workloads or (workload("chat"), workload("json", is_constrained=True))
    return plan_matrix(choices, catalogue, {w.name: w for w in chosen}, lambda model: drafter)


def names(cells: tuple[Cell, ...]) -> list[str]:
    return [cell.name for cell in cells]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["serial"], {"serial"}),
        (
            ["spec+grammar"],
            {"serial", "serial+spec", "serial+grammar", "serial+spec+grammar"},
        ),
        (["batch4"], {"serial", "batch4"}),
        (["batch4+grammar"], {"serial", "batch4", "serial+grammar", "batch4+grammar"}),
        (["batch2+spec"], {"serial", "batch2", "batch2+spec"}),
        (["batch4+spec@routed"], {"serial", "batch4+spec@routed"}),
        (["spec@two-model"], {"serial", "serial+spec@two-model"}),
        (["serial@aa"], {"serial", "serial@aa"}),
        (["mlx-lm"], {"mlx-lm"}),
        (["mlx-lm+batch4@blas"], {"mlx-lm@blas", "mlx-lm+batch4@blas"}),
        (["mlx-lm+spec"], {"mlx-lm", "mlx-lm+spec"}),
        (list(CORE_CELLS), set(CORE_CELLS)),
    ],
)
def test_a_cell_brings_in_what_it_is_compared_with(cells: list[str], expected: set[str]) -> None:
    found = with_baselines(CATALOGUE.get_all(cells), CATALOGUE)
    assert set(names(found)) == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("cell", "baseline", "reference"),
    [
        ("serial", None, None),
        ("batch4", "serial", "serial"),
        ("grammar", "serial", None),
        ("spec", "serial", "serial"),
        ("spec+grammar", "serial+grammar", "serial+grammar"),
        ("batch4+spec+grammar", "batch4+grammar", "serial+grammar"),
        ("batch4+grammar", "batch4", "serial+grammar"),
        ("batch4+spec@routed", None, "serial"),
        ("serial@aa", "serial", "serial"),
        ("mlx-lm+batch4", None, None),
    ],
)
def test_the_baseline_is_the_cell_without_its_last_mechanism(
    cell: str, baseline: str | None, reference: str | None
) -> None:
    found = CATALOGUE.get(cell)
    assert (str(ratio_baseline(found)) if baseline else ratio_baseline(found)) == baseline
    assert (str(identity_reference(found)) if reference else identity_reference(found)) == reference


@given(st.lists(st.sampled_from([*CORE_CELLS, "batch7+spec", "mlx-lm+batch4"]), min_size=1))
def test_every_baseline_and_reference_is_in_the_matrix_and_comes_first(
    cells: list[str],
) -> None:
    found = names(with_baselines(CATALOGUE.get_all(cells), CATALOGUE))
    for place, name in enumerate(found):
        cell = CATALOGUE.get(name)
        for needed in (ratio_baseline(cell), identity_reference(cell)):
            assert needed is None or str(needed) in found[:place]


def test_a_grammar_cell_is_skipped_on_a_workload_without_a_constraint() -> None:
    matrix = plan(Choices(cells=("spec+grammar",)))
    skipped = {(pair.workload.name, pair.cell.name) for pair in matrix.skipped}
    assert skipped == {("chat", "serial+grammar"), ("chat", "serial+spec+grammar")}
    assert all("no constraint" in pair.skip_reason for pair in matrix.skipped)
    run = {(trial.pair.workload.name, trial.pair.cell.name) for trial in matrix.trials()}
    assert run.isdisjoint(skipped)


def test_a_peer_is_skipped_where_requests_are_sampled() -> None:
    matrix = plan(Choices(cells=("mlx-lm", "spec@rejection"), models=("m",), temperature=0.7))
    assert {pair.cell.name for pair in matrix.skipped} == {"mlx-lm"}
    assert all("--temperature 0" in pair.skip_reason for pair in matrix.skipped)
    assert not plan(Choices(cells=("mlx-lm",), models=("m",))).skipped


def test_a_draft_model_is_needed_where_the_registry_names_none() -> None:
    matrix = plan(Choices(cells=("spec@two-model", "mlx-lm+spec")))
    assert {pair.cell.name for pair in matrix.skipped} == {
        "serial+spec@two-model",
        "mlx-lm+spec",
    }
    found = plan(Choices(cells=("spec@two-model",)), drafter="small")
    assert not found.skipped
    assert found.cells[-1].config.draft_model == "small"


def test_a_target_can_draft_for_itself_whichever_it_is() -> None:
    found = plan(Choices(cells=("spec@self",), models=("one", "two")))
    drafters = {pair.model: pair.cell.config.draft_model for pair in found.pairs[1::2]}
    assert drafters == {"one": "one", "two": "two"}
    assert len({cell.digest for cell in found.cells}) == len(found.cells) == 3


def test_each_model_is_a_matrix_of_its_own() -> None:
    matrix = plan(Choices(cells=("spec",), models=("one", "two", "one")))
    groups = [trial.pair.model for trial in matrix.trials()]
    assert Counter(groups)["one"] == Counter(groups)["two"] > 0
    assert groups == sorted(groups, key=groups.index)


def test_an_unreachable_model_is_skipped_with_the_reason() -> None:
    matrix = skip_model(plan(Choices(cells=("serial",), models=("a", "b"))), "a", "no network")
    assert {pair.skip_reason for pair in matrix.pairs if pair.model == "a"} == {"no network"}
    assert {trial.pair.model for trial in matrix.trials()} == {"b"}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fixes_blocks_prompts_and_cap(preset: str) -> None:
    matrix = plan(Choices(cells=("serial",), preset=preset), workload(num_prompts=40))
    amounts = PRESETS[preset]
    trials = [trial for trial in matrix.trials() if trial.pair.cell.name == "serial"]
    assert len(trials) == amounts.blocks
    assert {len(trial.prompts) for trial in trials} == {amounts.prompts}
    assert {trial.pair.max_tokens for trial in trials} == {min(100, amounts.max_tokens or 100)}


def test_overrides_beat_the_preset_and_the_cap_spares_grammar_cells() -> None:
    choices = Choices(cells=("grammar",), blocks=2, prompts=1, max_tokens=7)
    matrix = plan(choices, workload("json", is_constrained=True))
    budgets = {pair.cell.name: pair.max_tokens for pair in matrix.pairs}
    assert budgets == {"serial": 7, "serial+grammar": 100}
    assert {trial.block for trial in matrix.trials()} == {0, 1}


def test_the_baseline_is_measured_twice_where_timing_gets_a_verdict() -> None:
    assert "serial@aa" in names(plan(Choices(cells=("spec",), preset="gate")).cells)
    assert "serial@aa" not in names(plan(Choices(cells=("spec",), preset="quick")).cells)


def test_all_cells_of_a_block_answer_the_same_prompts_and_blocks_move_on() -> None:
    matrix = plan(Choices(cells=("batch4", "spec"), prompts=3, blocks=2), workload())
    by_block = [
        {trial.pair.cell.name: trial.prompts for trial in matrix.trials() if trial.block == block}
        for block in (0, 1)
    ]
    for cells in by_block:
        assert cells["serial"] == cells["serial+spec"]
        assert cells["batch4"][:3] == cells["serial"]
        assert len(cells["batch4"]) == 4
    first, second = ({prompt.id for prompt in cells["serial"]} for cells in by_block)
    assert not first & second


@given(st.integers(1, 128), st.integers(1, 8))
@settings(max_examples=30)
def test_batch_lanes_get_enough_prompts_for_full_occupancy(rows: int, prompts: int) -> None:
    matrix = plan(Choices(cells=(f"batch{rows}",), prompts=prompts, blocks=1), workload())
    (trial,) = [t for t in matrix.trials() if t.pair.cell.name == f"batch{rows}"]
    assert len(trial.prompts) % rows == 0
    assert prompts <= len(trial.prompts) < prompts + rows


def order(matrix: Matrix) -> list[tuple[int, int]]:
    """Blocks and places of the cells as planned, whatever they are called."""
    place = {cell.name: index for index, cell in enumerate(matrix.cells)}
    return [(trial.block, place[trial.pair.cell.name]) for trial in matrix.trials()]


def test_the_order_is_shuffled_in_each_block_and_repeats_with_the_seed() -> None:
    def choose(seed: int) -> Choices:
        return Choices(cells=CORE_CELLS, blocks=6, prompts=1, seed=seed)

    one = plan(choose(1), workload("json", is_constrained=True))
    assert order(one) == order(plan(choose(1), workload("json", is_constrained=True)))
    assert order(one) != order(plan(choose(2), workload("json", is_constrained=True)))
    blocks = [[place for block, place in order(one) if block == wanted] for wanted in range(6)]
    assert all(sorted(block) == sorted(blocks[0]) for block in blocks)
    assert len({tuple(block) for block in blocks}) > 1


def test_renaming_a_cell_moves_nothing() -> None:
    """Case ha-08: the order must not hang on names."""
    renamed = CellCatalogue(
        {
            str(key): replace(cell, key=key)
            for cell in CATALOGUE.cells.values()
            if not cell.key.variant
            for key in [replace(cell.key, variant="zz") if cell.key.has("spec") else cell.key]
        }
    )
    before = plan(Choices(cells=("spec", "grammar"), blocks=5, prompts=1))
    after = plan(Choices(cells=("spec@zz", "grammar"), blocks=5, prompts=1), catalogue=renamed)
    assert order(before) == order(after)
    assert before.digest != after.digest


def test_drift_does_not_favour_a_cell() -> None:
    """Case ha-08: speed falls 1 % a run; equal cells come out within 2 %."""
    matrix = plan(Choices(cells=("serial", "batch2", "spec"), blocks=5, prompts=1), workload())
    speeds: dict[str, list[float]] = {}
    for place, trial in enumerate(matrix.trials()):
        speeds.setdefault(trial.pair.cell.name, []).append(0.99**place)
    means = [sum(values) / len(values) for values in speeds.values()]
    assert max(means) / min(means) < 1.02


def test_the_digest_follows_everything_that_decides_what_runs() -> None:
    base = Choices(cells=("spec",), prompts=2)
    variants = [
        base,
        replace(base, seed=1),
        replace(base, blocks=2),
        replace(base, prompts=3),
        replace(base, max_tokens=9),
        replace(base, temperature=0.5),
        replace(base, cells=("serial",)),
        replace(base, models=("other",)),
        replace(base, target="http"),
    ]
    digests = {plan(choices).digest for choices in variants}
    digests.add(plan(base, workload("other")).digest)
    assert len(digests) == len(variants) + 1
    assert plan(base).digest == plan(replace(base, cells=("serial+spec",))).digest


def test_a_plan_in_process_has_the_digest_it_had_before_there_were_targets() -> None:
    """Or no run that was begun then could be gone on with."""
    empty = Matrix(choices=Choices(), pairs=())
    known = "6d81d0ca90508e1ad1e3502a3620530562d0c82998e9306da0b492533e95ef7f"
    assert empty.digest == known
    assert replace(empty, choices=Choices(target="http")).digest != known


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"blocks": 0}, "blocks is 0"),
        ({"prompts": 0}, "prompts is 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**63}, "seed is"),
        ({"models": ()}, "no model is named"),
        ({"workloads": ()}, "no workload is named"),
    ],
)
def test_choices_out_of_bounds_are_refused(values: dict[str, object], expected: str) -> None:
    with pytest.raises(SettingError, match=expected):
        Choices(**values)  # type: ignore[arg-type]  # wrong values are the point


def test_unknown_presets_and_too_many_prompts_name_what_exists() -> None:
    with pytest.raises(UnknownNameError, match="known: gate, quick, quote, smoke"):
        Choices(preset="warp")
    with pytest.raises(SettingError, match="--prompts 1 to 8"):
        plan(Choices(prompts=9))
