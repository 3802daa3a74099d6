"""The wheel: it carries its data, and works from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_carries_what_it_needs_and_no_more(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    assert {
        "engine/py.typed",
        "harness/py.typed",
        "engine/models/registry.toml",
        "harness/data/cells/serial.toml",
        "harness/data/policies/default.toml",
        "harness/data/workloads/short-chat/prompts.jsonl",
    } <= names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"engine", "harness"}
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_the_installed_wheel_runs_from_any_folder(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = (
        "import engine, harness.cli, harness.resources as r\n"
        "print(engine.__file__, r.cells_dir(), r.workloads_dir(), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert all(line.startswith(str(site)) for line in done.stdout.splitlines())
