"""The machine a run happened on: what stays the same from its first trial to its last."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from engine.backend import backend_info, weight_layout
from engine.cores import product_streams, usable_cores
from harness.asking import output_of, text_of
from harness.revision import revision_text

PACKAGES = ("feature-matrix", "mlx", "mlx-lm", "llguidance", "transformers", "numpy")
"""Distributions that decide what is computed; the ones that are not installed are left out."""

SYSCTL_NAMES = (
    "machdep.cpu.brand_string",
    "hw.model",
    "hw.perflevel0.physicalcpu",
    "hw.perflevel1.physicalcpu",
)
GIB = 2**30

IDENTITY = (
    "host",
    "arch",
    "cpu",
    "cores",
    "usable_cores",
    "memory_gib",
    "device",
    "device_name",
    "blas",
    "blas_threads",
    "product_cores",
    "server",
)
"""What two runs must share before their speeds may be compared. Versions of libraries are not in
it: what a newer one costs or buys is a question that runs on one machine can answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Host, processor, device, libraries.

    Args:
        cpu: the processor's own name, with its core kinds where it has several.
        cores: physical cores of the machine; None where the system does not tell.
        usable_cores: cores this process may use at a time (mask and quota counted).
        device: "cpu", "cuda" or "metal"; `device_name` says which one.
        blas: name, version and source of the BLAS in use and the processor its kernels are for,
            e.g. "OpenBLAS 0.3.34 (scipy, SkylakeX)": some clouds call several generations of
            processors by one name.
        blas_threads: threads one matrix product may use; 0 where fm loaded none.
        product_cores: cores that share a product of many rows (engine.models.second_core).
        versions: distribution -> version.
    """

    host: str
    os: str
    arch: str
    cpu: str
    cores: int | None
    usable_cores: int
    memory_bytes: int
    device: str
    device_name: str
    blas: str
    blas_threads: int
    product_cores: int
    python: str
    versions: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, equal on equal machines."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class GitState:
    """The commit fm runs from; an empty sha outside a checkout of fm."""

    sha: str
    is_dirty: bool


def read_machine() -> Machine:
    """Return the facts of this machine; it takes some milliseconds and no device time."""
    backend = backend_info()
    cpu = cpu_name()
    return Machine(
        host=socket.gethostname(),
        os=os_name(),
        arch=platform.machine(),
        cpu=cpu,
        cores=psutil.cpu_count(logical=False),
        usable_cores=usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        device=backend.device,
        device_name=cpu if backend.device == "cpu" else gpu_name(),
        blas=blas_label(),
        blas_threads=backend.blas_threads,
        product_cores=1 if weight_layout() == "rows" else product_streams(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        versions=versions(),
    )


def machine_id(environment: Mapping[str, Any]) -> str:
    """Return a name for the machine of a run: its host and a digest of all that IDENTITY lists.

    Args:
        environment: of the run, as the database keeps it; what an old one lacks counts as unknown.
    """
    text = json.dumps(identity(environment), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{environment.get('host') or 'unknown'}-{digest}"


def whereabouts(target: str) -> dict[str, str]:
    """Return which machine and which code of fm run trials now: both may change during a run."""
    here, git = {**read_machine().as_dict(), "target": target}, git_state()
    code = {"commit": revision_text(git.sha, is_dirty=git.is_dirty)} if git.sha else {}
    return {"machine": machine_id(here), **code}


def machine_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what keeps two runs from being compared, one line each; empty for one machine."""
    left, right = identity(one), identity(other)
    return tuple(
        f"{name} differs ({_shown(left[name])}, {_shown(right[name])})"
        for name in IDENTITY
        if left[name] != right[name]
    )


def identity(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of IDENTITY for an environment, None where it does not tell.

    Memory is rounded, since kernels keep different parts of it; `server` is the address of a
    measured server, which stands on a machine of its own.
    """
    values = {name: environment.get(name) for name in IDENTITY}
    memory, blas = environment.get("memory_bytes"), environment.get("blas")
    values["memory_gib"] = None if memory is None else round(memory / GIB)
    values["blas"] = None if blas is None else re.sub(r" \d[\w.+-]*", "", blas)
    target = str(environment.get("target", ""))
    values["server"] = target if "://" in target else None
    return values


def _shown(value: Any) -> str:
    return "unknown" if value is None else str(value)


def blas_label() -> str:
    """Return the BLAS in use in a few words."""
    backend = backend_info()
    if backend.source == "builtin":
        return "the device's own"
    if not backend.blas_name:
        return f"MLX's own reference BLAS ({backend.source})"
    kernels = ", ".join(filter(None, (backend.source, backend.blas_core)))
    return f"{backend.blas_name} {backend.blas_version} ({kernels})"


def blas_problem() -> tuple[str, ...]:
    """Return that MLX computes without a BLAS, which nobody asked for; empty when it has one."""
    backend = backend_info()
    if backend.source != "none":
        return ()
    why = "; ".join(backend.warnings) or "none was found"
    return (f"matrix products run without an optimised BLAS ({why})",)


def versions() -> dict[str, str]:
    """Return the versions of PACKAGES and of the backend wheels beside mlx."""
    found = {}
    for name in (*PACKAGES, "mlx-cpu", "mlx-metal", "mlx-cuda-12", "mlx-cuda-13"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def os_name() -> str:
    """Return the operating system with its release."""
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        distribution = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        distribution = platform.system()
    return f"{distribution}, kernel {platform.release()}"


def cpu_name() -> str:
    """Return the processor's name as the system knows it."""
    if sys.platform == "darwin":
        name = cpu_from_sysctl(output_of("sysctl", *SYSCTL_NAMES))
    else:
        name = cpu_from_cpuinfo(text_of(Path("/proc/cpuinfo"))) or cpu_from_lscpu(
            output_of("lscpu")
        )
    return name or platform.processor() or platform.machine()


def cpu_from_sysctl(output: str) -> str:
    """Read `sysctl NAME...` of macOS: "Apple M3 Max (12P + 4E)"."""
    values = dict(re.findall(r"^([\w.]+): (.+)$", output, flags=re.MULTILINE))
    name = values.get("machdep.cpu.brand_string", "")
    kinds = [values.get(f"hw.perflevel{level}.physicalcpu") for level in (0, 1)]
    return f"{name} ({kinds[0]}P + {kinds[1]}E)" if name and all(kinds) else name


def cpu_from_cpuinfo(text: str) -> str:
    """Read /proc/cpuinfo; empty where it has no name, as on most Arm machines."""
    found = re.search(r"^model name\s*: (.+)$", text, flags=re.MULTILINE)
    return found.group(1).strip() if found else ""


def cpu_from_lscpu(output: str) -> str:
    """Read `lscpu`, which knows the part numbers of Arm cores."""
    values = dict(re.findall(r"^(Vendor ID|Model name):\s+(.+)$", output, flags=re.MULTILINE))
    return " ".join(values[key] for key in ("Vendor ID", "Model name") if key in values)


def gpu_name() -> str:
    """Return the name MLX gives its device, "unknown" where MLX has no backend."""
    try:
        import mlx.core as mx
    except ImportError:
        return "unknown"
    return str(mx.device_info().get("device_name", "unknown"))


def git_state(folder: Path | None = None) -> GitState:
    """Return the commit of the checkout `folder` is the root of, by default that of fm.

    An installed fm has none, also when its environment lies inside some other repository.
    """
    root = (Path(__file__).resolve().parent.parent if folder is None else folder).resolve()
    top = output_of("git", "-C", str(root), "rev-parse", "--show-toplevel").strip()
    if not top or Path(top).resolve() != root:
        return GitState("", is_dirty=False)
    sha = output_of("git", "-C", str(root), "rev-parse", "HEAD").strip()
    # Without locks: somebody may be working in the checkout.
    status = ("git", "--no-optional-locks", "-C", str(root), "status", "--porcelain")
    return GitState(sha, bool(output_of(*status).strip()))
