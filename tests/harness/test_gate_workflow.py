"""The example workflow works as it stands: its commands are commands of this checkout."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.base.worktree import commit_of
from harness.cells.cell import load_cells
from harness.cli import cli
from harness.commands.matrix_flags import choices_of
from harness.commands.places import DEFAULT_DB
from harness.planning.choices import Choices
from harness.policy.policy_file import load_policy
from harness.workloads.workload import load_workload
from tests.harness.base.test_worktree import git

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "fm-gate.yml"


@pytest.fixture(scope="module")
def steps() -> list[dict[str, Any]]:
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    # YAML 1.1 reads the key `on` as true.
    assert set(workflow[True]) == {"pull_request", "push", "workflow_dispatch"}
    assert workflow["permissions"] == {"contents": "read"}
    return workflow["jobs"]["gate"]["steps"]


def commands(steps: list[dict[str, Any]]) -> list[str]:
    return [step["run"] for step in steps if "run" in step]


def gate_arguments(steps: list[dict[str, Any]]) -> list[str]:
    (command,) = [text for text in commands(steps) if "fm gate" in text]
    words = shlex.split(command)
    assert words[:4] == ["scripts/uv", "run", "fm", "gate"]
    return words[4:]


def test_every_command_is_one_of_this_checkout(steps: list[dict[str, Any]]) -> None:
    for command in commands(steps):
        parsed = subprocess.run(
            ["bash", "-n", "-c", command], capture_output=True, text=True, check=False
        )
        assert parsed.returncode == 0, parsed.stderr
        first = shlex.split(command)[0]
        if "/" in first:
            assert os.access(ROOT / first, os.X_OK)


def test_the_gate_of_the_workflow_names_what_exists(steps: list[dict[str, Any]]) -> None:
    context = cli.commands["gate"].make_context("gate", gate_arguments(steps))
    chosen = choices_of(context)
    assert isinstance(chosen, Choices)
    load_cells(ROOT / "cells").get_all(chosen.cells)
    for name in chosen.workloads:
        assert load_workload(name).is_constrained
    policy = load_policy(context.params["policy"])
    assert policy.require_base
    for place in ("junit", "summary", "json_path"):
        assert context.params[place].parent == Path("reports")


def test_times_decide_nothing_on_a_runner_that_others_use(steps: list[dict[str, Any]]) -> None:
    arguments = gate_arguments(steps)
    assert arguments[arguments.index("--policy") + 1] == "shared-runner"


def test_the_base_is_fetched_before_it_is_named(steps: list[dict[str, Any]]) -> None:
    (checkout,) = [step for step in steps if "actions/checkout" in step.get("uses", "")]
    assert checkout["with"]["fetch-depth"] == 0
    assert steps[0] is checkout


def named_base(steps: list[dict[str, Any]], root: Path, before: str) -> str:
    """Run the step that names the base in a repository, and return the commit that it names."""
    (step,) = [step for step in steps if step.get("name") == "Name the base"]
    told = root.parent / "environment"
    told.unlink(missing_ok=True)
    subprocess.run(
        ["bash", "-e", "-c", step["run"]],
        cwd=root,
        env={**os.environ, "BEFORE": before, "GITHUB_ENV": str(told)},
        capture_output=True,
        check=True,
    )
    name, _, base = told.read_text().strip().partition("=")
    assert name == "BASE"
    return commit_of(root, base)


def test_a_merge_is_compared_with_the_branch_and_a_push_with_all_before_it(
    steps: list[dict[str, Any]], tmp_path: Path
) -> None:
    root = tmp_path / "checkout"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    shas = []
    for text in ("first", "second", "third"):
        (root / "file").write_text(text)
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "-m", text)
        shas.append(commit_of(root, "HEAD"))
    git(root, "checkout", "--quiet", "-b", "change", shas[0])
    git(root, "commit", "--quiet", "--allow-empty", "-m", "change")
    git(root, "checkout", "--quiet", "main")
    git(root, "merge", "--quiet", "--no-ff", "-m", "as CI does", "change")
    assert named_base(steps, root, "HEAD~1") == shas[2]
    git(root, "reset", "--quiet", "--hard", shas[2])
    assert named_base(steps, root, shas[0]) == shas[0]
    for gone in ("0" * 40, "e" * 40):
        assert named_base(steps, root, gone) == shas[1]


def test_each_push_to_the_main_branch_is_judged() -> None:
    """A group runs one at a time, and of those that wait it keeps the newest alone."""
    group = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["concurrency"]["group"]
    assert group == "fm-gate-${{ github.event_name == 'pull_request' && github.ref || github.sha }}"


def test_reports_are_kept_whatever_the_verdict(steps: list[dict[str, Any]]) -> None:
    (kept,) = [step for step in steps if "upload-artifact" in step.get("uses", "")]
    assert kept["if"] == "always()"
    assert {"reports/", str(DEFAULT_DB)} == set(kept["with"]["path"].split())
    (summary,) = [step for step in steps if "GITHUB_STEP_SUMMARY" in step.get("run", "")]
    assert summary["if"] == "always()"
