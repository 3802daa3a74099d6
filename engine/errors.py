"""The one exception family: every error a caller can cause or must handle."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import PurePath


class FmError(Exception):
    """Base of all errors fm raises on purpose: one line with the value and the remedy."""


def detail_of(error: BaseException) -> str:
    """Return what was raised in one short line, as part of a message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def bug_line(error: BaseException) -> str:
    """Return an error that nobody raised on purpose in one line, with the place it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {place}: {' '.join(str(error).split())}"[:500]


class SettingError(FmError, ValueError):
    """A setting is outside its bounds, or two settings exclude each other."""


class UnknownNameError(FmError, LookupError):
    """A name of a closed set (cell, model, workload, drafter, preset) does not exist."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"unknown {kind} {name!r}; known: {', '.join(sorted(known)) or 'none'}")


class RequestError(FmError, ValueError):
    """A request cannot be served as asked: the caller has to change it."""


class ContextLengthError(RequestError):
    """A prompt fills the model's context."""


class SchemaError(RequestError):
    """A constraint is not valid, or holds an assertion that cannot be enforced.

    Args:
        message: what is wrong and what to do.
        pointer: JSON pointer into the schema, "" for its root, None where there is no schema.
        keyword: the offending keyword, None where no single keyword is at fault.
    """

    def __init__(
        self, message: str, pointer: str | None = None, keyword: str | None = None
    ) -> None:
        super().__init__(message)
        self.pointer = pointer
        self.keyword = keyword


class ModelError(FmError):
    """A model cannot be loaded: missing, damaged, of an unknown kind, or not fit for its use."""


class DownloadError(ModelError):
    """A model could not be fetched or its checksum is wrong."""


class BackendError(FmError):
    """No usable MLX backend is installed."""


class RowError(FmError):
    """One row of a step failed; the row ends with an error, its neighbours go on."""
