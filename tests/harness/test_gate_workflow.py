"""The example workflow works as it stands: its commands are commands of this checkout."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cell import load_cells
from harness.choices import Choices
from harness.cli import cli
from harness.commands.matrix_flags import choices_of
from harness.policy.policy_file import load_policy
from harness.workload import load_workload

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


def test_reports_are_kept_whatever_the_verdict(steps: list[dict[str, Any]]) -> None:
    (kept,) = [step for step in steps if "upload-artifact" in step.get("uses", "")]
    assert kept["if"] == "always()"
    (summary,) = [step for step in steps if "GITHUB_STEP_SUMMARY" in step.get("run", "")]
    assert summary["if"] == "always()"
