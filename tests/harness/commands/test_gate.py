"""`fm gate` as people and CI call it: a stored run, a base, exit codes, files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness import exit_codes
from harness.calibration.faults import FAULTS, UNCHANGED, Copy
from harness.cli import main
from harness.machine import git_state
from harness.store import EvalStore
from tests.harness.command import FM, held
from tests.harness.store.sample_run import EXTRACT, Sample, reply

TIMEOUT_S = 600


def stored(folder: Path, conformance: str = "ok") -> None:
    """Store a small run whose documents are as they are told."""
    sample = Sample(run={"status": "finished"})
    for block in range(3):
        sample.add("serial", block, workload=EXTRACT)
        replies = [reply(conformance=conformance)]
        sample.add("serial+grammar", block, replies=replies, workload=EXTRACT)
    with EvalStore.open(folder / "fm.db") as store:
        sample.store_in(store)


def called(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run a command in this process."""
    with pytest.raises(SystemExit) as stop:
        main(["gate", *arguments])
    out, err = capfd.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, out, err


def test_a_stored_run_is_judged_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stored(tmp_path)
    files = ("--junit", "out/j.xml", "--summary", "s.md", "--json", "g.json")
    code, out, err = called(capfd, "--db", "fm.db", *files)
    assert (code, err) == (exit_codes.PASS, "")
    assert "gate: PASS" in out
    assert ElementTree.parse("out/j.xml").getroot().tag == "testsuites"
    assert Path("s.md").read_text().startswith("# fm gate: PASS")
    assert json.loads(Path("g.json").read_text())["exit_code"] == 0


def test_a_document_that_does_not_conform_exits_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stored(tmp_path, conformance="not-json")
    code, out, _ = called(capfd, "latest", "--db", "fm.db")
    assert code == exit_codes.CORRECTNESS
    assert "fail: conformance on tiny json-extract serial+grammar" in out


def test_a_verdict_comes_out_also_where_nobody_reads_what_is_said(tmp_path: Path) -> None:
    """`fm gate | head` under pipefail must not be a pass."""
    stored(tmp_path, conformance="not-json")
    command = (sys.executable, "-P", "-m", "harness.cli", "gate", "--db", "fm.db")
    child = subprocess.Popen(
        [*command, "--json", "g.json"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.close()
    assert child.stderr is not None
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(TIMEOUT_S) == exit_codes.CORRECTNESS
    assert json.loads((tmp_path / "g.json").read_text())["exit_code"] == exit_codes.CORRECTNESS


def test_a_run_without_a_name_is_not_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As in `fm gate "$RUN"` where CI did not set it."""
    monkeypatch.chdir(tmp_path)
    stored(tmp_path)
    code, out, err = called(capfd, "", "--db", "fm.db")
    assert (code, out) == (exit_codes.USAGE, "")
    assert "unknown run ''" in err


def test_a_gate_that_comes_to_nothing_leaves_no_file_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "j.xml").write_text("green")
    code, _, _ = called(capfd, "--base", "nonesuch", "--junit", "j.xml")
    assert code == exit_codes.USAGE
    assert not (tmp_path / "j.xml").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--policy", "nonesuch"], "unknown policy 'nonesuch'; known: "),
        (["--junit", "file/below"], "give another place with --junit"),
        (["latest"], "there is no database"),
        (["latest", "--base", "HEAD"], "RUN and --base exclude each other"),
        (["--base", "HEAD", "--resume", "latest"], "--base and --resume exclude each other"),
        (["--cells", "serial"], "--cells chooses what --base runs; add --base REF"),
        (["--resume", "latest", "--max-tokens", "3"], "--max-tokens chooses what --base runs"),
        (["--base", "nonesuch"], "--base 'nonesuch' is no commit of"),
        (["--base", "HEAD", "--cells", "warp"], "unknown cell 'warp'"),
        (["--resume", "latest"], "there is no database"),
        (["", "--base", "HEAD"], "RUN and --base exclude each other"),
        (["--base", "", "--cells", "serial"], "--base '' is no commit of"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line_and_exit_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way")
    code, out, err = called(capfd, *arguments)
    assert code == exit_codes.USAGE
    assert expected in err
    assert len(err.splitlines()) == 1
    assert not out


def test_a_run_without_a_base_is_not_gone_on_with_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sample = Sample(run={"settings": SETTINGS})
    sample.add("serial")
    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
    code, _, err = called(capfd, "--resume", "latest", "--db", "fm.db")
    assert code == exit_codes.USAGE
    assert "has no base; go on with: fm run --resume" in err


SETTINGS = {
    "cells": ["serial"],
    "models": ["tiny-thinking"],
    "workloads": ["short-chat"],
    "preset": "smoke",
    "blocks": None,
    "prompts": None,
    "max_tokens": None,
    "seed": 0,
}


def test_a_run_with_a_base_is_gone_on_with_by_gate_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sample = Sample(run={"settings": {**SETTINGS, "base": "b" * 40}, "git_sha": "a" * 40})
    sample.add("serial")
    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
    with pytest.raises(SystemExit) as stop:
        main(["run", "--resume", "latest", "--db", "fm.db"])
    assert stop.value.code == exit_codes.USAGE
    assert "go on with: fm gate --resume" in capfd.readouterr().err
    code, _, err = called(capfd, "--resume", "latest", "--db", "fm.db")
    assert code == exit_codes.USAGE
    assert f"began at {'a' * 12} and the checkout is at " in err


def test_a_run_with_a_base_is_not_gone_on_with_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same commit, but with changes then that are not there now, or the other way round."""
    monkeypatch.chdir(tmp_path)
    now = git_state()
    run = {"settings": {**SETTINGS, "base": "b" * 40}, "git_sha": now.sha}
    sample = Sample(run={**run, "git_dirty": not now.is_dirty})
    sample.add("serial")
    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
    code, _, err = called(capfd, "--resume", "latest", "--db", "fm.db")
    assert code == exit_codes.USAGE
    assert "bring the code back to what it was" in err


# -- two sides, in a copy of this checkout ---------------------------------------------------------


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """A checkout whose only commit is this code; `scripts/gate-faults` has every fault."""
    made = Copy(tmp_path_factory.mktemp("copy"))
    yield made
    assert not worktrees(made.root)


def worktrees(root: Path) -> list[str]:
    """Return the checkouts that were made beside a repository and are still there."""
    done = subprocess.run(
        ["git", "-C", str(root), "worktree", "list", "--porcelain"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip().split("\n\n")[1:]


SMALL = ("--prompts", "1", "--policy", "shared-runner")


def test_doubled_mask_fills_are_caught_against_the_base(copy: Copy, tmp_path: Path) -> None:
    fault = FAULTS["doubled-masks"]
    caught = copy.gate(fault, "tiny-thinking", tmp_path / "run", *SMALL)
    assert caught.failed == {fault.finding}
    assert caught.exit_code == exit_codes.REGRESSION
    (note,) = [note for note in caught.report["notes"] if note.startswith("head: ")]
    assert "with uncommitted changes, base: " in note


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_gate_that_is_ended_removes_its_checkout(
    copy: Copy, tmp_path: Path, number: signal.Signals
) -> None:
    """As CI ends what is not wanted any more, here as soon as the base is checked out."""
    child = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "harness.cli", "gate", "--db", "fm.db", "--quiet"),
            *("--base", "HEAD", "--models", "tiny-thinking", "--cells", "serial"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(copy.root)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    while not (line := child.stderr.readline()).startswith("base: "):
        assert line, "it ended before the base was checked out"
    assert worktrees(copy.root)
    child.send_signal(number)
    child.communicate(timeout=TIMEOUT_S)
    assert child.returncode == exit_codes.INTERRUPTED
    assert not worktrees(copy.root)


def test_a_gate_that_nobody_watches_any_more_is_no_pass(copy: Copy, tmp_path: Path) -> None:
    """`fm gate --base main 2>&1 | head -1` ends in the middle of the run, without a verdict."""
    child = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "harness.cli", "gate", "--db", "fm.db", "--quiet"),
            *("--base", "HEAD", "--models", "tiny-thinking", "--cells", "serial"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(copy.root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline()
    child.stdout.close()
    assert child.wait(TIMEOUT_S) == exit_codes.INTERRUPTED
    assert not worktrees(copy.root)


def test_a_run_of_two_sides_that_was_killed_goes_on_and_counts_no_trial_twice(
    copy: Copy, tmp_path: Path
) -> None:
    command = ("gate", "--db", "fm.db", "--quiet")
    chosen = (
        "--models",
        "tiny-thinking",
        "--cells",
        "spec@draft_budgets=fixed",
        "--workloads",
        "short-chat",
    )
    amounts = ("--blocks", "2", "--prompts", "1", "--max-tokens", "8", "--base", "HEAD")
    environment = {**os.environ, "PYTHONPATH": str(copy.root)}
    child = subprocess.Popen(
        [*held("turn", 1), *command, *chosen, *amounts],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert child.stderr is not None
    while (line := child.stderr.readline()) != "held\n":
        assert line, "it ended before the second trial"
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=TIMEOUT_S)
    resume = ("--resume", "latest", "--policy", "shared-runner", "--json", "gate.json")
    done = subprocess.run(
        [*FM, *command, *resume],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == UNCHANGED.exit_code, done.stdout + done.stderr
    report = json.loads((tmp_path / "gate.json").read_text())
    (whole,) = [item for item in report["findings"] if item["name"] == "completeness"]
    assert (whole["status"], whole["n"]) == ("pass", 8)
    replies = [item for item in report["findings"] if item["name"] == "changed_replies"]
    assert all(item["count"]["head"] == 0 for item in replies)
