"""Facts of the machine, from outputs recorded on Linux, macOS and Arm, and from this one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.backend import BackendInfo
from harness import machine
from harness.machine import (
    GitState,
    cpu_from_cpuinfo,
    cpu_from_lscpu,
    cpu_from_sysctl,
    git_state,
    machine_differences,
    machine_id,
    read_machine,
)

MAC_SYSCTL = """\
machdep.cpu.brand_string: Apple M3 Max
hw.model: Mac15,8
hw.perflevel0.physicalcpu: 12
hw.perflevel1.physicalcpu: 4
"""

INTEL_MAC_SYSCTL = """\
machdep.cpu.brand_string: Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz
hw.model: MacBookPro16,1
"""

X86_CPUINFO = """\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9R14 96-Core Processor
stepping\t: 1

processor\t: 1
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9R14 96-Core Processor
"""

ARM_CPUINFO = """\
processor\t: 0
BogoMIPS\t: 2100.00
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd40
"""

ARM_LSCPU = """\
Architecture:                       aarch64
CPU(s):                             4
Vendor ID:                          ARM
Model name:                         Neoverse-V1
Model:                              1
Thread(s) per core:                 1
"""


def test_a_mac_names_its_chip_and_core_kinds() -> None:
    assert cpu_from_sysctl(MAC_SYSCTL) == "Apple M3 Max (12P + 4E)"


def test_a_mac_with_one_kind_of_cores_names_its_chip() -> None:
    assert cpu_from_sysctl(INTEL_MAC_SYSCTL) == "Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz"


def test_linux_on_x86_names_the_first_processor() -> None:
    assert cpu_from_cpuinfo(X86_CPUINFO) == "AMD EPYC 9R14 96-Core Processor"


def test_linux_on_arm_has_the_name_from_lscpu() -> None:
    assert cpu_from_cpuinfo(ARM_CPUINFO) == ""
    assert cpu_from_lscpu(ARM_LSCPU) == "ARM Neoverse-V1"


@pytest.mark.parametrize("read", [cpu_from_sysctl, cpu_from_cpuinfo, cpu_from_lscpu])
@pytest.mark.parametrize("text", ["", "nonsense", "\n\n"])
def test_unknown_output_gives_no_name(read: Callable[[str], str], text: str) -> None:
    assert read(text) == ""


def test_this_machine_is_described_in_json_and_twice_the_same() -> None:
    first, second = read_machine(), read_machine()

    assert json.loads(json.dumps(first.as_dict())) == second.as_dict()
    assert first.cpu
    assert first.memory_bytes > 2**28
    assert first.usable_cores >= 1
    assert first.device in {"cpu", "cuda", "metal"}
    assert {"feature-matrix", "mlx", "mlx-lm", "llguidance"} <= set(first.versions)


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_a_clean_checkout_has_a_commit(checkout: Path) -> None:
    state = git_state(checkout)

    assert len(state.sha) == 40
    assert not state.is_dirty


@pytest.mark.parametrize("name", ["file", "new"])
def test_a_changed_or_a_new_file_makes_it_dirty(checkout: Path, name: str) -> None:
    (checkout / name).write_text("two")

    assert git_state(checkout).is_dirty


def test_a_package_installed_inside_another_repository_has_no_commit(checkout: Path) -> None:
    (checkout / "venv").mkdir()

    assert git_state(checkout / "venv") == GitState("", is_dirty=False)


def test_without_git_there_is_no_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))

    assert git_state(checkout) == GitState("", is_dirty=False)


ENVIRONMENT: dict[str, Any] = {**read_machine().as_dict(), "target": "in-process"}


@pytest.mark.parametrize(
    "change",
    [
        {"host": "elsewhere"},
        {"cpu": "another processor"},
        {"usable_cores": 1024},
        {"memory_bytes": 2**45},
        {"device": "metal", "device_name": "Apple M3"},
        {"blas": "MLX's own reference BLAS (off)"},
        {"blas_threads": 63},
        {"target": "http://elsewhere:8000/v1"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_runs_of_unlike_machines_have_unlike_ids_and_say_what_differs(
    change: dict[str, Any],
) -> None:
    other = ENVIRONMENT | change

    assert machine_id(other) != machine_id(ENVIRONMENT)
    assert machine_differences(ENVIRONMENT, other)


@pytest.mark.parametrize(
    "change",
    [
        {"versions": {"mlx": "99"}},
        {"python": "CPython 99"},
        {"os": "Linux, kernel 99"},
        {"memory_bytes": ENVIRONMENT["memory_bytes"] + 1},
        {"target": "http"},
        {"something": "new"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_does_not_make_another_machine_leaves_the_id(change: dict[str, Any]) -> None:
    other = ENVIRONMENT | change

    assert machine_id(other) == machine_id(ENVIRONMENT)
    assert machine_differences(ENVIRONMENT, other) == ()


def test_a_newer_blas_of_the_same_kind_leaves_the_id() -> None:
    old, new = ({"blas": f"OpenBLAS {number} (scipy)"} for number in ("0.3.29", "0.3.34"))

    assert machine_id(old) == machine_id(new)


def test_processors_of_one_name_that_run_other_kernels_are_two_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for core in ("Haswell", "SkylakeX"):
        blas = BackendInfo(
            device="cpu", source="scipy", blas_name="OpenBLAS", blas_version="0.3", blas_core=core
        )
        monkeypatch.setattr(machine, "backend_info", lambda blas=blas: blas)
        found.append({**ENVIRONMENT, "blas": machine.blas_label()})
    assert found[1]["blas"] == "OpenBLAS 0.3 (scipy, SkylakeX)"
    assert machine_id(found[0]) != machine_id(found[1])
    (differs,) = machine_differences(*found)
    assert differs == "blas differs (OpenBLAS (scipy, Haswell), OpenBLAS (scipy, SkylakeX))"


def test_an_id_survives_the_database_and_names_the_host() -> None:
    stored = json.loads(json.dumps(ENVIRONMENT))

    assert machine_id(stored) == machine_id(ENVIRONMENT)
    assert machine_id(stored).startswith(f"{ENVIRONMENT['host']}-")


def test_an_environment_that_tells_nothing_is_like_no_known_machine() -> None:
    assert machine_id({}) == machine_id({"host": None})
    assert machine_id({}) != machine_id(ENVIRONMENT)
    assert machine_differences({"host": "a"}, {}) == ("host differs (a, unknown)",)
