"""What a child process that answers in lines needs: an output of its own, an end with its parent.

Imports nothing but the standard library: a peer's child keeps mlx as its wheel brings it.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TextIO

PARENT_POLL_S = 1.0


def die_with_parent() -> None:
    """From now on end this process soon after its parent is gone, also in the middle of a trial."""
    parent = os.getppid()
    threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def private_stdout() -> TextIO:
    """Return the real standard output and send everything printed from now on to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    os._exit(1)
