"""Progress told from bytes on disk, whichever process or library writes them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.2

Progress = Callable[[int, int | None], None]
"""Called with (bytes on disk, bytes expected or None), from another thread."""


@contextmanager
def watched(
    folders: Callable[[], Iterable[Path]], progress: Progress | None, expected_bytes: int | None
) -> Iterator[None]:
    """Tell `progress` the bytes below `folders()` while the body runs; None stays silent."""
    if progress is None:
        yield
        return
    done = threading.Event()

    def watch() -> None:
        while not done.wait(POLL_S):
            progress(bytes_below(folders()), expected_bytes)

    watcher = threading.Thread(target=watch, name="download progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def bytes_below(folders: Iterable[Path]) -> int:
    """Sum the sizes of all files; hard links count once, and files may vanish meanwhile."""
    sizes: dict[int, int] = {}
    for root in folders:
        for folder, _, names in os.walk(root):
            for name in names:
                try:
                    status = Path(folder, name).lstat()
                except OSError:
                    continue
                sizes[status.st_ino] = status.st_size
    return sum(sizes.values())
