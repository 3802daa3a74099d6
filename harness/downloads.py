"""Downloads as people see them: which file comes, and how much of it is here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

Fetching = Callable[[str], Callable[[int, int | None], None]]
"""Makes the progress callback of one download."""


def fetching_to(stream: TextIO) -> Fetching:
    """Return the maker of download callbacks that write to `stream`."""
    return lambda name: DownloadProgress(name, stream)


class DownloadProgress:
    """Progress of a fetch: one line that is rewritten on a terminal, a line a tenth elsewhere.

    A model that was here already is told complete at once, and shown not at all.
    """

    def __init__(self, name: str, stream: TextIO) -> None:
        self._name = name
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._shown = 0

    def __call__(self, received: int, total: int | None) -> None:
        """Take bytes received and their total, where it is known."""
        is_complete = total is not None and received >= total
        if is_complete and not self._shown:
            return
        share = 10 * received // total if total else received // 10_000_000
        if share <= self._shown and not is_complete:
            return
        self._shown = share
        size = f"{received / 1e6:.0f}" + (f" of {total / 1e6:.0f}" if total else "") + " MB"
        lead = "\r" if self._is_terminal else ""
        end = "\n" if is_complete or not self._is_terminal else ""
        self._stream.write(f"{lead}fetching {self._name}: {size}{end}")
        self._stream.flush()
