"""Matrix files say what flags say, and every error in one names its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import SettingError
from harness.planning.choices import Choices
from harness.planning.matrix_file import NOT_IN_FILES, read_matrix_file

WHOLE = """
[run]
cells = ["serial", "batch{1,2}"]
models = ["tiny-thinking"]
workloads = "short-chat,json-extract"
preset = "smoke"
blocks = 3
prompts = 4
max_tokens = 32
temperature = 0.5
seed = 9
target = "http"
tag = "drafts on the laptop"
sweep = { draft_budgets = ["fixed", "adaptive"] }

[[cell]]
name = "spec+grammar"
settings = { num_draft_tokens = [1, 3], pipelined = false }

[[cell]]
name = "mlx-lm"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "matrix.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_chooses_everything_that_flags_choose(tmp_path: Path) -> None:
    file = read_matrix_file(written(tmp_path, WHOLE))
    assert Choices(**file.values) == Choices(
        cells=(
            "serial",
            "batch1",
            "batch2",
            "serial+spec+grammar@num_draft_tokens=1@pipelined=false",
            "serial+spec+grammar@num_draft_tokens=3@pipelined=false",
            "mlx-lm",
        ),
        models=("tiny-thinking",),
        workloads=("short-chat", "json-extract"),
        preset="smoke",
        blocks=3,
        prompts=4,
        max_tokens=32,
        temperature=0.5,
        seed=9,
        target="http",
        tag="drafts on the laptop",
    )
    assert set(file.values) == set(Choices.__dataclass_fields__) - NOT_IN_FILES
    assert [(sweep.name, sweep.values) for sweep in file.sweeps] == [
        ("draft_budgets", ("fixed", "adaptive"))
    ]


def test_what_a_file_does_not_say_is_left_to_others(tmp_path: Path) -> None:
    file = read_matrix_file(written(tmp_path, "[run]\nblocks = 2\n"))
    assert file.values == {"blocks": 2}
    assert not file.sweeps
    assert not read_matrix_file(written(tmp_path, "")).values


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ('[run]\ncells = ["serial"\n', 3, "fix the TOML"),
        ('[runs]\ncells = ["serial"]\n', 1, "unknown key 'runs' in the file"),
        ("run = 3\n", 1, "run is 3; it must be a table"),
        ("[run]\n\nmodel = 'tiny'\n", 3, "unknown key 'model' in [run]; known: cells, models"),
        ('[run]\nblocks = 3\ncells = ["serial", "warp"]\n', 3, "unknown cell 'warp'"),
        ('[run]\ncells = [\n "serial",\n "spec@zz",\n]\n', 4, "'spec@zz': unknown cell"),
        ("[run]\ncells = 3\n", 2, "cells is 3; it must be a list"),
        ("[run]\nblocks = 0\n", 2, "blocks is 0; it must be between"),
        ('[run]\nblocks = "many"\n', 2, "blocks is 'many'; it must be a number"),
        ("[run]\nseed = 1.5\n", 2, "seed is 1.5; it must be a whole number"),
        ("[run]\nprompts = true\n", 2, "prompts is True; it must be a number"),
        ('[run]\npreset = "warp"\n', 2, "unknown preset 'warp'"),
        ("[run]\npreset = 3\n", 2, "preset is 3; it must be a text"),
        ('[run]\ntarget = "htp"\n', 2, "unknown target 'htp'"),
        ('[run]\nworkloads = ["short-chat", "nonesuch"]\n', 2, "unknown workload 'nonesuch'"),
        ('[run]\nmodels = ["nonesuch"]\n', 2, "unknown model 'nonesuch'"),
        ('[run]\ntag = "two\\nlines"\n', 2, "tag is 'two"),
        ("[run]\nsweep = 3\n", 2, "sweep must be a table of lists"),
        ("[run.sweep]\nkv_bits = 8\n", 1, "sweep must be a table of lists"),
        ("[run.sweep]\nkv_bits = [8, 5]\n", 2, "kv_bits is 5; it must be one of 8, 4"),
        ('cell = "serial"\n', 1, "cell must be a table for each cell"),
        ("[[cell]]\nsettings = {}\n", 1, "name of a [[cell]] is None"),
        ('[[cell]]\nname = "spec"\nkv_bits = 8\n', 3, "unknown key 'kv_bits' in [[cell]]"),
        ('[[cell]]\nname = "serial"\nsettings.num_draft_tokens = [1]\n', 3, "for cells with spec"),
        ('[[cell]]\nname = "spec"\nsettings = 3\n', 3, "settings is 3; it must be a table"),
        ('[[cell]]\nname = "spec"\n[cell.settings]\nwarp = 3\n', 4, "setting of a cell 'warp'"),
        ('[run]\nmodels = [""]\n', 1, "no model is named"),
        (f"[run]\nseed = {'9' * 5000}\n", 1, "digits"),
        (f"x = {'[' * 3000}{']' * 3000}\n", 1, "recursion"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_an_error_names_the_file_and_the_line(
    tmp_path: Path, text: str, line: int, expected: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SettingError) as caught:
        read_matrix_file(path)
    message = str(caught.value)
    assert expected in message
    assert message.startswith(f"{path}:{line}: "), message
    assert "\n" not in message


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="there is no such file"):
        read_matrix_file(tmp_path / "none.toml")
