"""The device MLX computes on, and what has to be in place before it is imported.

Importing `engine` calls prepare(), so that the library below is loaded first however the package
is entered. Nothing here imports mlx, except require_backend(), which is the test for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from engine.blas import load_blas
from engine.cores import blas_threads
from engine.errors import BackendError, FmError

REMEDY = (
    "install one with pip install 'feature-matrix[cpu]' (or [cuda12], [cuda13]), or start fm"
    " with `uv run fm`"
)

IMPORTED_LATE = "mlx was imported before engine, so it keeps its slow BLAS; import engine first"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendInfo:
    """What prepare() found and did.

    Args:
        device: "cpu", "cuda" or "metal".
        source: where BLAS comes from: "mkl", "openblas" (the system's), "scipy", "path"; "off" when
            switched off, "none" when none was found, "builtin" where MLX brings its own.
        blas_threads: threads one matrix product may use; 0 where none was loaded.
        blas_core: the processor OpenBLAS chose its kernels for.
        warnings: one line each, what a person should know; empty when all is well.
    """

    device: str
    source: str
    blas_name: str = ""
    blas_version: str = ""
    blas_path: str = ""
    blas_threads: int = 0
    blas_core: str = ""
    warnings: tuple[str, ...] = ()


@cache
def backend_info() -> BackendInfo:
    """Return what prepare() did; the first call does it."""
    device = _device()
    if device != "cpu":
        return BackendInfo(device=device, source="builtin")
    if "mlx.core" in sys.modules:
        warnings.warn(IMPORTED_LATE, RuntimeWarning, stacklevel=3)
        return BackendInfo(device=device, source="none", warnings=(IMPORTED_LATE,))
    return _load(device)


def prepare() -> BackendInfo:
    """Load an optimised BLAS on a Linux CPU, once; it must run before mlx is imported.

    It never raises: a library that cannot be loaded becomes a warning in the answer, since
    MLX computes without it, only slower.
    """
    return backend_info()


def require_backend() -> None:
    """Import mlx.

    Raises:
        BackendError: mlx or its backend is not installed; the text names what to install.
    """
    try:
        importlib.import_module("mlx.core")
    except ImportError as error:
        detail = str(error).splitlines()[0]
        raise BackendError(f"MLX has no backend here ({detail}); {REMEDY}") from None


def default_dtype() -> str:
    """Return the dtype models compute in unless told otherwise.

    On a Linux CPU only float32 has fast matrix products.
    """
    return "float32" if backend_info().device == "cpu" else "bfloat16"


WeightLayout = Literal["rows", "columns", "tiles"]
"""How float32 weights are kept: as they come, or as engine.models.columns or .tiled does."""

LAYOUTS: Mapping[str, WeightLayout] = {
    # AVX-512: small matrices are multiplied without copying them first.
    "SkylakeX": "tiles",
    "Cooperlake": "tiles",
    "SapphireRapids": "tiles",
    # AVX2: everything is copied first, and fastest from columns.
    "Haswell": "columns",
    "Zen": "columns",
}
"""By the kernels that OpenBLAS picked for this processor."""


def weight_layout() -> WeightLayout:
    """Return the layout of weights that the BLAS in use multiplies fastest."""
    return LAYOUTS.get(backend_info().blas_core, "rows")


@dataclass(frozen=True, slots=True)
class PrefillColumns:
    """How much prompt suits one step; what the settings mean is said in engine.config.

    Args:
        chunk: default of `prefill_chunk`.
        interleaved: default of `interleaved_prefill`.
    """

    chunk: int
    interleaved: int


PREFILL_COLUMNS = {
    "cpu": PrefillColumns(chunk=512, interleaved=512),
    "cuda": PrefillColumns(chunk=2048, interleaved=8192),
    "metal": PrefillColumns(chunk=2048, interleaved=2048),
}
"""By device: a CPU is busy with few columns, so more of them only make live rows wait; a GPU
computes many in little more time than few, and each chunk it is spared lets rows in earlier."""


def prefill_columns() -> PrefillColumns:
    """Return how much prompt suits one step on this device."""
    return PREFILL_COLUMNS[backend_info().device]


def shape_block() -> int:
    """Return the multiple to which attention reads are rounded up.

    CUDA prepares a plan for each new key length, about 50 ms each on an H200, so lengths come in
    blocks there. Elsewhere padding is only work.
    """
    return 256 if backend_info().device == "cuda" else 1


def prefers_fused_steps() -> bool:
    """Return whether decode steps should run as engine.fused does: its kernels are CUDA's."""
    return backend_info().device == "cuda"


def _load(device: str) -> BackendInfo:
    choice = os.environ.get("FM_BLAS") or "auto"
    try:
        blas = load_blas(choice, blas_threads())
    except FmError as error:
        return BackendInfo(device=device, source="none", warnings=(str(error),))
    if blas is None:
        return BackendInfo(device=device, source="off")
    return BackendInfo(
        device=device,
        source=blas.source,
        blas_name=blas.name,
        blas_version=blas.version,
        blas_path=blas.path,
        blas_threads=blas.threads,
        blas_core=blas.core,
    )


def _device() -> str:
    """Tell from the installed wheels, since asking MLX would import it."""
    if sys.platform == "darwin":
        return "metal"
    return "cuda" if _has_cuda_wheel() and Path("/dev/nvidiactl").exists() else "cpu"


def _has_cuda_wheel() -> bool:
    spec = importlib.util.find_spec("mlx")
    folders = (spec.submodule_search_locations or []) if spec else []
    return any(any(Path(folder).parent.glob("mlx_cuda*.dist-info")) for folder in folders)
