"""Policy files: what is not named stays as fm brings it, what is wrong is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import SettingError, UnknownNameError
from harness.policy.counters import COUNTERS
from harness.policy.measures import METRICS
from harness.policy.policy_file import load_policy
from harness.resources import policies_dir


def written(folder: Path, text: str) -> str:
    path = folder / "own.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_default_names_every_metric_and_counter_with_the_deltas_of_the_method() -> None:
    policy = load_policy()
    assert set(policy.metrics) == set(METRICS)
    assert set(policy.counters) == set(COUNTERS)
    deltas = {name: rule.delta for name, rule in policy.metrics.items()}
    assert list(deltas.values()) == [0.03, 0.05, 0.02, 0.25, 0.25]
    assert policy.family_error == 0.05
    assert policy.required == ("completeness",)


def test_on_a_shared_runner_no_size_decides_and_every_count_does() -> None:
    """The peak of memory is no count: runs of one build differ by several percent in it."""
    policy = load_policy("shared-runner")
    assert policy.require_base
    assert {rule.mode for rule in policy.metrics.values()} == {"advisory"}
    assert {name: rule.mode for name, rule in policy.counters.items()} == {
        name: rule.mode for name, rule in load_policy().counters.items()
    }


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    text = """
        required = ["identity", "completeness"]
        [metrics.tok_s]
        delta = 0.1
        [counters]
        drafted = { mode = "off" }
        [[floor]]
        cell = "spec"
        workload = "json-extract"
        at_least = 1.2
        [[floor]]
        cell = "serial"
        metric = "tok_s"
        at_least = 5
    """
    policy, usual = load_policy(written(tmp_path, text)), load_policy()
    assert policy.name == "own"
    assert policy.required == ("identity", "completeness")
    assert (policy.metrics["tok_s"].delta, policy.metrics["tok_s"].mode) == (0.1, "hard")
    assert policy.metrics["ttft_ms"] == usual.metrics["ttft_ms"]
    assert policy.counters["drafted"].mode == "off"
    assert policy.counters["accepted"] == usual.counters["accepted"]
    assert [(floor.cell, floor.metric, floor.at_least) for floor in policy.floors] == [
        ("serial+spec", "ratio", 1.2),
        ("serial", "tok_s", 5),
    ]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("\nwarp = 1\n", 2, "unknown key 'warp'; known: require_base"),
        ("[metrics.tok_s]\nmode = 'hard'\ndelt = 0.1\n", 3, "unknown key 'delt'; known: mode"),
        ("[metrics.tok_s]\nmode = 'hart'\n", 2, "mode is 'hart'; it must be one of hard, advisory"),
        ("[metrics.tok_s]\n\ndelta = -0.1\n", 3, "delta is -0.1; it must be between 0 and 1"),
        ("[metrics.tok_s]\ndelta = 'x'\n", 2, "delta is 'x'; it must be a number"),
        ("[metrics.warp]\nmode = 'hard'\n", 1, "unknown key 'warp'; known: tok_s"),
        ("[metrics]\ntok_s = 3\n", 2, "tok_s is 3; it must be a table"),
        ("# a note\nmetrics = 3\n", 2, "metrics is 3; it must be a table"),
        ("[counters.drafted]\ntolerance = 2\n", 2, "tolerance is 2; it must be between 0 and 1"),
        ("[counters.draftet]\n", 1, "unknown key 'draftet'"),
        ("required = ['speed']\n", 1, "required is ['speed']; it must be a list out of conform"),
        ("required = 'identity'\n", 1, "it must be a list"),
        ("family_error = 0.9\n", 1, "family_error is 0.9; it must be between"),
        ("require_base = 'yes'\n", 1, "require_base is 'yes'; it must be true or false"),
        ("[[floor]]\nmetric = 'ratio'\n", 1, "a floor names no cell"),
        ("[[floor]]\ncell = 'serial'\nmetrik = 'ratio'\n", 3, "unknown key 'metrik'"),
        ("[[floor]]\ncell = 'serial'\nmetric = 'speed'\n", 3, "it must be one of ratio, tok_s"),
        ("[[floor]]\nat_least = 1\ncell = 'warp'\n", 3, "unknown cell 'warp'"),
        ("floor = 3\n", 1, "floor must be written as [[floor]]"),
        ("[metrics\n", 1, "fix the TOML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_file_and_line(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SettingError) as error:
        load_policy(path)
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_policy_that_does_not_exist_is_told_with_those_that_do() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown policy 'strict'; known: .*shared-runner"):
        load_policy("strict")


def test_every_policy_that_fm_brings_along_can_be_read() -> None:
    for path in policies_dir().glob("*.toml"):
        assert load_policy(path.stem).name == path.stem
