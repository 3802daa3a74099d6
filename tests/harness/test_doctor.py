"""`fm doctor`: every line says what was found, and each problem how to solve it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.backend import weight_layout
from engine.cores import usable_cores
from engine.switches import SWITCHES
from harness.doctor import Doctor, Line, examine

LABELS = "device processor blas memory cache models system python versions source".split()
PRINT = "import json; from harness.doctor import examine; print(json.dumps(examine().as_dict()))"


def examined(**values: str) -> dict[str, Any]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | values
    done = subprocess.run(
        [sys.executable, "-c", PRINT], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    return {item["label"]: item for item in report["findings"]} | {"healthy": report["healthy"]}


def test_it_looks_at_everything_in_a_fixed_order() -> None:
    found = examine()

    assert [item.label for item in found.findings] == LABELS
    assert all(item.value for item in found.findings)


def test_it_lists_every_kill_switch_with_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FM_BATCH", "0")

    found = examine()

    states = {item["name"]: item["state"] for item in found.as_dict()["switches"]}
    assert states == {name: "off" if name == "FM_BATCH" else "on" for name in SWITCHES}
    text = "\n".join(found.lines())
    for name, switch in SWITCHES.items():
        assert re.search(rf"^{name} +{states[name]} +{re.escape(switch.help)}$", text, re.MULTILINE)
    assert f"! {SWITCHES['FM_BATCH'].degrades_to}" in text


def test_a_switch_that_is_neither_0_nor_1_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FM_SPEC", "off")

    found = examine()

    assert not found.is_healthy
    assert "! FM_SPEC is 'off'; it must be 0 (off) or 1" in "\n".join(found.lines())


def test_a_problem_stands_on_its_own_line_under_what_it_concerns() -> None:
    doctor = Doctor((Line("a", "fine"), Line("long", "broken", "mend it")))

    assert doctor.lines() == ["a     fine", "long  broken", "      ! mend it"]
    assert not doctor.is_healthy


def test_json_holds_the_same_findings() -> None:
    doctor = examine()

    assert doctor.as_dict()["healthy"] == doctor.is_healthy
    assert len(doctor.as_dict()["findings"]) == len(doctor.findings)


@pytest.mark.skipif(sys.platform != "linux", reason="BLAS is chosen on Linux only")
def test_a_blas_that_was_not_found_is_a_problem() -> None:
    seen = examined(FM_BLAS="/no/such/lib.so")

    assert "/no/such/lib.so cannot be loaded" in seen["blas"]["problem"]
    assert not seen["healthy"]


@pytest.mark.skipif(
    weight_layout() == "rows" or usable_cores() < 2, reason="products take one core here"
)
@pytest.mark.parametrize(("threads", "says_so"), [("1", False), ("2", True)])
def test_it_says_when_a_second_core_shares_large_products(threads: str, says_so: bool) -> None:
    seen = examined(FM_BLAS_THREADS=threads)

    assert ("2 cores for products of many rows" in seen["blas"]["value"]) == says_so


def test_a_cache_folder_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    seen = examined(FM_CACHE_DIR=str(tmp_path / "file"))

    assert "set FM_CACHE_DIR to another folder" in seen["cache"]["problem"]


def test_without_a_backend_the_extras_are_named_and_the_rest_is_still_told(tmp_path: Path) -> None:
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").touch()
    (tmp_path / "mlx" / "core.py").write_text("raise ImportError('libmlx.so: cannot open')\n")

    seen = examined(PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))

    assert "feature-matrix[cpu]" in seen["device"]["problem"]
    assert seen["models"]["value"] == "unknown without a backend"
    assert seen["memory"]["value"]


def test_an_empty_cache_says_that_the_default_model_is_still_to_be_fetched(tmp_path: Path) -> None:
    seen = examined(FM_CACHE_DIR=str(tmp_path))

    assert "smollm2-135m is fetched when first used" in seen["models"]["value"]
