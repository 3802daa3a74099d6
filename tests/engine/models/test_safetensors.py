"""A weights file that is not whole is refused before MLX opens it."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from engine.errors import ModelError
from engine.models.safetensors import check_weights


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "model.safetensors"
    mx.save_safetensors(str(made), {"a": mx.ones((3, 4)), "b": mx.zeros((2,))}, {"format": "mlx"})
    return made


def test_a_whole_file_passes(path: Path) -> None:
    check_weights(path.parent)


def test_a_file_cut_anywhere_is_refused_in_one_line(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"model\.safetensors: .*; fetch the model again"):
            check_weights(path.parent)


@pytest.mark.parametrize(
    "header", [b"[]", b"{}x", b'{"a": 1}', b'{"a": {"data_offsets": []}}', b"\xff\xfe"]
)
def test_a_damaged_header_is_refused(path: Path, header: bytes) -> None:
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ModelError, match="damaged safetensors header"):
        check_weights(path.parent)


def test_a_folder_with_pickled_weights_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"no safetensors files; .*no pickled weights"):
        check_weights(tmp_path)
