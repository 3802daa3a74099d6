"""Sweeps: names and flags that stand for several cells, and what those are compared with."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.errors import FmError, SettingError, UnknownNameError
from harness.cells.cell import CellKind, load_cells
from harness.cells.name import parse_cell_name
from harness.cells.settings import CHANGES_IDS, OWNERS, PEER_SETTINGS, SAID_OTHERWISE
from harness.cells.sweep import expanded, parse_sweep, split_names, swept
from harness.planning.matrix import identity_reference, ratio_baseline, with_baselines

CATALOGUE = load_cells(Path(__file__).parents[3] / "cells")


MANY = ",".join(map(str, range(1, 10)))


def names(*cells: str) -> list[str]:
    return [cell.name for cell in with_baselines(CATALOGUE.get_all(cells), CATALOGUE)]


def test_every_engine_setting_is_set_by_a_name_or_said_to_be_set_otherwise() -> None:
    known = set(EngineConfig.__dataclass_fields__)
    assert set(OWNERS) | set(SAID_OTHERWISE) == known
    assert not set(OWNERS) & set(SAID_OTHERWISE)
    assert set(OWNERS) >= CHANGES_IDS | PEER_SETTINGS


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("spec@num_draft_tokens=3", "serial+spec@num_draft_tokens=3"),
        ("num_draft_tokens=03@spec", None),
        ("spec@num_draft_tokens=003", "serial+spec@num_draft_tokens=3"),
        (
            "grammar+spec@num_draft_tokens=3@draft_budgets=fixed@two-model",
            "serial+spec+grammar@two-model@draft_budgets=fixed@num_draft_tokens=3",
        ),
        ("batch4@kv_budget_gb=2.0", "batch4@kv_budget_gb=2"),
        ("batch4@kv_budget_gb=0.50", "batch4@kv_budget_gb=0.5"),
        ("batch4@kv_budget_gb=0.000010", "batch4@kv_budget_gb=0.00001"),
        ("serial@pipelined=false", "serial@pipelined=false"),
        ("mlx-lm+spec@num_draft_tokens=5", "mlx-lm+spec@num_draft_tokens=5"),
    ],
)
def test_settings_in_a_name_have_one_spelling(text: str, canonical: str | None) -> None:
    if canonical is None:
        with pytest.raises(FmError):
            parse_cell_name(text)
        return
    assert str(parse_cell_name(text)) == canonical
    assert str(parse_cell_name(canonical)) == canonical


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("serial@num_draft_tokens=3", "num_draft_tokens is for cells with spec"),
        ("spec@num_draft_tokens=99", "num_draft_tokens is 99; it must be between 0 and"),
        ("spec@num_draft_tokens=three", "must be a whole number"),
        ("spec@num_draft_tokens=", "must be a whole number"),
        ("spec@num_draft_tokens=1@num_draft_tokens=2", "is set twice"),
        ("spec@warp=3", "unknown setting of a cell 'warp'; known: draft_budgets"),
        ("spec@acceptance=rejection", "write '@rejection'"),
        ("batch4@max_rows=8", "batchN of the name says it"),
        ("batch4@kv_bits=5", "must be one of 8, 4"),
        ("serial@pipelined=yes", "must be true or false"),
        ("spec@two-model@draft_model=a/b", "in a cell file"),
        ("mlx-lm@kv_bits=8", "nothing that a peer is told"),
        ("spec@two-model@self@num_draft_tokens=3", "has the variants two-model and self"),
    ],
)
def test_a_wrong_setting_in_a_name_is_one_line(text: str, expected: str) -> None:
    with pytest.raises(SettingError, match="cell") as caught:
        parse_cell_name(text)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("spec@num_draft_tokens=0", "a cell with spec needs at least 1"),
        ("spec@draft_model=tiny-thinking", "loads no draft_model"),
    ],
)
def test_a_setting_that_its_cell_cannot_have_is_one_line(text: str, expected: str) -> None:
    with pytest.raises(SettingError, match=expected):
        CATALOGUE.get(text)


def test_a_cell_with_a_setting_differs_from_the_cell_without_in_that_alone() -> None:
    cell, base = CATALOGUE.get("batch2+spec@num_draft_tokens=3"), CATALOGUE.get("batch2+spec")
    assert cell.name == "batch2+spec@num_draft_tokens=3"
    assert cell.config.num_draft_tokens == 3
    assert (cell.kind, cell.lane_taken) == (base.kind, base.lane_taken)
    assert cell.digest != base.digest
    sampled = CATALOGUE.get("spec@rejection@num_draft_tokens=3")
    assert (sampled.config.acceptance, sampled.config.num_draft_tokens) == ("rejection", 3)


@pytest.mark.parametrize(
    ("cell", "baseline", "reference"),
    [
        ("spec@num_draft_tokens=3", "serial", "serial"),
        ("spec+grammar@num_draft_tokens=3", "serial+grammar", "serial+grammar"),
        ("batch4+spec@num_draft_tokens=3", "batch4", "serial"),
        ("serial@pipelined=false", "serial", "serial"),
        ("batch4@pipelined=false", "serial@pipelined=false", "serial"),
        ("spec@pipelined=false", "serial@pipelined=false", "serial"),
        ("serial@kv_bits=8", "serial", None),
        ("spec+grammar@kv_bits=8", "serial+grammar@kv_bits=8", "serial+grammar@kv_bits=8"),
        ("mlx-lm+spec@num_draft_tokens=3", None, None),
    ],
)
def test_a_swept_cell_is_compared_with_the_cell_without_its_mechanism(
    cell: str, baseline: str | None, reference: str | None
) -> None:
    found = CATALOGUE.get(cell)
    for key, expected in (
        (ratio_baseline(found), baseline),
        (identity_reference(found), reference),
    ):
        assert (None if key is None else str(key)) == expected
        assert expected is None or expected in names(cell)


@given(st.sampled_from(["1", "2", "5"]), st.sampled_from(["spec", "batch3+spec+grammar"]))
def test_every_swept_cell_has_its_baselines_before_it(drafts: str, cell: str) -> None:
    found = names(f"{cell}@num_draft_tokens={drafts}@pipelined=false")
    for place, name in enumerate(found):
        for needed in (
            ratio_baseline(CATALOGUE.get(name)),
            identity_reference(CATALOGUE.get(name)),
        ):
            assert needed is None or str(needed) in found[:place]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("serial,batch{1,2,4}", ["serial", "batch1", "batch2", "batch4"]),
        ("batch{1, 2}+spec@num_draft_tokens={3,7}", [
            "batch1+spec@num_draft_tokens=3",
            "batch1+spec@num_draft_tokens=7",
            "batch2+spec@num_draft_tokens=3",
            "batch2+spec@num_draft_tokens=7",
        ]),
        ("{serial,batch4}+spec", ["serial+spec", "batch4+spec"]),
        ("serial", ["serial"]),
        ("", [""]),
    ],
)  # fmt: skip
def test_braces_stand_for_each_of_their_values(text: str, expected: list[str]) -> None:
    assert list(expanded(split_names(text))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch{1,2", "do not close"),
        ("batch1}", "do not close"),
        ("batch{{1,2}}", "do not close"),
        ("batch{}", "empty value"),
        ("batch{1,,2}", "empty value"),
        (f"batch{{{','.join(['1'] * 65)}}}", "more than 64 cells"),
        ("batch{1,2,3,4,5,6,7,8,9}+spec@num_draft_tokens={1,2,3,4,5,6,7,8}", "more than 64"),
    ],
)
def test_braces_that_are_wrong_are_one_line(text: str, expected: str) -> None:
    with pytest.raises(SettingError, match=expected):
        expanded(split_names(text))


@given(st.text(alphabet="ab{},", max_size=12))
def test_any_text_with_braces_expands_or_is_an_fm_error(text: str) -> None:
    try:
        found = expanded(split_names(text))
    except FmError:
        return
    assert found
    assert not any(mark in name for name in found for mark in "{}")


def test_a_sweep_replaces_the_cells_that_have_the_mechanism() -> None:
    sweeps = [parse_sweep("num_draft_tokens=1, 2"), parse_sweep("draft_budgets=fixed")]
    assert swept(["serial", "spec"], sweeps) == (
        "serial",
        "serial+spec@draft_budgets=fixed@num_draft_tokens=1",
        "serial+spec@draft_budgets=fixed@num_draft_tokens=2",
    )
    assert swept(["serial", "mlx-lm"], [parse_sweep("pipelined=false,true")]) == (
        "serial@pipelined=false",
        "serial@pipelined=true",
        "mlx-lm",
    )


@pytest.mark.parametrize(
    ("cells", "sweeps", "expected"),
    [
        (["serial"], ["num_draft_tokens=1,2"], "no cell has spec"),
        (["spec"], ["num_draft_tokens"], "has no values"),
        (["spec"], ["num_draft_tokens="], "has no values"),
        (["spec"], ["num_draft_tokens=1,x"], "must be a whole number"),
        (["spec"], ["num_draft_tokens=1", "num_draft_tokens=2"], "swept twice"),
        (["spec@num_draft_tokens=4"], ["num_draft_tokens=1"], "sets num_draft_tokens, which"),
        (["batch4"], ["max_rows=1,2"], "batchN of the name says it"),
        (["spec"], [f"num_draft_tokens={MANY}", f"prefill_chunk={MANY}"], "more than 64 cells"),
    ],
)  # fmt: skip
def test_a_sweep_that_is_wrong_is_one_line(
    cells: list[str], sweeps: list[str], expected: str
) -> None:
    with pytest.raises(SettingError, match=expected):
        swept(cells, [parse_sweep(text) for text in sweeps])


def test_a_cell_file_with_lists_is_a_cell_for_each_choice(tmp_path: Path) -> None:
    (tmp_path / "serial.toml").write_text('name = "serial"\n')
    (tmp_path / "drafts.toml").write_text(
        'name = "serial+spec@drafts"\n[settings]\nnum_draft_tokens = [1, 3]\n'
        'draft_budgets = ["fixed", "adaptive"]\nprefill_chunk = 64\n'
    )
    catalogue = load_cells(tmp_path)
    found = catalogue.get_all(["spec@drafts"])
    assert [(cell.config.draft_budgets, cell.config.num_draft_tokens) for cell in found] == [
        ("fixed", 1), ("fixed", 3), ("adaptive", 1), ("adaptive", 3),
    ]  # fmt: skip
    assert found[0].name == "serial+spec@drafts@draft_budgets=fixed@num_draft_tokens=1"
    assert {cell.config.prefill_chunk for cell in found} == {64}
    assert catalogue.get(found[1].name) == found[1]
    assert with_baselines(found, catalogue)[0].name == "serial"
    with pytest.raises(UnknownNameError, match=r"spec@drafts@num_draft_tokens=9'?.*|known"):
        catalogue.get("spec@drafts@num_draft_tokens=9")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("num_draft_tokens = []", r":3: num_draft_tokens is an empty list"),
        ("num_draft_tokens = [1, 99]", r":3: num_draft_tokens is 99"),
        ("num_draft_tokens = [0, 1]", r":3: num_draft_tokens is 0"),
    ],
)
def test_a_wrong_list_in_a_cell_file_is_told_with_its_line(
    tmp_path: Path, settings: str, expected: str
) -> None:
    (tmp_path / "a.toml").write_text(f'name = "serial+spec@drafts"\n[settings]\n{settings}\n')
    with pytest.raises(SettingError, match=expected):
        load_cells(tmp_path)


def test_the_sweep_of_draft_lengths_that_fm_brings_along_drafts_in_full() -> None:
    found = CATALOGUE.get_all(["spec@drafts"])
    assert [cell.config.num_draft_tokens for cell in found] == [1, 2, 3, 5, 7]
    assert {cell.config.draft_budgets for cell in found} == {"fixed"}
    assert {cell.kind for cell in found} == {CellKind.PERF}
