"""Spool files: JSONL that holds what the database could not take, until it can.

One file per run and process. A line is written whole or not at all, and is on the disk before the
call returns. Who writes to a file, reads it or takes it away holds a lock on it meanwhile, so a
line that comes while others are taken in is read too, or goes to a new file.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from harness.store.codec import to_json
from harness.store.connection import StoreError

Keys = frozenset[str]

SPOOL_KINDS: dict[str, Keys] = {
    "trial": frozenset({"trial", "requests", "accepts"}),
    "turn": frozenset({"trial_id", "attempt", "turn", "whereabouts", "record"}),
    "condition": frozenset({"run_id", "sampled_at", "phase"}),
    "divergence": frozenset({"trial_id", "prompt_id", "reference", "position"}),
    "law": frozenset({"trial_id", "position", "draws", "evidence"}),
}
"""What a line can hold, with the keys it must have; all else a run writes can be made again."""

TRIAL = frozenset({"trial_id", "run_id", "status"})
TRIAL_ROWS: dict[str, Keys] = {
    "requests": frozenset({"trial_id", "position", "prompt_id"}),
    "accepts": frozenset({"trial_id", "pos"}),
}
"""Keys that the rows within a line of a trial must have."""

_MAX_INTEGER = 2**63


@dataclass(frozen=True, slots=True)
class SpoolLine:
    """One line: `kind` is one of SPOOL_KINDS, None when the line cannot be read."""

    kind: str | None
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Spool:
    """The two folders a database spools to: the one beside it, else one in the temp folder."""

    beside: Path
    temp: Path

    @classmethod
    def of(cls, database: Path) -> Spool:
        """Return the spool of a database file."""
        owner = os.getuid() if hasattr(os, "getuid") else "user"
        temp = Path(tempfile.gettempdir()) / f"fm-spool-{owner}"
        return cls(database.parent / "spool", temp)

    def append(self, run_id: str, kind: str, content: Mapping[str, Any]) -> Path:
        """Write one line and return its file; StoreError when neither folder takes it."""
        data = (to_json({"kind": kind, **content}) + "\n").encode()
        problems = []
        for folder in (self.beside, self.temp):
            path = folder / f"{run_id}-{os.getpid()}.jsonl"
            try:
                self._make(folder)
                _append(path, data)
            except OSError as error:
                problems.append(f"{path} ({error.strerror})")
            else:
                return path
        raise StoreError(
            f"a finished trial can be saved nowhere: {', '.join(problems)}; free space, then "
            "resume the run"
        )

    def files(self, run_id: str = "") -> tuple[Path, ...]:
        """Return the spool files of one run, or of all runs."""
        pattern = f"{run_id or '*'}-*.jsonl"
        folders = [self.beside, *([self.temp] if _is_private(self.temp) else [])]
        return tuple(path for folder in folders for path in sorted(folder.glob(pattern)))

    def _make(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder == self.temp and not _is_private(folder):
            raise PermissionError(errno.EPERM, "it belongs to another user", str(folder))


def take_in(path: Path, take: Callable[[SpoolLine], None]) -> Path | None:
    """Give every line of a spool file to `take`, one that is cut or garbled with kind None.

    Then the file is removed, in the breath in which it is seen that no further line came; it stays
    where `take` raises.

    Returns:
        Where a file with such lines is kept, None for one that was removed.

    Raises:
        StoreError: it cannot be read, removed or renamed.
    """
    is_whole = True
    with _unreadable(path), path.open("rb", buffering=0) as file:
        while True:
            with _locked(file):
                data = file.read()
                if not data:
                    # Another process may have taken the file in, and the run begun a new one.
                    return _put_away(path, is_whole) if _is_at(path, file) else None
            for line in filter(str.strip, data.decode("utf-8", "replace").split("\n")):
                found = _parse(line)
                is_whole = is_whole and found.kind is not None
                take(found)


@contextmanager
def _unreadable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}); name a spool file") from error


def _parse(line: str) -> SpoolLine:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return SpoolLine(None, {})
    kind = content.get("kind") if isinstance(content, dict) else None
    if not isinstance(kind, str) or kind not in SPOOL_KINDS:
        return SpoolLine(None, {})
    is_whole = _is_trial(content) if kind == "trial" else _is_row(content, SPOOL_KINDS[kind])
    return SpoolLine(kind, content) if is_whole else SpoolLine(None, {})


def _is_trial(content: Mapping[str, Any]) -> bool:
    rows = {name: content.get(name) for name in TRIAL_ROWS}
    return (
        _is_row(content.get("trial"), TRIAL)
        and _is_json_list(content["trial"].get("failed_before", "[]"))
        and all(
            isinstance(found, list) and all(_is_row(row, TRIAL_ROWS[name]) for row in found)
            for name, found in rows.items()
        )
    )


def _is_json_list(text: Any) -> bool:
    try:
        return isinstance(json.loads(text), list)
    except (TypeError, ValueError, RecursionError):
        return False


def _is_row(value: Any, keys: Keys) -> bool:
    """True for column values by name, these keys among them."""
    return (
        isinstance(value, dict)
        and keys <= value.keys()
        and all(item is None or _is_column(item) for item in value.values())
    )


def _is_column(value: Any) -> bool:
    if isinstance(value, int):
        return -_MAX_INTEGER <= value < _MAX_INTEGER
    return isinstance(value, float | str)


def _put_away(path: Path, is_whole: bool) -> Path | None:
    """Remove a spool file that was taken in; return where one with damaged lines is kept."""
    if not is_whole:
        return _put_aside(path)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            f"{path} was taken in and cannot be removed ({error.strerror}); remove it by hand"
        ) from error
    return None


def _put_aside(path: Path) -> Path:
    """Rename a damaged spool file out of the way, beside earlier ones; return where."""
    kept = path.with_name(f"{path.name}.damaged")
    number = 1
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.name}.damaged.{number}")
    try:
        path.replace(kept)
    except FileNotFoundError:
        return kept
    except OSError as error:
        raise StoreError(
            f"{path} has unreadable lines and cannot be renamed ({error.strerror}); move it by hand"
        ) from error
    return kept


def _append(path: Path, data: bytes) -> None:
    """Append to a file, undoing a half-written line; OSError when it cannot be done.

    A line that a killed process of the same number left unfinished stays a line of its own.
    """
    while True:
        with path.open("a+b", buffering=0) as file, _locked(file):
            # Who took the file in while this waited has removed it, and will not read on.
            if _is_at(path, file):
                return _write_line(path, file, data)


def _write_line(path: Path, file: IO[bytes], data: bytes) -> None:
    start = file.seek(0, os.SEEK_END)
    if start and os.pread(file.fileno(), 1, start - 1) != b"\n":
        data = b"\n" + data
    try:
        if file.write(data) != len(data):
            raise OSError(errno.ENOSPC, "only a part was written", str(path))
        os.fsync(file.fileno())
    except OSError:
        file.truncate(start)
        raise


@contextmanager
def _locked(file: IO[bytes]) -> Iterator[None]:
    """Hold the lock of an open file while the block runs."""
    # A file system without locks has none of these either.
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def _is_at(path: Path, file: IO[bytes]) -> bool:
    """True while an open file is the one of this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _is_private(folder: Path) -> bool:
    """True for a folder of this user alone: a shared temp folder may hold a stranger's."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and (
        not hasattr(os, "getuid") or status.st_uid == os.getuid()
    )
