"""The renamed copy of OpenBLAS: whole or not there, whoever builds it and wherever it may lie."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from engine.errors import BackendError
from engine.renamed import IMPORTED_BY_MLX, renamed_openblas

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the copy is for Linux")

NAME = re.compile(rb"\0([a-z]\w+)(?=\0)")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def names_in(library: Path) -> set[str]:
    return {name.decode() for name in NAME.findall(library.read_bytes())}


def mlx_library() -> Path:
    spec = importlib.util.find_spec("mlx")
    assert spec is not None
    folders = [Path(folder) for folder in spec.submodule_search_locations or []]
    return next(folder / "lib" / "libmlx.so" for folder in folders if (folder / "lib").is_dir())


def test_exactly_the_names_that_mlx_imports_become_plain() -> None:
    import scipy_openblas32

    wheel = Path(scipy_openblas32.__file__).parent / "lib" / "libscipy_openblas.so"
    offered = {name.removeprefix("scipy_") for name in names_in(wheel) if name[:6] == "scipy_"}

    assert offered & names_in(mlx_library()) == IMPORTED_BY_MLX


def test_the_copy_shares_no_name_with_scipy(cache: Path) -> None:
    path = renamed_openblas()

    library = ctypes.CDLL(str(path))
    assert hasattr(library, "cblas_sgemm")
    assert hasattr(library, "fm_openblas_get_config")
    assert not hasattr(library, "scipy_cblas_sgemm")


def test_the_copy_is_made_once(cache: Path) -> None:
    first = renamed_openblas()
    made = first.stat().st_mtime_ns

    assert renamed_openblas() == first
    assert first.stat().st_mtime_ns == made


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_copy_is_built_anew(cache: Path, damage: str) -> None:
    path = renamed_openblas()
    good = path.read_bytes()
    half = len(good) // 2
    bad = {"cut": good[:half], "changed": good[:half] + b"x" + good[half + 1 :], "empty": b""}
    path.write_bytes(bad[damage])

    assert renamed_openblas() == path
    assert path.read_bytes()[:half] == good[:half]
    assert len(path.read_bytes()) == len(good)


def test_processes_that_start_together_leave_one_sound_copy(cache: Path) -> None:
    code = "from engine.backend import backend_info as info; print(info().source)"
    command = [sys.executable, "-c", code]

    env = os.environ | {"FM_BLAS": "scipy", "FM_CACHE_DIR": str(cache)}
    started = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]

    assert [process.communicate()[0].strip() for process in started] == ["scipy"] * 3
    assert [path.name for path in (cache / "blas").iterdir()] == [renamed_openblas().name]


def test_a_cache_that_cannot_be_written_gives_way_to_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("FM_CACHE_DIR", str(blocked))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    assert renamed_openblas().is_relative_to(tmp_path / "temporary")


def test_no_folder_at_all_is_one_line_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("FM_CACHE_DIR", str(blocked))
    monkeypatch.setattr(tempfile, "tempdir", str(blocked))

    with pytest.raises(BackendError, match="set FM_CACHE_DIR to a folder that can be written"):
        renamed_openblas()
