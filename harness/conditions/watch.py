"""A watch over the machine during one run: a sample before it, samples in the background.

The thread only reads and keeps; the run loop takes what was kept to the database between turns, so
that nothing is written while something is measured.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from engine.errors import detail_of
from harness.conditions.findings import PREFLIGHT, findings
from harness.conditions.interval import MIN_WINDOW_S, row_between, with_standing
from harness.conditions.reading import Reading, Standing, read, read_standing
from harness.store.rows import ConditionRow, utc_now

INTERVAL_S = 5.0
STANDING_INTERVAL_S = 30.0
COST_SHARE = 0.001
"""What sampling may take of the time that passes; a machine with many processes, where a reading
takes longer, is read less often."""


class Watch:
    """Samples of the machine from now on, until it is closed or left as a context.

    Args:
        roots: processes that are ours beside this one and its children: a measured server. None
            where such a server's process is not known, so that others cannot be told from it.
        preflight_s: how long the machine is looked at before a run, at least; where it was not
            clean, `interval_s` more.
        interval_s, standing_interval_s: the least time between two readings of each sort.
        read, read_standing: how the machine is read.
    """

    def __init__(
        self,
        roots: Sequence[int] | None = (),
        *,
        preflight_s: float = MIN_WINDOW_S,
        interval_s: float = INTERVAL_S,
        standing_interval_s: float = STANDING_INTERVAL_S,
        read: Callable[[Sequence[int]], Reading] = read,
        read_standing: Callable[[Reading], Standing] = read_standing,
    ) -> None:
        self._roots = roots
        self._preflight_s = preflight_s
        self._interval_s = interval_s
        self._standing_interval_s = standing_interval_s
        self._read_machine = read
        self._read_standing = read_standing
        self._run_id = ""
        self._lock = threading.Lock()
        self._kept: list[ConditionRow] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="machine-watch", daemon=True)
        self._last = self._read()
        self._standing = read_standing(self._last)

    def preflight(self) -> ConditionRow:
        """Return what the machine did since the watch began.

        After a second that was not clean the time up to a sample counts in its place: a burst of a
        tenth of a second would be a finding, and one that lasts is one again. What changes seldom
        is told as it was when the watch began, before anything of ours was on the device.
        """
        row = self._row_after(self._preflight_s)
        if findings(row):
            row = self._row_after(self._interval_s)
        return with_standing(row, self._standing, None)

    def _row_after(self, least_s: float) -> ConditionRow:
        time.sleep(max(0.0, least_s - (time.monotonic() - self._last.at_s)))
        return self._row(PREFLIGHT)

    def start(self, run_id: str) -> None:
        """Begin to sample for a run."""
        self._run_id = run_id
        self._thread.start()

    def after(self, trial_id: str) -> ConditionRow:
        """Return a sample behind a trial."""
        return self._row("trial", trial_id)

    def take(self) -> Sequence[ConditionRow]:
        """Return the samples since the last call."""
        with self._lock:
            kept, self._kept = self._kept, []
        return kept

    def close(self) -> Sequence[ConditionRow]:
        """End the thread; return what was kept and a last sample."""
        self._stop()
        return [*self.take(), self._row_with_standing("end")]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _sample(self) -> None:
        """Keep a row from time to time, seldom one that says everything."""
        rest_s, standing_rest_s = self._interval_s, self._standing_interval_s
        asked_s = time.monotonic()
        while not self._closing.wait(rest_s):
            began_s, used_s = time.monotonic(), _used_s()
            if began_s - asked_s >= standing_rest_s:
                row, asked_s = self._row_with_standing("running"), began_s
                cost_s = _used_s() - used_s
                standing_rest_s = max(self._standing_interval_s, cost_s / COST_SHARE)
            else:
                row = self._row("running")
                rest_s = max(self._interval_s, (_used_s() - used_s) / COST_SHARE)
            with self._lock:
                self._kept.append(row)

    def _row_with_standing(self, phase: str) -> ConditionRow:
        row, before = self._row(phase), self._standing
        if row.standing:
            return row
        try:
            self._standing = self._read_standing(self._last)
        except Exception as error:  # noqa: BLE001  # the run goes on, and its samples say so
            return replace(row, standing=_unread(error))
        return with_standing(row, self._standing, before)

    def _row(self, phase: str, trial_id: str | None = None) -> ConditionRow:
        """Return what happened since the last reading that was long enough ago."""
        with self._lock:
            try:
                now = self._read()
            except Exception as error:  # noqa: BLE001  # the run goes on, and its samples say so
                return ConditionRow(
                    run_id=self._run_id,
                    sampled_at=utc_now(),
                    phase=phase,
                    trial_id=trial_id,
                    standing=_unread(error),
                )
            row = row_between(self._last, now)
            if row.window_s is not None:
                self._last = now
        if self._roots is None:
            row = replace(row, others_cores=None, heaviest=())
        return replace(row, run_id=self._run_id, phase=phase, trial_id=trial_id)

    def _read(self) -> Reading:
        return self._read_machine(self._roots or ())


def _used_s() -> float:
    """Return the processor time of this thread and of the commands it has run."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + ended.ru_utime + ended.ru_stime


def _unread(error: Exception) -> dict[str, str]:
    return {"unread": detail_of(error)}
