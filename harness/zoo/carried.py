"""Schemas of others: those that the package check-jsonschema carries, read where it is installed.

They are large and of older dialects, and were written for files that people edit. What compiles of
them is pinned by name; what does not is refused for a keyword.
"""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from importlib.util import find_spec

from engine.errors import SettingError
from harness.zoo.entries import Entry

PACKAGE = "check_jsonschema"
FOLDER = ("builtin_schemas", "vendor")
FAMILY = "carried"


def carried() -> tuple[Entry, ...]:
    """Return one entry for each carried schema, by name, none of them pinned.

    Raises:
        SettingError: the package is not installed.
    """
    if find_spec(PACKAGE) is None:
        raise SettingError(
            "check-jsonschema is not installed; it comes with the development packages: "
            "scripts/install"
        )
    folder = files(PACKAGE).joinpath(*FOLDER)
    return tuple(
        Entry(
            family=FAMILY,
            name=item.name.removesuffix(".json"),
            about="a configuration file",
            schema=json.loads(item.read_text(encoding="utf-8")),
        )
        for item in sorted(folder.iterdir(), key=lambda item: item.name)
        if item.name.endswith(".json")
    )
