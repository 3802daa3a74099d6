"""What LoRA adapters add to a step, counted: operations in its graph and bytes of weights it reads.

    uv run python benchmarks/lora.py [MODEL]

Two random adapters of rank 8 on all seven linear layers of every block. Views (slices, transposes,
reshapes) compute nothing and are not counted.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import engine  # noqa: F401  # before mlx, for the BLAS

# isort: split
import mlx.core as mx

from engine.models.adapter_files import read_adapter
from engine.models.load import load_model
from engine.models.lora import AdapterSet, load_adapters
from engine.testing import write_adapter

RANK = 8
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
VIEWS = set("Broadcast ExpandDims Flatten Reshape Slice Squeeze Transpose Unflatten".split())
ROWS: dict[str, tuple[int, ...]] = {
    "no row has one": (0, 0, 0, 0),
    "all rows have the same": (1, 1, 1, 1),
    "half the rows have the same": (0, 1, 0, 1),
    "none, first, second": (0, 1, 2, 0),
}


class Dot:
    """Takes the text of a graph."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        """Take a piece."""
        self.text += text


def operations(adapters: AdapterSet, rows: tuple[int, ...]) -> Counter[str]:
    """Operations of one forward by name."""
    adapters.select(rows)
    dot = Dot()
    mx.export_to_dot(dot, adapters.model.model(mx.zeros((len(rows), 2), dtype=mx.int32)))
    found = re.findall(r'label ="(\w+)", shape=rectangle', dot.text)
    return Counter(name for name in found if name not in VIEWS)


def main() -> None:
    """Print the table."""
    model = load_model(sys.argv[1] if len(sys.argv) > 1 else "tiny-thinking")
    with tempfile.TemporaryDirectory() as folder:
        names = ("first", "second")
        places = {
            name: write_adapter(Path(folder) / name, model, seed, rank=RANK, layers=LAYERS)
            for seed, name in enumerate(names)
        }
        pairs = read_adapter("first", places["first"]).layers.values()
        adapters = load_adapters(model, places)
    layers = len(pairs)
    held = sum(pair.down.nbytes + pair.up.nbytes for pair in pairs)
    base = operations(adapters, ROWS["no row has one"])
    print(f"{model.name}: {layers} layers, {held / 1e6:.2f} MB an adapter")
    for label, rows in ROWS.items():
        added = operations(adapters, rows) - base
        listed = ", ".join(f"{n / layers:g} {name}" for name, n in sorted(added.items()))
        read = held * len({*rows} - {0}) / 1e6
        print(f"{label}: {listed or 'nothing'} a layer; {read:.2f} MB read")


if __name__ == "__main__":
    main()
