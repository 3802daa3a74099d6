"""Which BLAS serves MLX on a Linux CPU, and how it gets there.

MLX's CPU wheel links the reference BLAS. A library opened with RTLD_GLOBAL before mlx is
imported stands earlier in the lookup order, so libmlx binds to that one instead.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import BackendError, SettingError
from engine.renamed import OWN_PREFIX, renamed_openblas

MKL_NAMES = ("libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so.1", "libmkl_rt.so")
OPENBLAS_NAMES = ("libopenblas.so.0", "libopenblasp.so.0", "libopenblas.so")

_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS", "OMP_NUM_THREADS")
_MKL_LP64, _MKL_SEQUENTIAL = 0, 1


@dataclass(frozen=True, slots=True)
class Blas:
    """A loaded library.

    Args:
        source: how it was found: a key of SOURCES, or "path".
        threads: threads one call may use.
        core: the processor OpenBLAS chose its kernels for, "" for other libraries.
    """

    source: str
    name: str
    version: str
    path: str
    threads: int
    core: str = ""


def load_blas(choice: str, threads: int) -> Blas | None:
    """Load the library `choice` names, for all libraries loaded after it.

    Args:
        choice: "auto", "off", a key of SOURCES, or the path of a shared library.
        threads: threads one call may use.

    Returns:
        The library, or None when `choice` is "off".

    Raises:
        SettingError: `choice` is none of these.
        BackendError: the library is missing or not fit; under "auto", all of them are.
    """
    if choice == "off":
        return None
    if choice == "auto":
        return _first_fit(threads)
    if choice in SOURCES:
        return SOURCES[choice](threads)
    if "/" in choice:
        return _open(choice, "path", threads)
    known = ", ".join(("auto", "off", *SOURCES))
    raise SettingError(f"FM_BLAS is {choice!r}; it must be one of {known}, or a path")


def _first_fit(threads: int) -> Blas:
    reasons = []
    for load in SOURCES.values():
        try:
            return load(threads)
        except BackendError as error:
            reasons.append(str(error))
    raise BackendError("no optimised BLAS: " + "; ".join(reasons))


def _load_mkl(threads: int) -> Blas:
    return _open_first(MKL_NAMES, "mkl", threads)


def _load_system_openblas(threads: int) -> Blas:
    return _open_first(OPENBLAS_NAMES, "openblas", threads)


def _load_scipy_openblas(threads: int) -> Blas:
    return _open(str(renamed_openblas()), "scipy", threads)


SOURCES: dict[str, Callable[[int], Blas]] = {
    "mkl": _load_mkl,
    "openblas": _load_system_openblas,
    "scipy": _load_scipy_openblas,
}
"""FM_BLAS name -> loader, in the order "auto" tries them."""


def _open_first(names: tuple[str, ...], source: str, threads: int) -> Blas:
    """Open the first of `names` that fits, in this environment's lib folder or the system's."""
    reasons = []
    for name in names:
        local = Path(sys.prefix) / "lib" / name
        try:
            return _open(str(local) if local.exists() else name, source, threads)
        except BackendError as error:
            reasons.append(str(error))
    raise BackendError(reasons[0])


def _open(path: str, source: str, threads: int) -> Blas:
    with _threads_at_load(threads):
        library = _dlopen(path, ctypes.RTLD_LOCAL)
        if "mkl" in Path(path).name:
            _configure_mkl(library, threads)
    _check(library, path)
    _dlopen(path, ctypes.RTLD_GLOBAL)  # the same library again: now its names are for all
    name, version = _describe(library)
    count = _openblas_function(library, "openblas_get_num_threads")
    return Blas(
        source, name, version, _path_of(path), count() if count else threads, _core(library)
    )


@contextmanager
def _threads_at_load(threads: int) -> Iterator[None]:
    """Let the library start this many threads and no more; the environment is as before after."""
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _dlopen(path: str, mode: int) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path, mode=mode)
    except OSError as error:
        raise BackendError(f"{path} cannot be loaded ({error})") from None


def _configure_mkl(library: ctypes.CDLL, threads: int) -> None:
    """32-bit integers, and no OpenMP runtime where one thread is all there will be."""
    library.MKL_Set_Interface_Layer(_MKL_LP64)
    library.MKL_Set_Num_Threads(threads)
    if threads == 1 and "MKL_THREADING_LAYER" not in os.environ:
        library.MKL_Set_Threading_Layer(_MKL_SEQUENTIAL)


def _check(library: ctypes.CDLL, path: str) -> None:
    """Raise BackendError unless the library has plain names, 32-bit integers and right results."""
    if not hasattr(library, "cblas_sgemm"):
        raise BackendError(f"{path} does not export cblas_sgemm")
    if "USE64BITINT" in _openblas_config(library):
        raise BackendError(f"{path} takes 64-bit integers, MLX passes 32-bit ones")
    if not _multiplies(library):
        raise BackendError(f"{path} computes a wrong matrix product on this processor")


def _multiplies(library: ctypes.CDLL) -> bool:
    """Compare one product of small whole numbers, exact in float32, with the same in Python.

    Kernels are chosen by processor, and old OpenBLAS releases choose wrong ones on new models.
    """
    rows, cols, depth = 5, 37, 67
    left = [(i * 7 + k * 3) % 11 - 5 for i in range(rows) for k in range(depth)]
    right = [(j * 5 + k * 2) % 13 - 6 for j in range(cols) for k in range(depth)]
    a, b = (ctypes.c_float * len(left))(*left), (ctypes.c_float * len(right))(*right)
    c = (ctypes.c_float * (rows * cols))()
    one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
    row_major, plain, transposed = 101, 111, 112
    library.cblas_sgemm(
        row_major, plain, transposed, rows, cols, depth, one, a, depth, b, depth, zero, c, cols
    )
    return all(
        c[i * cols + j] == sum(left[i * depth + k] * right[j * depth + k] for k in range(depth))
        for i in range(rows)
        for j in range(cols)
    )


def _describe(library: ctypes.CDLL) -> tuple[str, str]:
    """Return name and version, from the library's own words."""
    words = _openblas_config(library).split()
    if words:
        return words[0], words[1]
    if hasattr(library, "mkl_get_version_string"):
        text = ctypes.create_string_buffer(200)
        library.mkl_get_version_string(text, len(text))
        found = re.search(r"Version ([\d.]+)", text.value.decode("ascii", "replace"))
        return "MKL", found.group(1) if found else "unknown"
    return "BLAS", "unknown"


def _openblas_config(library: ctypes.CDLL) -> str:
    """OpenBLAS's build line ("OpenBLAS 0.3.34 DYNAMIC_ARCH ..."), "" for other libraries."""
    function = _openblas_function(library, "openblas_get_config")
    if function is None:
        return ""
    function.restype = ctypes.c_char_p
    return bytes(function()).decode("ascii", "replace")


def _core(library: ctypes.CDLL) -> str:
    function = _openblas_function(library, "openblas_get_corename")
    if function is None:
        return ""
    function.restype = ctypes.c_char_p
    return bytes(function()).decode("ascii", "replace")


def _openblas_function(library: ctypes.CDLL, name: str) -> Any:
    for candidate in (name, OWN_PREFIX + name):
        if hasattr(library, candidate):
            return getattr(library, candidate)
    return None


def _path_of(asked: str) -> str:
    """The file behind a name the loader resolved, as the process map shows it."""
    if "/" in asked:
        return asked
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
        stem = asked.partition(".so")[0] + ".so"
        return next((line.split()[-1] for line in maps if f"/{stem}" in line), asked)
