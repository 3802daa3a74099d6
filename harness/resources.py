"""Where the cells, policies and workloads of fm lie: in the wheel, or in a checkout."""

from __future__ import annotations

from pathlib import Path

from engine.errors import SettingError

PACKAGE = Path(__file__).resolve().parent


def cells_dir() -> Path:
    """Return the folder with cells/*.toml."""
    return data_folder("cells")


def policies_dir() -> Path:
    """Return the folder with policies/*.toml, which `fm gate` judges by."""
    return data_folder("policies")


def workloads_dir() -> Path:
    """Return the folder that holds one folder for each workload."""
    return data_folder("workloads")


def data_folder(name: str, package: Path = PACKAGE) -> Path:
    """Return a folder of data files.

    Args:
        name: its name in a checkout, where it lies beside the package; a wheel carries it inside.
        package: the folder of the `harness` package.

    Raises:
        SettingError: it is in neither place.
    """
    for folder in (package / "data" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise SettingError(f"no folder {name!r} was installed beside {package}; reinstall fm")
