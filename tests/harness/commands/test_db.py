"""`fm db` lists, shows, exports, merges, copies, checks and imports, from the shell."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness import exit_codes
from harness.cli import cli, main
from harness.commands.columns import aligned
from harness.store import EvalStore, PromotionRow, StoreError, new_id
from tests.harness.results.published import MACHINE, ONE, THREE, TWO, database, steady_run
from tests.harness.store.sample_run import MODEL, Sample, big_sample, reply

NAME = 'a|b "c", `d`\n日本 \x1b[31m'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database of three runs, the newest of them still running."""
    made = database(
        tmp_path,
        steady_run(ONE, created_at="2026-01-01T00:00:00.000000Z", tag="feature-matrix[box] night"),
        steady_run(
            TWO,
            created_at="2026-01-02T00:00:00.000000Z",
            blocks=3,
            model=replace(MODEL, name="larger"),
        ),
    )
    with EvalStore.open(made) as store:
        late = steady_run(THREE, created_at="2026-01-03T00:00:00.000000Z", status="running")
        late.records = late.records[:5]
        late.store_in(store)
    return made


def call(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["db", *arguments, "--db", str(path)], standalone_mode=False)


def runs_in(output: str) -> list[str]:
    return [line.split()[0] for line in output.splitlines()[1:]]


def test_the_newest_runs_come_first_with_how_they_ended(path: Path) -> None:
    done = call(path, "list")
    assert done.return_value == exit_codes.PASS
    assert runs_in(done.output) == [THREE, TWO, ONE]
    rows = [line.split() for line in done.output.splitlines()]
    assert rows[0] == ["run", "created", "status", "quotable", "trials", "models", "tag"]
    assert rows[1][3:] == ["running", "—", "5/18", "tiny", "feature-matrix[box]"]
    assert rows[2][3:] == ["finished:", "0", "(PASS)", "no", "9/9", "larger", "feature-matrix[box]"]
    assert rows[3][3:7] == ["finished:", "0", "(PASS)", "yes"]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--tag", "Night"], [ONE]),
        (["--model", "larger"], [TWO]),
        (["--status", "running"], [THREE]),
        (["--limit", "2"], [THREE, TWO]),
        (["--tag", "feature", "--status", "finished", "--limit", "1"], [TWO]),
        (["--model", "nonesuch"], []),
    ],
    ids=" ".join,
)
def test_runs_are_filtered(path: Path, arguments: list[str], found: list[str]) -> None:
    assert runs_in(call(path, "list", *arguments).output) == found


def test_a_status_that_does_not_exist_names_those_that_do(path: Path) -> None:
    assert "known: failed, finished, interrupted" in str(
        call(path, "list", "--status", "done").exception
    )


def test_a_run_is_shown_with_what_became_of_it(path: Path) -> None:
    lines = call(path, "show", TWO).output.splitlines()
    told = {line.split("  ")[0]: line.rpartition("  ")[2] for line in lines}
    assert told["run"] == TWO
    assert told["exit code"] == "0 (PASS)"
    assert told["unquotable because"] == "3 blocks; a verdict needs 6"
    assert told["trials"] == "9 done"
    assert told["models"] == "larger"
    assert told["cells"] == "serial, serial+spec, serial@aa"
    assert told["environment device_name"] == "Toy CPU"
    assert call(path, "show").output.splitlines()[0].endswith(THREE)


def test_each_reason_against_a_run_has_a_line_of_its_own(path: Path) -> None:
    with EvalStore.open_existing(path) as store:
        run = store.find_run(TWO)
        store.finish_run(TWO, status="finished", exit_code=3, unquotable_reasons=["hot", "busy"])
        store.record_promotion(
            PromotionRow(
                promotion_id=new_id(),
                run_id=run.run_id,
                promoted_at=run.created_at,
                destination="RESULTS.md",
                quotable=False,
                reasons=("hot", "busy"),
            )
        )
    lines = [line.split("  ") for line in call(path, "show", TWO).output.splitlines()]
    told = [(line[0], line[-1].strip()) for line in lines]
    first = told.index(("unquotable because", "hot"))
    assert told[first + 1] == ("", "busy")
    promoted = told.index(("promoted as unquotable because", "hot"))
    assert told[promoted + 1] == ("", "busy")
    assert "finished: 3 (FAIL)" in call(path, "list").output


def test_a_view_is_exported_as_csv_and_json_with_the_same_values(
    path: Path, tmp_path: Path
) -> None:
    shown = call(path, "export", "--view", "v_cell", "--run", ONE)
    rows = list(csv.DictReader(io.StringIO(shown.output)))
    assert [row["cell"] for row in rows] == ["serial", "serial+spec", "serial@aa"]
    assert {row["run_id"] for row in rows} == {ONE}
    assert rows[0]["drafted"] == ""
    output = tmp_path / "cells.json"
    done = call(path, "export", "--view", "v_cell", "--format", "json", "-o", str(output))
    assert done.output == f"exported: {output}\n"
    items = json.loads(output.read_text(encoding="utf-8"))
    assert {item["run_id"] for item in items} == {ONE, TWO, THREE}
    assert [item["done"] for item in items if item["run_id"] == ONE] == [6, 6, 6]
    assert items[0]["drafted"] is None


def test_a_flag_out_of_its_bounds_names_the_help_of_its_own_command(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["db", "list", "--limit", "0"])
    assert stop.value.code == 2
    assert capfd.readouterr().err.endswith("; see fm db list --help\n")


def test_every_view_can_be_exported_and_an_empty_one_is_an_empty_list(
    path: Path, tmp_path: Path
) -> None:
    with EvalStore.open(tmp_path / "empty.db"):
        pass
    raw = sqlite3.connect(path)
    views = [row[0] for row in raw.execute("SELECT name FROM sqlite_master WHERE type = 'view'")]
    raw.close()
    assert {"v_cell", "v_composition", "v_accept_curve", "v_history", "v_request"} <= set(views)
    for view in views:
        first, second = (call(path, "export", "--view", view, "--format", "json") for _ in "ab")
        assert first.return_value == exit_codes.PASS
        assert first.output == second.output
        json.loads(first.output)
        empty = call(tmp_path / "empty.db", "export", "--view", view, "--format", "json")
        assert json.loads(empty.output) == []


def test_hostile_text_survives_the_export(tmp_path: Path) -> None:
    sample = Sample(run={"environment": MACHINE, "tag": NAME})
    sample.add("serial", 0, 20.0, [reply(text=NAME)], model=replace(MODEL, name=NAME))
    path = database(tmp_path, sample)
    shown = call(path, "export", "--view", "v_request", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(shown.output, newline=""))
    assert (row["model"], row["text"]) == (NAME, NAME)
    items = json.loads(call(path, "export", "--view", "v_request", "--format", "json").output)
    assert (items[0]["model"], items[0]["text"]) == (NAME, NAME)
    for command in ("list", "show"):
        assert "\x1b" not in call(path, command).output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["export"], "give --view NAME, or --run RUN with -o FILE"),
        (["export", "--run", "latest"], "give --view NAME, or --run RUN with -o FILE"),
        (["export", "--view", "runs; DROP TABLE runs"], "unknown view"),
        (["export", "--view", "v_cell", "--format", "xml"], "known: csv, json"),
        (["show", "02"], "unknown run '02'"),
        (["import", "nowhere.jsonl"], "cannot be read"),
        (["merge", "nowhere.db"], "there is no database nowhere.db"),
        (["list", "--limit", "99999999999999999999"], "is not in the range 1<=x<="),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(path: Path, arguments: list[str], expected: str) -> None:
    error = str(call(path, *arguments).exception)
    assert expected in error
    assert "\n" not in error


def test_a_run_goes_to_another_machine_and_is_merged_there(path: Path, tmp_path: Path) -> None:
    alone, other = tmp_path / "one.db", tmp_path / "other.db"
    assert call(path, "export", "--run", ONE, "-o", str(alone)).return_value == exit_codes.PASS
    first = call(other, "merge", str(alone))
    assert first.output == f"{alone}: 1 runs added, 0 gone on with, 0 known already\n"
    again = call(other, "merge", str(alone), str(path))
    assert again.output.splitlines() == [
        f"{alone}: 0 runs added, 0 gone on with, 1 known already",
        f"{path}: 2 runs added, 0 gone on with, 1 known already",
    ]
    assert runs_in(call(other, "list").output) == [THREE, TWO, ONE]


def test_a_copy_is_whole_while_a_run_writes_and_an_existing_file_is_kept(
    path: Path, tmp_path: Path
) -> None:
    """Case ha-11: a plain copy of the file would lack what still lies in its WAL."""
    target = tmp_path / "copy.db"
    with EvalStore.open(path) as store:
        late = steady_run(THREE).records[5]
        assert store.record_trial(late).saved
        done = call(path, "copy", str(target))
        assert done.output == f"copied: {target}\n"
        whole = store.load_run(THREE)
    assert not list(tmp_path.glob("copy.db-*"))
    with EvalStore.open(target) as copy:
        assert copy.load_run(THREE) == whole
        assert copy.integrity_problems() == ()
    assert call(path, "copy", str(tmp_path / "new" / "copy.db")).return_value == exit_codes.PASS
    (tmp_path / "file").write_text("")
    assert "cannot be made" in str(call(path, "copy", str(tmp_path / "file" / "x.db")).exception)
    before = path.read_bytes()
    for taken in (target, path):
        assert "exists already" in str(call(path, "copy", str(taken)).exception)
    assert path.read_bytes() == before


def test_a_sound_database_is_told_and_what_waits_is_named(path: Path, tmp_path: Path) -> None:
    assert call(path, "check").output == f"{path} is sound\n"
    spool = tmp_path / "spool" / f"{THREE}-1.jsonl"
    spool.parent.mkdir()
    spool.write_text("")
    done = call(path, "check")
    assert done.return_value == exit_codes.INCOMPLETE
    assert f"fm db import {spool}" in done.output


def test_a_damaged_database_is_told(path: Path) -> None:
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA foreign_keys = OFF")
    raw.execute("UPDATE trials SET model = 'gone' WHERE block = 0")
    raw.commit()
    raw.close()
    done = call(path, "check")
    assert done.return_value == exit_codes.INCOMPLETE
    assert "refers to no models" in done.output


def test_spool_files_are_taken_in_once(tmp_path: Path) -> None:
    sample = big_sample("01SPOOL", 2)
    records, sample.records = sample.records, []
    path = tmp_path / "fm.db"
    with EvalStore.open(path, lock_wait_s=0.05) as store:
        sample.store_in(store)
        lock = sqlite3.connect(path, isolation_level=None)
        lock.execute("BEGIN EXCLUSIVE")
        spool = store.record_trial(records[0]).spool
        lock.close()
        assert spool is not None
        copy = spool.read_text()
        assert call(path, "import", str(spool)).output.endswith(
            "1 taken in, 0 known already, 0 unreadable\n"
        )
        assert not spool.exists()
        spool.write_text(f"{copy}{{cut")
        done = call(path, "import", str(spool))
        assert done.return_value == exit_codes.INCOMPLETE
        assert f"0 taken in, 1 known already, 1 unreadable; kept as {spool.name}.damaged" in (
            done.output
        )
        assert len(store.load_run("01SPOOL").requests) == len(records[0].requests)


def test_a_missing_database_is_made_by_merging_alone(tmp_path: Path, path: Path) -> None:
    for arguments in (["list"], ["show"], ["check"], ["copy", "x.db"], ["export", "--view", "v"]):
        assert isinstance(call(tmp_path / "none.db", *arguments).exception, StoreError)
        assert not (tmp_path / "none.db").exists()
    assert call(tmp_path / "none.db", "merge", str(path)).return_value == exit_codes.PASS


def test_columns_line_up_whatever_they_hold() -> None:
    lines = aligned([("a", "x"), ("日本", "y"), ("b\nc", "z")])
    assert lines == ["a     x", "日本  y", "b c   z"]
