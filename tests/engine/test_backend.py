"""The BLAS in use, seen from child processes: each entered a little differently."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine import backend
from engine.backend import REMEDY, backend_info, require_backend
from engine.errors import BackendError

linux_cpu = pytest.mark.skipif(
    sys.platform != "linux" or backend_info().device != "cpu", reason="BLAS is for Linux CPUs"
)

REPORT = """
import ctypes, dataclasses, json
import mlx.core as mx
from engine.backend import backend_info
product = mx.matmul(mx.full((3, 70), 2.0), mx.full((70, 5), 0.5)).tolist()
class Found(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]
every, found = ctypes.CDLL(None), Found()
function = getattr(every, "cblas_sgemm", None)
if function is not None:
    every.dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(found))
bound = found.file.decode() if found.file else None
print(json.dumps({"product": product, "bound": bound, **dataclasses.asdict(backend_info())}))
"""


def environment(**values: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FM_")}
    return kept | values


def child(code: str, env: Mapping[str, str], *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, "-c", code], env=env, capture_output=True, text=True, check=False
    )


def report(entry: str, *flags: str, **values: str) -> dict[str, Any]:
    done = child(f"{entry}\n{REPORT}", environment(**values), *flags)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@linux_cpu
@pytest.mark.parametrize(
    "entry", ["import engine", "import engine.request", "from engine.errors import FmError"]
)
def test_however_engine_is_entered_mlx_binds_to_the_fast_library(entry: str) -> None:
    seen = report(entry, FM_BLAS="scipy")

    assert seen["source"] == "scipy"
    assert seen["blas_name"] == "OpenBLAS"
    assert seen["bound"] == seen["blas_path"]
    assert seen["product"] == [[70.0] * 5] * 3
    assert seen["warnings"] == []


@linux_cpu
def test_auto_finds_a_library() -> None:
    seen = report("import engine")

    assert seen["source"] in {"mkl", "openblas", "scipy"}
    assert seen["blas_threads"] >= 1
    assert seen["bound"] is not None


@linux_cpu
def test_off_leaves_mlx_as_it_comes() -> None:
    seen = report("import engine", FM_BLAS="off")

    assert (seen["source"], seen["bound"], seen["warnings"]) == ("off", None, [])
    assert seen["product"] == [[70.0] * 5] * 3


@linux_cpu
def test_a_library_can_be_named_by_its_path() -> None:
    path = report("import engine", FM_BLAS="scipy")["blas_path"]

    seen = report("import engine", FM_BLAS=path)

    assert (seen["source"], seen["bound"]) == ("path", path)


@linux_cpu
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"FM_BLAS": "atlas"}, "FM_BLAS is 'atlas'; it must be one of auto, off, mkl"),
        ({"FM_BLAS": "/no/lib.so"}, "/no/lib.so cannot be loaded"),
        ({"FM_BLAS": "scipy", "FM_BLAS_THREADS": "many"}, "FM_BLAS_THREADS is 'many'"),
        ({"FM_BLAS": "scipy", "FM_BLAS_THREADS": "0"}, "FM_BLAS_THREADS is '0'"),
    ],
    ids=["unknown name", "missing path", "threads not a number", "no threads"],
)
def test_a_wrong_choice_is_reported_and_mlx_still_computes(
    values: dict[str, str], expected: str
) -> None:
    seen = report("import engine", **values)

    assert seen["source"] == "none"
    assert len(seen["warnings"]) == 1
    assert expected in seen["warnings"][0]
    assert seen["product"] == [[70.0] * 5] * 3


@linux_cpu
def test_a_library_without_plain_names_is_not_used(tmp_path: Path) -> None:
    import scipy_openblas32

    path = Path(scipy_openblas32.__file__).parent / "lib" / "libscipy_openblas.so"

    seen = report("import engine", FM_BLAS=str(path))

    assert seen["warnings"] == [f"{path} does not export cblas_sgemm"]


@linux_cpu
def test_the_number_of_threads_can_be_set() -> None:
    seen = report("import engine", FM_BLAS="scipy", FM_BLAS_THREADS="2")

    # OpenBLAS starts no more threads than this process has processors.
    assert seen["blas_threads"] == min(2, len(os.sched_getaffinity(0)))


@linux_cpu
def test_the_environment_of_children_is_left_as_it_was() -> None:
    code = "import os; before = dict(os.environ); import engine; print(before == dict(os.environ))"

    assert child(code, environment()).stdout.strip() == "True"


@linux_cpu
def test_mlx_imported_first_is_told_once_and_recorded() -> None:
    done = child(f"import mlx.core\nimport engine\nimport engine.request\n{REPORT}", environment())

    seen = json.loads(done.stdout)
    assert seen["source"] == "none"
    assert seen["warnings"] == [backend.IMPORTED_LATE]
    assert done.stderr.count("RuntimeWarning") == 1


def test_importing_engine_does_not_import_mlx() -> None:
    code = "import sys, engine, engine.request, engine.config; print('mlx.core' in sys.modules)"

    assert child(code, environment()).stdout.strip() == "False"


def test_an_installed_backend_is_accepted() -> None:
    require_backend()


def test_a_missing_backend_is_one_line_that_names_the_extras(tmp_path: Path) -> None:
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").touch()
    error = "libmlx.so: cannot open shared object file: No such file or directory"
    (tmp_path / "mlx" / "core.py").write_text(f"raise ImportError({error!r})\n")
    code = (
        "from engine.backend import require_backend\nfrom engine.errors import BackendError\n"
        "try:\n    require_backend()\nexcept BackendError as error:\n    print(error)\n"
    )

    done = child(code, environment(PYTHONPATH=f"{tmp_path}{os.pathsep}{Path.cwd()}"))

    assert done.stdout == f"MLX has no backend here ({error}); {REMEDY}\n"
    assert all(extra in REMEDY for extra in ("[cpu]", "[cuda12]", "[cuda13]", "uv run"))


def test_a_mac_has_a_blas_of_its_own() -> None:
    code = (
        "import sys; sys.platform = 'darwin'\n"
        "from engine.backend import backend_info, default_dtype\n"
        "print(backend_info().device, backend_info().source, default_dtype())"
    )

    assert child(code, environment()).stdout.split() == ["metal", "builtin", "bfloat16"]


def test_errors_of_the_backend_belong_to_the_family() -> None:
    assert issubclass(BackendError, backend.FmError)
