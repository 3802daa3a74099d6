"""A model's name is known, or says what is."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import ModelError, UnknownNameError
from engine.models.entry import ModelEntry, entries, find_entry


def test_every_registered_model_states_its_licence_and_knows_its_drafters() -> None:
    for entry in entries().values():
        assert entry.licence != "unknown"
        assert entry.size_bytes is not None
        assert set(entry.drafters) - {"ngram"} <= set(entries())


def test_what_is_fetched_is_pinned() -> None:
    for entry in entries().values():
        assert entry.kind != "hf" or entry.revision
        assert entry.kind != "pypi" or (len(entry.sha256) == 64 and "==" in entry.source)


def test_the_default_model_comes_first() -> None:
    assert next(iter(entries())) == "smollm2-135m"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown model 'gpt-9'; known: .*smollm2-135m"):
        find_entry("gpt-9")


@pytest.mark.parametrize("name", ["./nowhere", "path:nowhere", "nothing.gguf", "/no/such/folder"])
def test_a_path_where_nothing_is_says_so(name: str) -> None:
    with pytest.raises(ModelError, match="no such model folder or GGUF file"):
        find_entry(name)


def test_paths_and_hub_names_become_entries(tmp_path: Path) -> None:
    assert find_entry(str(tmp_path)).source == f"path:{tmp_path}"
    assert find_entry(f"path:{tmp_path}").kind == "path"
    assert find_entry("hf:org/repo").place == "org/repo"


def test_a_registered_name_wins_over_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").mkdir()
    assert find_entry("smollm2-135m").kind == "pypi"


@pytest.mark.parametrize("source", ["ftp:x", "hf:", "smollm2"])
def test_a_source_of_no_known_kind_is_refused(source: str) -> None:
    with pytest.raises(ModelError, match="must be one of pypi:"):
        ModelEntry(name="x", source=source)
