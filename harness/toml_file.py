"""TOML files that people write: read once, and every error told with its file and line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import FmError, SettingError


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A file and what it holds."""

    path: Path
    text: str
    table: Mapping[str, Any]

    @contextmanager
    def locating(self) -> Iterator[None]:
        """Tell an FmError of what is inside as one of this file, with the line it speaks of."""
        try:
            yield
        except FmError as error:
            line = line_of(self.text, str(error))
            raise SettingError(f"{self.path}:{line or 1}: {error}") from error


def read_toml(path: Path) -> TomlFile:
    """Read a TOML file.

    Raises:
        SettingError: it cannot be read or is no TOML; the text names the file and the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SettingError(f"{path}: there is no such file; name one that is there") from None
    except OSError as error:
        raise SettingError(f"{path}: cannot be read ({error.strerror}); name another") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{path}: cannot be read ({error}); fix or remove the file") from error
    try:
        return TomlFile(path, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        at = re.search(r"\(at line (\d+)", message)
        line = at.group(1) if at else str(text.count("\n") + 1)
        raise SettingError(f"{path}:{line}: {message.partition(' (at')[0]}; fix the TOML") from None
    except (ValueError, RecursionError) as error:
        # Python's own bounds: digits of a number, and how deep lists may lie in each other.
        reason = str(error).partition(";")[0]
        raise SettingError(f"{path}:1: {reason}; no such file is read, write less") from None


def line_of(text: str, message: str) -> int | None:
    """Return the line an error speaks of: of a value it quotes, else of the key it names first."""
    lines = text.splitlines()
    for quoted in re.findall(r"'([^']+)'", message):
        for number, line in enumerate(lines, start=1):
            if f'"{quoted}"' in line or f"'{quoted}'" in line:
                return number
    found = []
    for number, line in enumerate(lines, start=1):
        key = line.partition("=")[0].strip(" '\"\t[]").rpartition(".")[2]
        named = re.search(rf"\b{re.escape(key)}\b", message) if key else None
        if named is not None:
            # A heading is the last resort: what is wrong stands below it.
            found.append((line.lstrip().startswith("["), named.start(), number))
    return min(found)[2] if found else None
