"""What tests of the harness share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cli import main
from tests.harness.command import Done, Fm
from tests.harness.nursery import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """One warm process for all tests of lives that end badly: starting it takes seconds."""
    with Nursery() as warm:
        yield warm


@pytest.fixture
def fm_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Fm:
    """Run `fm` in this process, in the folder of the test."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, **variables: str) -> Done:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as stop:
                main(list(arguments))
        out, err = capfd.readouterr()
        assert isinstance(stop.value.code, int)
        return Done(stop.value.code, out, err)

    return run
