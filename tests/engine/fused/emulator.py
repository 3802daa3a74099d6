"""Runs a CUDA kernel of engine.fused on the CPU: its body compiled as C++, threads as fibres.

It stands in for mx.fast.cuda_kernel, so that the wrappers in kernels.py are exercised too.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

import engine.fused

COMPILER = shutil.which("g++")
FOLDER = Path(engine.fused.__file__).parent
SHAPE = "std::array<int, 8>"
CTYPES = {mx.bfloat16: "__nv_bfloat16", mx.float32: "float", mx.int32: "int"}


def emulated(build: Path) -> Callable[[str, str], Any]:
    """Return what takes the place of kernels._kernel; libraries are built in `build`."""

    def kernel(name: str, inputs: str) -> Any:
        return lambda **call: [run(build, name, inputs.split(), **call)]

    return kernel


def run(
    build: Path,
    name: str,
    names: list[str],
    inputs: list[mx.array],
    template: list[tuple[str, Any]],
    grid: tuple[int, int, int],
    threadgroup: tuple[int, int, int],
    output_shapes: list[tuple[int, ...]],
    output_dtypes: list[mx.Dtype],
) -> mx.array:
    """Run a kernel over its grid; arrays it writes in place are written back."""
    mx.eval(inputs)
    held = [to_numpy(array) for array in inputs]
    out = np.full(output_shapes[0], 0x7FC0, np.uint16)
    source = program(name, names, inputs, template)
    arguments: list[np.ndarray] = []
    for array, kept in zip(inputs, held, strict=True):
        shape = np.array([*array.shape, *[0] * (8 - array.ndim)], np.int32)
        arguments += [kept, shape, np.array([array.ndim], np.int32)]
    pointers = [array.ctypes.data for array in (*arguments, out)]
    blocks = [-(-total // size) for total, size in zip(grid, threadgroup, strict=True)]
    library(build, source).run(
        (ctypes.c_int * 3)(*blocks), (ctypes.c_void_p * len(pointers))(*pointers)
    )
    for key, array, kept in zip(names, inputs, held, strict=True):
        if key in ("keys", "values"):
            array[:] = mx.array(kept).view(mx.bfloat16)
    assert output_dtypes == [mx.bfloat16]
    return mx.array(out).view(mx.bfloat16)


def to_numpy(array: mx.array) -> np.ndarray:
    """Copy an array; bfloat16 as its bits."""
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def program(
    name: str, names: list[str], inputs: list[mx.array], template: list[tuple[str, Any]]
) -> str:
    """Return the C++ of a kernel with these template values."""
    lines = ['#include "cuda_on_cpu.h"', "#define FM_NO_TENSOR_CORES"]
    lines.append((FOLDER / "pairs.cuh").read_text())
    for key, value in template:
        number = f"constexpr int {key} = {int(value)};" if key != "T" else ""
        lines.append(number or f"using T = {CTYPES[value]};")
    reads = []
    for index, (key, array) in enumerate(zip(names, inputs, strict=True)):
        kind = CTYPES[array.dtype]
        lines.append(f"static const {kind}* {key}; static {SHAPE} {key}_shape;")
        lines.append(f"static int {key}_ndim;")
        reads.append(f"{key} = (const {kind}*)from[{3 * index}];")
        reads.append(f"{key}_shape = *({SHAPE}*)from[{3 * index + 1}];")
        reads.append(f"{key}_ndim = *(int*)from[{3 * index + 2}];")
    lines += ["static T* out;", f"static void body() {{ {(FOLDER / f'{name}.cu').read_text()} }}"]
    lines += ['extern "C" void run(const int* grid, void** from) {', *reads]
    lines.append(f"out = (T*)from[{3 * len(names)}];")
    lines.append("for (int k = 0; k < grid[2]; ++k) for (int j = 0; j < grid[1]; ++j)")
    lines.append("for (int i = 0; i < grid[0]; ++i) run_block(i, j, k); }")
    return "\n".join(lines)


def library(build: Path, source: str) -> ctypes.CDLL:
    """Compile a program once."""
    place = build / hashlib.sha256(source.encode()).hexdigest()[:16]
    if not place.with_suffix(".so").exists():
        place.with_suffix(".cpp").write_text(source)
        flags = ["-O1", "-std=c++17", "-w", "-shared", "-fPIC", "-I", str(Path(__file__).parent)]
        command = [str(COMPILER), *flags, "-o", f"{place}.so", f"{place}.cpp"]
        subprocess.run(command, check=True)
    return ctypes.CDLL(f"{place}.so")
