"""A copy of PyPI's scipy-openblas32 that offers the plain BLAS names libmlx imports.

The wheel's library exports `scipy_cblas_sgemm` and so on. `patchelf` renames the symbols on a
copy, once; the copy lies in the cache folder and ends in the SHA-256 of what stands before it
(a loader ignores what follows an ELF file's last section), so that one file, replaced in one
move, is all there is to write, to check and to rebuild.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from engine.errors import BackendError
from engine.paths import cache_dir

DISTRIBUTION = "scipy-openblas32"

IMPORTED_BY_MLX = frozenset(
    "cblas_cgemm cblas_dgemm cblas_sgemm cgeev_ cgesdd_ cheevd_ dgeev_ dgeqrf_ dgesdd_ dgetrf_"
    " dgetri_ dorgqr_ dpotrf_ dsyevd_ dtrtri_ sgeev_ sgeqrf_ sgesdd_ sgetrf_ sgetri_ sorgqr_"
    " spotrf_ ssyevd_ strtri_".split()
)
"""BLAS and LAPACK names libmlx leaves undefined; a test compares them with the library."""

PREFIX = "scipy_"
OWN_PREFIX = "fm_"
"""All other symbols get this one, so that SciPy's own OpenBLAS, which exports the same names,
is never bound to our copy."""

_DIGEST_BYTES = 32
_LAYOUT = "1"  # part of the key: raise it when the renaming itself changes


def renamed_openblas() -> Path:
    """Return the path of a usable copy, building it when it is missing or damaged.

    Raises:
        BackendError: the wheel or patchelf is not installed, or the copy cannot be made.
    """
    source = _source_library()
    name = f"libfm_openblas-{_key(source)}.so"
    reasons = []
    for folder in (cache_dir() / "blas", _fallback_folder()):
        try:
            return _whole_copy(source, folder / name)
        except OSError as error:
            reasons.append(str(error))
    raise BackendError(
        f"the renamed OpenBLAS cannot be kept; set FM_CACHE_DIR to a folder that can be written"
        f" ({'; '.join(reasons)})"
    )


def _whole_copy(source: Path, target: Path) -> Path:
    """Return `target` once it is sound; raises OSError where its folder cannot be used."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if target.parent.stat().st_uid not in (0, os.getuid()):
        # what lies there is code we would run
        raise PermissionError(f"{target.parent} belongs to another user")
    if not _is_whole(target):
        _build(source, target)
    return target


def _source_library() -> Path:
    spec = importlib.util.find_spec("scipy_openblas32")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        library = Path(folder) / "lib" / "libscipy_openblas.so"
        if library.is_file():
            return library
    raise BackendError(f"{DISTRIBUTION} is not installed; run `pip install {DISTRIBUTION}`")


def _key(source: Path) -> str:
    version = importlib.metadata.version(DISTRIBUTION)
    parts = (_LAYOUT, version, str(source.stat().st_size), *sorted(IMPORTED_BY_MLX))
    return f"{version}-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:12]}"


def _fallback_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"fm-blas-{os.getuid()}"


def _is_whole(path: Path) -> bool:
    if not path.is_file():
        return False
    content = path.read_bytes()
    digest = hashlib.sha256(memoryview(content)[:-_DIGEST_BYTES]).digest()
    return len(content) > _DIGEST_BYTES and digest == content[-_DIGEST_BYTES:]


def _build(source: Path, target: Path) -> None:
    """Write the renamed copy beside `target`, then move it there: others see all or nothing."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as scratch:
        names, copy = Path(scratch) / "names", Path(scratch) / target.name
        names.write_text(_rename_map(source.read_bytes()), encoding="ascii")
        command = [_patchelf(), "--rename-dynamic-symbols", str(names)]
        command += ["--set-soname", target.name, "--output", str(copy), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BackendError(f"patchelf failed on {source}: {done.stderr.strip()[:200]}")
        digest = hashlib.sha256(copy.read_bytes()).digest()
        with copy.open("ab") as file:
            file.write(digest)
        copy.replace(target)


def _rename_map(library: bytes) -> str:
    found = re.findall(rb"\0" + PREFIX.encode() + rb"(\w+)(?=\0)", library)
    lines = []
    for name in sorted({item.decode("ascii") for item in found}):
        new = name if name in IMPORTED_BY_MLX else OWN_PREFIX + name
        lines.append(f"{PREFIX}{name} {new}\n")
    return "".join(lines)


def _patchelf() -> str:
    """The executable of the installed distribution, which need not be on PATH."""
    try:
        files = importlib.metadata.files("patchelf") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for item in files:
        path = Path(str(item.locate()))
        if item.name == "patchelf" and os.access(path, os.X_OK):
            return str(path)
    on_path = shutil.which("patchelf")
    if on_path is None:
        raise BackendError("patchelf is not installed; run `pip install patchelf`")
    return on_path
