"""The random model is the same everywhere, and MLX-LM loads it."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import mlx_lm

from engine.models.random_model import write_random_model


def test_equal_seeds_give_equal_files(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder, seed in zip(folders, (7, 7, 8), strict=True):
        folder.mkdir()
        write_random_model(seed, folder, "float32")
    files = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert files[0] == files[1] != files[2]


def test_mlx_lm_loads_it_and_its_choices_are_clear(tmp_path: Path) -> None:
    write_random_model(7, tmp_path, "float32")
    model, tokenizer = mlx_lm.load(str(tmp_path))
    ids = tokenizer.encode("Name three rivers.")
    logits = model(mx.array([ids]))
    assert logits.shape == (1, len(ids), 261)
    best = mx.sort(logits[0], axis=-1)[:, -2:]
    assert (best[:, 1] - best[:, 0]).min().item() > 1e-3
