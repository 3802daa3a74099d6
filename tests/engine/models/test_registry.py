"""`fm models` tells what is there; `pull` gets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import UnknownNameError
from engine.models.registry import list_models, model_rows, pull


def test_rows_tell_what_loads_without_a_network(model_cache: Path) -> None:
    rows = {row.name: row for row in model_rows()}
    assert list(rows) == [entry.name for entry in list_models()]
    assert not rows["smollm2-135m"].cached
    assert not rows["smollm2-135m-first8"].cached
    assert rows["tiny-thinking"].cached
    assert rows["smollm2-135m"].revision == "b179c9523d0e"


def test_pulling_gives_the_folder_and_again_the_same(model_cache: Path) -> None:
    folder = pull("tiny-thinking")
    assert folder.is_relative_to(model_cache)
    assert pull("tiny-thinking") == folder


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown model"):
        pull("gpt-9")
