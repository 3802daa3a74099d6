"""Two runs side by side: what differs and nothing else, and never a speed-up across them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt

from engine.errors import SettingError
from harness import exit_codes
from harness.cli import cli
from harness.report.gfm import escape
from harness.results.differences import RunsCompared, compare_runs
from harness.results.differences_text import compared_json, compared_markdown
from harness.store import EvalStore
from tests.harness.results.published import MACHINE, ONE, TWO, database, steady_run
from tests.harness.store.sample_run import CHAT, MODEL, Sample, reply

NAME = "evil|`x` <b>\n日本 \u202e"


def compared(folder: Path, one: Sample, other: Sample) -> RunsCompared:
    folders = [folder / "one", folder / "other"]
    for place in folders:
        place.mkdir(parents=True)
    left, right = (sample.load(place) for sample, place in zip((one, other), folders, strict=True))
    return compare_runs(left, right)


def told(found: RunsCompared) -> dict[tuple[str, str], tuple[str, str]]:
    return {
        (item.place.cell, item.what): (item.one.text, item.other.text) for item in found.figures
    }


def test_equal_runs_differ_in_nothing(tmp_path: Path) -> None:
    found = compared(tmp_path, steady_run(ONE), steady_run(TWO))
    assert found.is_comparable
    assert (found.settings, found.environment, found.gates, found.figures) == ((), (), (), ())
    assert found.same > 0
    text = compared_markdown(found)
    assert "None differs as printed" in text
    for heading in ("## Settings", "## Environment", "## Gates", "## Cells of one run"):
        assert heading not in text


def test_figures_that_differ_stand_side_by_side_with_the_interval_of_their_run(
    tmp_path: Path,
) -> None:
    found = compared(tmp_path, steady_run(ONE), steady_run(TWO, speedup=1.5))
    figures = told(found)
    assert figures["serial+spec", "ratio to serial"] == (
        "1.30 [1.30, 1.30] faster",
        "1.50 [1.50, 1.50] faster",
    )
    assert figures["serial+spec", "tok/s (agg)"] == ("26.0 [25.9, 26.1]", "30.0 [29.8, 30.1]")
    assert not any(cell == "serial" for cell, _ in figures)
    rate = next(item for item in found.figures if item.what == "tok/s (agg)")
    assert rate.one.low is not None
    assert rate.one.value is not None
    assert rate.one.low < rate.one.value


OTHERS: dict[str, tuple[Callable[[], Sample], str]] = {
    "machine": (
        lambda: steady_run(TWO, speedup=2.0, environment={**MACHINE, "host": "other"}),
        "host differs (box, other)",
    ),
    "cap": (lambda: steady_run(TWO, speedup=2.0, max_tokens=8), "max_tokens differs (64, 8)"),
    "prompts": (lambda: steady_run(TWO, speedup=2.0, prompts=9), "prompts differs (2, 9)"),
    "seed": (lambda: steady_run(TWO, speedup=2.0, seed=5), "seed differs (0, 5)"),
    "temperature": (
        lambda: steady_run(TWO, speedup=2.0, settings={"temperature": 1.0}),
        "temperature differs (—, 1.0)",
    ),
    "switches": (
        lambda: steady_run(TWO, speedup=2.0, environment={**MACHINE, "switches_off": ["FM_FUSED"]}),
        "switches that are off differ (none, FM_FUSED)",
    ),
}


@pytest.mark.parametrize(("make", "reason"), OTHERS.values(), ids=OTHERS.keys())
def test_speeds_of_another_machine_or_other_work_are_not_told(
    tmp_path: Path, make: Callable[[], Sample], reason: str
) -> None:
    found = compared(tmp_path, steady_run(ONE), make())
    assert reason in found.not_comparable
    # The ratio belongs to each run by itself; speeds would invite a speed-up across them.
    assert {what for _, what in told(found)} == {"ratio to serial"}
    assert escape(f"not comparable: {reason.partition(' (')[0]}") in compared_markdown(found)
    assert json.loads(compared_json(found))["comparable"] is False


def other_lane(name: str, **changes: Any) -> Sample:
    sample = steady_run(TWO, speedup=2.0)
    sample.cells[name] = replace(sample.cells[name], content_hash="other", **changes)
    again = steady_run(TWO, speedup=2.0)
    again.cells.update(sample.cells)
    old = steady_run(TWO).cells[name].content_hash
    again.planned = [
        replace(row, cell="other") if row.cell == old else row for row in again.planned
    ]
    return again


PLACES: dict[str, tuple[Callable[[], Sample], str]] = {
    "dtype": (
        lambda: steady_run(TWO, speedup=2.0, model=replace(MODEL, dtype="bfloat16")),
        "model tiny: dtype differs (float32, bfloat16)",
    ),
    "weights": (
        lambda: steady_run(TWO, speedup=2.0, model=replace(MODEL, digest="")),
        f"model tiny: digest differs ({'d' * 64}, unknown)",
    ),
    "lane": (
        lambda: other_lane("serial", settings={"prefill_chunk": 64}),
        "cell serial: prefill_chunk differs (—, 64)",
    ),
}


@pytest.mark.parametrize(("make", "reason"), PLACES.values(), ids=PLACES.keys())
def test_places_that_share_only_their_name_have_no_figures(
    tmp_path: Path, make: Callable[[], Sample], reason: str
) -> None:
    found = compared(tmp_path, steady_run(ONE), make())
    assert not found.is_comparable
    assert reason in found.places_not_comparable
    # A ratio to a lane that is another one in each run is not the same figure either.
    assert not any(what.startswith("ratio") for _, what in told(found))
    if "lane" not in reason and "cell" not in reason:
        assert found.figures == ()


def test_a_workload_whose_files_were_changed_is_another_one(tmp_path: Path) -> None:
    data = steady_run(ONE).load(tmp_path)
    changed = replace(
        data,
        workloads=tuple(replace(row, content_hash="changed") for row in data.workloads),
        trials=tuple(replace(row, workload="changed") for row in data.trials),
    )
    found = compare_runs(data, changed)
    assert found.places_not_comparable == ("workload short-chat: its prompts or schemas differ",)
    assert found.figures == ()
    assert "None can be told side by side." in compared_markdown(found)


def test_no_quotient_of_two_runs_appears_anywhere(tmp_path: Path) -> None:
    """20 against 50 tok/s: neither 2.5 nor 0.4 nor 150 % is printed."""
    fast = steady_run(TWO)
    fast.records = [
        replace(
            record, trial=replace(record.trial, aggregate_s=(record.trial.aggregate_s or 0) / 2.5)
        )
        for record in fast.records
    ]
    found = compared(tmp_path, steady_run(ONE), fast)
    for text in (compared_markdown(found), compared_json(found)):
        figures = text.partition("igures")[2].replace(TWO, "").replace(ONE, "")
        assert "2.5" not in figures
        assert "0.40" not in figures
        assert "150 %" not in figures
    assert told(found)["serial", "tok/s (agg)"] == ("20.0 [19.9, 20.1]", "50.0 [49.7, 50.3]")


def test_settings_environment_and_gates_that_differ_are_told(tmp_path: Path) -> None:
    ended = {"status": "finished"}
    machine = {**MACHINE, "versions": {"mlx": "2"}}
    other = steady_run(TWO, git_sha="def456", environment=machine, **ended)
    other.records = [
        replace(
            record,
            requests=tuple(replace(item, token_ids=(1, 2, 9)) for item in record.requests),
        )
        if record.trial.cell == "c-serial+spec"
        else record
        for record in other.records
    ]
    found = compared(tmp_path, steady_run(ONE, **ended), other)
    assert [(item.what, item.one, item.other) for item in found.settings] == [
        ("git_sha", "abc123", "def456")
    ]
    assert [(item.what, item.one, item.other) for item in found.environment] == [
        ("versions.mlx", "—", "2")
    ]
    (gate,) = found.gates
    assert (gate.gate, gate.place.cell) == ("identity", "serial+spec")
    assert gate.one == "pass, 100.0 % of 1"
    assert gate.other.startswith("fail, 0.0 % of 1: ")
    assert found.is_comparable
    where = "shows where replies part from their reference, with their texts"
    text = compared_markdown(found)
    assert f"- fm report {TWO} {where}" in text
    assert f"fm report {ONE} {where}" not in text


def test_cells_of_one_run_alone_are_named(tmp_path: Path) -> None:
    other = steady_run(TWO)
    other.add("batch4", 0, 50.0, [reply(lane_taken="batch")])
    found = compared(tmp_path, steady_run(ONE), other)
    assert [place.cell for place in found.only_other] == ["batch4"]
    assert "| tiny | short-chat | batch4 | B alone |" in compared_markdown(found)
    swapped = compared(tmp_path / "again", other, steady_run(ONE))
    assert [place.cell for place in swapped.only_one] == ["batch4"]


def test_hostile_text_breaks_neither_form(tmp_path: Path) -> None:
    one = steady_run(ONE, model=replace(MODEL, name=NAME), tag=NAME)
    other = steady_run(
        TWO, speedup=1.5, model=replace(MODEL, name=NAME), tag="x" * 300, workload=CHAT
    )
    found = compared(tmp_path, one, other)
    text = compared_markdown(found)
    for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(text):
        assert token.type != "html_block"
        assert all(child.type != "html_inline" for child in token.children or [])
    assert json.loads(compared_json(found))["figures"][0]["model"] == NAME


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    texts = {
        compared_markdown(found) + compared_json(found)
        for name in ("a", "b")
        for found in [compared(tmp_path / name, steady_run(ONE), steady_run(TWO, speedup=1.5))]
    }
    assert len(texts) == 1


def test_the_command_compares_stored_runs(tmp_path: Path) -> None:
    path = database(tmp_path, steady_run(ONE), steady_run(TWO, speedup=1.5))
    output = tmp_path / "out" / "compared.json"
    runner = CliRunner()
    shown = runner.invoke(cli, ["compare", ONE, TWO, "--db", str(path)], standalone_mode=False)
    assert shown.return_value == exit_codes.PASS
    assert "| tiny | short-chat | serial+spec | ratio to serial |" in shown.output
    with pytest.raises(SettingError, match=f"are one run, {ONE}; name two of them"):
        runner.invoke(
            cli,
            ["compare", ONE, ONE, "--db", str(path)],
            standalone_mode=False,
            catch_exceptions=False,
        )
    arguments = ["compare", ONE, TWO, "--db", str(path), "--format", "json", "-o", str(output)]
    written = runner.invoke(cli, arguments, standalone_mode=False)
    assert written.output == f"comparison: {output}\n"
    content = json.loads(output.read_text(encoding="utf-8"))
    assert (content["a"], content["b"]) == (ONE, TWO)
    with EvalStore.open(path) as store:
        assert len(store.list_runs()) == 2
