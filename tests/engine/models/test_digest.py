"""A file's checksum is right, and is not computed twice for the same file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from engine.models import digest
from engine.models.digest import folder_digest, known_sha256


def test_the_checksum_is_remembered_until_the_file_changes(
    model_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    assert known_sha256(path) == hashlib.sha256(b"one").hexdigest()
    with monkeypatch.context() as patch:
        patch.setattr(digest, "file_sha256", lambda _: "computed again")
        assert known_sha256(path) == hashlib.sha256(b"one").hexdigest()
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    assert known_sha256(path) == hashlib.sha256(b"two").hexdigest()


def test_a_cache_that_cannot_be_written_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    monkeypatch.setenv("FM_CACHE_DIR", str(path))
    assert known_sha256(path) == hashlib.sha256(b"one").hexdigest()


def test_a_folders_digest_follows_names_and_contents(model_cache: Path, tmp_path: Path) -> None:
    assert folder_digest(tmp_path) == ""
    (tmp_path / "model.safetensors").write_bytes(b"a")
    first = folder_digest(tmp_path)
    (tmp_path / "README.md").write_text("not weights")
    assert folder_digest(tmp_path) == first
    (tmp_path / "model.safetensors").rename(tmp_path / "model-2.safetensors")
    assert folder_digest(tmp_path) != first
