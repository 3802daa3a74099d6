"""A GGUF header is read exactly, and no damaged file gets past it."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import ModelError
from engine.models.gguf import read_gguf

Build = Callable[..., Path]


def assert_one_line(error: ModelError, path: Path) -> None:
    assert str(path) in str(error)
    assert "\n" not in str(error)
    assert ";" in str(error), "the remedy is missing"


def test_the_header_says_what_was_written(build_gguf: Build) -> None:
    file = read_gguf(build_gguf(kind="Q8_0"))
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.block_count"] == 9
    assert file.metadata["llama.rope.freq_base"] == 10000.0
    assert file.metadata["tokenizer.ggml.merges"] == ["t h", "th e", "Ġ the"]
    tensor = file.tensors["blk.0.attn_k.weight"]
    assert (tensor.shape, tensor.type_name, tensor.num_bytes) == ((32, 64), "Q8_0", 32 * 2 * 34)
    assert file.tensors["output_norm.weight"].shape == (64,)


def test_tensor_data_is_where_the_header_says(build_gguf: Build) -> None:
    path = build_gguf()
    last = max(read_gguf(path).tensors.values(), key=lambda tensor: tensor.start)
    assert last.start + last.num_bytes <= path.stat().st_size < last.start + last.num_bytes + 32


def test_a_file_cut_anywhere_is_refused_in_one_line(build_gguf: Build) -> None:
    path = build_gguf(kind="Q4_0")
    whole = path.read_bytes()
    header = min(tensor.start for tensor in read_gguf(path).tensors.values())
    lengths = [*range(400), *range(400, header, 97), *range(header, len(whole) - 32, 9973)]
    for length in lengths:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError) as caught:
            read_gguf(path)
        assert_one_line(caught.value, path)


LOAD_CUT_FILES = """
import sys
from pathlib import Path
import engine
from engine.errors import ModelError
from engine.models.convert import convert_gguf
path, folder = Path(sys.argv[1]), Path(sys.argv[2])
whole = path.read_bytes()
refused = 0
for part in range(1, 200):
    path.write_bytes(whole[: len(whole) * part // 200])
    try:
        convert_gguf(path, folder, "float32")
    except ModelError:
        refused += 1
print(refused)
"""


def test_a_cut_file_never_ends_the_process(build_gguf: Build, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOAD_CUT_FILES, str(build_gguf(kind="Q4_1")), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["199"]), done.stderr[-500:]


LOAD_DAMAGED_FILES = """
import random, sys
from pathlib import Path
import engine
from engine.errors import ModelError
from engine.models.convert import convert_gguf
path, folder, header = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
whole = path.read_bytes()
draw = random.Random(5)
for _ in range(300):
    damaged = bytearray(whole)
    for _ in range(draw.randint(1, 3)):
        damaged[draw.randrange(header)] = draw.choice((0, 1, 7, 127, 128, 255))
    path.write_bytes(damaged)
    try:
        convert_gguf(path, folder, "float32")
    except ModelError as error:
        assert "\\n" not in str(error), error
print("alive")
"""


def test_a_damaged_header_is_refused_or_harmless(build_gguf: Build, tmp_path: Path) -> None:
    path = build_gguf(kind="Q4_0")
    header = min(tensor.start for tensor in read_gguf(path).tensors.values())
    command = [sys.executable, "-c", LOAD_DAMAGED_FILES, str(path), str(tmp_path), str(header)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["alive"]), done.stderr[-500:]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"PK\x03\x04" * 20, "not a GGUF file", id="another-format"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9", id="version"),
        pytest.param(b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version", id="big-endian"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "tensor count", id="huge-count"),
    ],
)
def test_what_is_no_gguf_file_is_refused_by_name(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=said) as caught:
        read_gguf(path)
    assert_one_line(caught.value, path)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nothing\.gguf: cannot be read"):
        read_gguf(tmp_path / "nothing.gguf")


def test_a_metadata_value_of_another_type_is_refused(build_gguf: Build) -> None:
    file = read_gguf(build_gguf(settings={"llama.block_count": "nine"}))
    with pytest.raises(ModelError, match=r"llama\.block_count.*is a str"):
        file.value("llama.block_count", int)
    with pytest.raises(ModelError, match=r"llama\.absent.*missing"):
        file.value("llama.absent", int)
