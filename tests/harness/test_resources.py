"""Cells and workloads are found in a checkout and in an installed wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import SettingError
from harness.resources import cells_dir, data_folder, workloads_dir


def test_a_checkout_has_both() -> None:
    assert (cells_dir() / "serial.toml").is_file()
    assert (workloads_dir() / "short-chat" / "workload.toml").is_file()


def test_a_wheel_carries_them_inside_the_package(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "harness"
    (package / "data" / "cells").mkdir(parents=True)
    (tmp_path / "site-packages" / "cells").mkdir()

    assert data_folder("cells", package) == package / "data" / "cells"


def test_a_broken_installation_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no folder 'cells' was installed beside"):
        data_folder("cells", tmp_path / "harness")
