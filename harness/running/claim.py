"""A run belongs to one process at a time: a claim that ends with the process, however it ends.

A claim is a record lock on one byte of a file beside the database, at a place that follows from the
run's id. The system lets go of it when the process is gone, kill -9 included, so nothing has to be
cleaned up before a run can be gone on with.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.errors import SettingError


@contextmanager
def claimed(database: Path, run_id: str) -> Iterator[None]:
    """Hold a run while the block runs.

    Raises:
        SettingError: another process holds it.
    """
    try:
        file = os.open(lock_file(database), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        # A full disk takes no new file; the database says so itself, and better.
        yield
        return
    try:
        _lock(file, run_id)
        yield
    finally:
        os.close(file)


def lock_file(database: Path) -> Path:
    """Return the file whose bytes stand for the runs of a database, by whatever name it goes."""
    file = database.resolve()
    return file.with_name(f"{file.name}-runs.lock")


def _lock(file: int, run_id: str) -> None:
    place = int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:7]) >> 1
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except OSError as error:
        # A file system without locks has no claims either.
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise SettingError(
                f"run {run_id} is being run by another process; wait for it, or stop it"
            ) from error
