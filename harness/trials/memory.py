"""Resident memory over a trial, sampled in the background.

Imports neither the engine nor mlx: the peer's child process uses this module too.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import psutil

RSS_INTERVAL_S = 0.05
"""One reading takes about 10 us, so 20 a second stay invisible beside a step of 40 ms."""


class RssSampler:
    """A context that records the largest resident memory of processes while it is open.

    Args:
        pids: whose memory is summed up; None is this process. One that is gone counts for nothing.
    """

    def __init__(
        self, interval_s: float = RSS_INTERVAL_S, pids: Sequence[int] | None = None
    ) -> None:
        self._processes = [psutil.Process(pid) for pid in pids or (None,)]
        self._interval_s = interval_s
        self._closing = threading.Event()
        self._peak_bytes = 0
        self._thread = threading.Thread(target=self._sample, name="rss-sampler", daemon=True)

    @property
    def peak_bytes(self) -> int:
        """The largest reading so far, in bytes."""
        return self._peak_bytes

    def __enter__(self) -> Self:
        self._read()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._thread.join()
        self._read()

    def _sample(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._read()

    def _read(self) -> None:
        total = 0
        for process in self._processes:
            with suppress(psutil.Error):
                total += process.memory_info().rss
        self._peak_bytes = max(self._peak_bytes, total)
