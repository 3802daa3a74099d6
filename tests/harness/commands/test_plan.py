"""`fm plan` and the flags that choose a matrix, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import main

JSON = ("--json", "plan.json")
TINY = ("--models", "tiny-thinking", "--workloads", "short-chat", "--preset", "smoke")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def planned(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str, command: str = "plan") -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([command, *arguments])
        out, err = capfd.readouterr()
        return int(str(stop.value.code)), out, err

    return run


def cells(path: str = "plan.json") -> list[str]:
    return [pair["cell"] for pair in json.loads(Path(path).read_text())["pairs"]]


def test_braces_and_sweeps_are_cells_of_the_plan(planned: Callable[..., object]) -> None:
    planned(*TINY, "--cells", "batch{1,2},spec", "--sweep", "num_draft_tokens=1,3", *JSON)
    assert cells() == [
        "serial",
        "batch1",
        "batch2",
        "serial+spec@num_draft_tokens=1",
        "serial+spec@num_draft_tokens=3",
    ]


FILE = """
[run]
cells = ["batch2"]
models = ["tiny-thinking"]
workloads = ["short-chat"]
blocks = 4
tag = "from the file"
[run.sweep]
pipelined = [true, false]
[[cell]]
name = "spec"
settings.num_draft_tokens = [1, 3]
"""


def test_a_matrix_file_is_planned_and_flags_win_over_it(planned: Callable[..., object]) -> None:
    Path("matrix.toml").write_text(FILE)
    planned("--matrix", "matrix.toml", *JSON)
    plan = json.loads(Path("plan.json").read_text())
    assert (plan["blocks"], plan["tag"]) == (4, "from the file")
    assert "serial+spec@num_draft_tokens=3@pipelined=false" in cells()
    assert "batch2@pipelined=true" in cells()
    flags = ("--cells", "spec", "--sweep", "num_draft_tokens=7", "--blocks", "2", "--tag", "mine")
    planned("--matrix", "matrix.toml", *flags, *JSON)
    plan = json.loads(Path("plan.json").read_text())
    assert (plan["blocks"], plan["tag"]) == (2, "mine")
    assert cells() == ["serial", "serial+spec@num_draft_tokens=7"]


def test_a_flag_that_says_the_default_wins_too(planned: Callable[..., object]) -> None:
    Path("matrix.toml").write_text(FILE)
    planned("--matrix", "matrix.toml", "--cells", "serial", "--sweep", "pipelined=false", *JSON)
    assert cells() == ["serial", "serial@pipelined=false"]
    planned("--matrix", "matrix.toml", "--preset", "quick", "--seed", "0", *JSON)
    assert json.loads(Path("plan.json").read_text())["blocks"] == 4


def test_help_shows_the_defaults_of_its_own_command(
    planned: Callable[..., tuple[int, str, str]],
) -> None:
    for command, preset in (("gate", "gate"), ("plan", "quick")):
        code, out, _ = planned("--help", command=command)
        assert code == 0
        assert f"[default: {preset}]" in " ".join(out.split())
        assert '[default: ""]' not in out
    assert "@draft_budgets=fixed" in "".join(planned("--help", command="gate")[1].split())


def test_a_plan_says_its_time_and_leaves_nothing_behind(
    planned: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, out, _ = planned(*TINY, "--cells", "grammar")
    assert code == 0
    assert "at a stated 15 decode steps a second" in out
    assert "skipped serial+grammar: workload short-chat has no constraint" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--cells", "batch{1,2"], "braces that do not close"),
        (["--cells", "spec@num_draft_tokens=99"], "num_draft_tokens is 99"),
        (["--sweep", "warp=1"], "unknown setting of a cell 'warp'"),
        (["--cells", "serial", "--sweep", "num_draft_tokens=1"], "no cell has spec"),
        (["--matrix", "none.toml"], "none.toml: there is no such file; name"),
        (["--matrix", "bad.toml"], "bad.toml:2: unknown cell 'warp'"),
        (["--tag", "x" * 101], "it must be one line of 100 characters"),
        (["--models", ""], "no model is named in ''"),
        (["--models", "tiny-thinking,"], "no model is named in 'tiny-thinking,'"),
        (["--workloads", ""], "no workload is named in ''"),
        (["--cells", "spec@drafter=oracle"], "drafter is 'oracle'; it must be one of ngram, two_m"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_a_wrong_choice_is_one_line_and_exit_2(
    planned: Callable[..., tuple[int, str, str]], arguments: list[str], expected: str
) -> None:
    Path("bad.toml").write_text('[run]\ncells = ["warp"]\n')
    code, out, err = planned(*arguments)
    assert code == 2
    assert expected in err
    assert len(err.splitlines()) == 1
    assert not out


@pytest.mark.parametrize("flag", ["--matrix", "--sweep", "--tag", "--cells"])
def test_a_resumed_run_takes_no_choices(
    planned: Callable[..., tuple[int, str, str]], flag: str
) -> None:
    code, _, err = planned("--resume", "latest", flag, "kv_bits=8", command="run")
    assert code == 2
    assert f"drop {flag} " in err
