"""Schemas of others: those that the package check-jsonschema carries, read where it is installed.

They are large, of older dialects, and were written for files that people edit. Those named in the
workload's carried.jsonl must compile; any other is refused for a keyword, and compiles once what
cannot be enforced may be left to the final check.
"""

from __future__ import annotations

import json
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine.errors import SettingError
from harness.resources import workloads_dir
from harness.workloads.zoo_entries import ZOO, Entry

PACKAGE = "check_jsonschema"
FOLDER = ("builtin_schemas", "vendor")
FAMILY = "carried"
PINNED = "carried.jsonl"


def read_carried(folder: Path | None = None) -> tuple[Entry, ...]:
    """Return one entry for each carried schema that must compile, with documents of ours.

    Raises:
        SettingError: the package is not installed, or carries one of them no longer.
    """
    schemas = carried_schemas()
    path = (workloads_dir() / ZOO if folder is None else folder) / PINNED
    return tuple(
        _entry(json.loads(line), schemas) for line in path.read_text(encoding="utf-8").splitlines()
    )


def carried_schemas() -> dict[str, Any]:
    """Return every carried schema by name.

    Raises:
        SettingError: the package is not installed.
    """
    if find_spec(PACKAGE) is None:
        raise SettingError(
            "check-jsonschema is not installed; it comes with the development packages: "
            "scripts/install"
        )
    folder = files(PACKAGE).joinpath(*FOLDER)
    return {
        item.name.removesuffix(".json"): json.loads(item.read_text(encoding="utf-8"))
        for item in sorted(folder.iterdir(), key=lambda item: item.name)
        if item.name.endswith(".json")
    }


def _entry(line: dict[str, Any], schemas: dict[str, Any]) -> Entry:
    name = line["name"]
    if name not in schemas:
        raise SettingError(f"check-jsonschema carries no {name!r} any more; drop it from {PINNED}")
    return Entry(
        family=FAMILY,
        name=f"{FAMILY}-{name}",
        about=f"a file {name}",
        schema=schemas[name],
        valid=tuple(line["valid"]),
        invalid=tuple(line["invalid"]),
    )
