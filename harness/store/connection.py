"""One SQLite connection that many threads and processes may write through.

A transaction is retried as a whole, its commit included, until a lock is free or the time is up.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from engine.errors import FmError

T = TypeVar("T")

MIGRATIONS = (
    "m001_first_tables",
    "m002_first_views",
    "m003_laws",
    "m004_client",
    "m005_step_parts",
    "m008_counters",
    "m007_report_indexes",
    "m006_conditions",
    "m009_attempts",
    "m010_turns",
)
"""The names in harness.store.migrations, in order; a test holds the two together."""

_OLDEST_SQLITE = (3, 37, 0)
"""STRICT tables came with this version."""

_BUSY_CODES = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

_STORAGE_REMEDIES: dict[int, str] = {
    sqlite3.SQLITE_BUSY: "another process holds it locked; close that one and try again",
    sqlite3.SQLITE_LOCKED: "another connection holds it locked; close that one and try again",
    sqlite3.SQLITE_PERM: "allow writing to it",
    sqlite3.SQLITE_READONLY: "allow writing to it, or {another}",
    sqlite3.SQLITE_IOERR: "free space or check the disk, or {another}",
    sqlite3.SQLITE_CORRUPT: "restore it from a copy, or {another}",
    sqlite3.SQLITE_FULL: "free space on the disk, or {another}",
    sqlite3.SQLITE_CANTOPEN: "choose a file in a folder that can be written with --db",
    sqlite3.SQLITE_PROTOCOL: "another process holds it locked; close that one and try again",
    sqlite3.SQLITE_NOTADB: "it is no SQLite database; {another}",
}
"""Primary result codes that the file, the disk or another process causes, with what to do."""

_ANOTHER_DATABASE = "choose another file with --db"


class StoreError(FmError):
    """The eval database cannot be opened, read or written; the text names the file and a remedy."""


class Connection:
    """A connection with a lock around it; `write` and `read` run whole transactions."""

    def __init__(self, path: Path, lock_wait_s: float) -> None:
        """Open or create the file and bring its schema forward; StoreError says what is wrong."""
        self.path = path
        self._lock_wait_s = lock_wait_s
        self._lock = threading.RLock()
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise StoreError(
                f"SQLite {sqlite3.sqlite_version} is too old; use a Python with SQLite "
                f"{'.'.join(map(str, _OLDEST_SQLITE))} or newer"
            )
        _make_folder(path.parent)
        self._raw = self._connect()
        try:
            is_behind = self.read(self._is_behind)
            self.journal_mode = self._retry(self._set_up)
            if is_behind:
                self.write(_apply_migrations)
        except BaseException:
            self._raw.close()
            raise

    def write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Run `change` in one transaction that holds the write lock from its start.

        Raises:
            StoreError: the lock was not free in time, or the disk refused; nothing was changed.
        """
        return self._run("BEGIN IMMEDIATE", change)

    def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run `query` on one consistent state of the database."""
        return self._run("BEGIN", query)

    def copy(self, destination: Path) -> None:
        """Copy one consistent state through the backup API into a file without side files."""
        try:
            target = sqlite3.connect(destination)
        except sqlite3.Error as error:
            raise self._explain(error, destination) from error
        try:
            with self._lock:
                self._raw.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            raise self._explain(error, destination) from error
        finally:
            target.close()

    def write_attached(self, path: Path, change: Callable[[sqlite3.Connection], T]) -> T:
        """Run `change` as `write` does, with another database of this schema as `other`."""
        with self._lock:
            try:
                self._raw.execute("ATTACH DATABASE ? AS other", (str(path),))
            except sqlite3.Error as error:
                raise self._explain(error, path) from error
            try:
                return self.write(change)
            finally:
                self._raw.execute("DETACH DATABASE other")

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._raw.close()

    def _connect(self) -> sqlite3.Connection:
        try:
            # Absolute, since SQLite takes `:memory:` for no file at all.
            raw = sqlite3.connect(
                self.path.absolute(),
                timeout=min(1.0, self._lock_wait_s),
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise self._explain(error) from error
        raw.row_factory = sqlite3.Row
        return raw

    def _set_up(self) -> str:
        """Ask for WAL and full durability; return the journal mode that was granted."""
        try:
            granted = self._raw.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if _primary(error) != sqlite3.SQLITE_READONLY:
                raise
            granted = self._raw.execute("PRAGMA journal_mode").fetchone()[0]
        self._raw.execute("PRAGMA foreign_keys = ON")
        self._raw.execute("PRAGMA synchronous = FULL")
        return str(granted)

    def _is_behind(self, raw: sqlite3.Connection) -> bool:
        """True when migrations are missing; StoreError for a newer fm's file, or a stranger's."""
        tables = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
        names = [row["name"] for row in raw.execute(tables)]
        query = "SELECT name FROM _sqlite_migrations WHERE migration_set = 'fm'"
        known = raw.execute(query) if "_sqlite_migrations" in names else []
        applied = {row["name"] for row in known}
        # The table of migrations alone is what a kill leaves while the first one is applied.
        strange = [name for name in names if not name.startswith(("_sqlite", "sqlite"))]
        if strange and not applied:
            raise StoreError(
                f"{self.path} is a database of another program (it has {strange[0]!r}); name "
                "another file"
            )
        if not applied <= set(MIGRATIONS):
            raise StoreError(f"{self.path} was written by a newer fm; update fm, or use --db")
        return len(applied) < len(MIGRATIONS)

    def _run(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        def attempt() -> T:
            self._raw.execute(begin)
            try:
                result = work(self._raw)
                self._raw.execute("COMMIT")
            except BaseException:
                if self._raw.in_transaction:
                    self._raw.execute("ROLLBACK")
                raise
            return result

        return self._retry(attempt)

    def _retry(self, attempt: Callable[[], T]) -> T:
        """Run `attempt` until no lock stands in its way; StoreError when the time is up."""
        deadline = time.monotonic() + self._lock_wait_s
        with self._lock:
            while True:
                try:
                    return attempt()
                except sqlite3.Error as error:
                    if _primary(error) not in _BUSY_CODES or time.monotonic() >= deadline:
                        raise self._explain(error) from error
                time.sleep(random.uniform(0.002, 0.05))

    def _explain(self, error: sqlite3.Error, path: Path | None = None) -> Exception:
        return explained(error, path or self.path)


def snapshot(path: Path, destination: Path) -> None:
    """Copy one consistent state of a database that is not ours to change.

    Raises:
        StoreError: it cannot be read, or is no database.
    """
    try:
        source = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        target = sqlite3.connect(destination)
    except sqlite3.Error as error:
        raise explained(error, path, "name another file") from error
    try:
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise explained(error, path, "name another file") from error
    finally:
        source.close()
        target.close()


def explained(error: sqlite3.Error, path: Path, another: str = _ANOTHER_DATABASE) -> Exception:
    """Return the StoreError for what the outside world caused, else the error itself.

    Args:
        another: how people name another file in place of this one.
    """
    remedy = _STORAGE_REMEDIES.get(_primary(error))
    if str(error).startswith("no such "):
        # All of our statements run on the schema of the migrations, so the file has lost a part.
        remedy = "it is not as fm wrote it; restore it from a copy"
    if remedy is None:
        return error
    return StoreError(f"{path}: {error}; {remedy.format(another=another)}")


def _apply_migrations(raw: sqlite3.Connection) -> None:
    """Apply what is missing; two processes that open a new file at once come here in turn.

    sqlite-utils is imported here alone, since it imports pandas, which takes a second or more.
    """
    from sqlite_utils import Database

    from harness.store.migrations import migrations

    migrations.apply(Database(raw))


def _primary(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"{folder} cannot be made ({error.strerror}); choose another file with --db"
        ) from error
