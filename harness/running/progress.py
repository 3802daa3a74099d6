"""What a person sees while a run goes on: a bar with time left, or plain lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from harness.trials.clock import Clock, monotonic

REDRAWN_S = 0.5
"""Between two drawings of the bar."""

LEAST_LABEL = 20
BESIDE_LABEL = 50
"""Columns of the bar, its counts and the time left; a long label takes none of them."""


class Progress(Protocol):
    """Told what the run is doing; shows it in some way."""

    def begin(self, seconds_left: float | None, num_trials: int) -> None:
        """The run starts with this many trials to do."""
        ...

    def trial(self, label: str, planned_tokens: int) -> None:
        """A trial starts."""
        ...

    def tokens(self, count: int) -> None:
        """The running trial emitted tokens; called between steps, so it must be quick."""
        ...

    def done(self, label: str, outcome: str, seconds_left: float | None) -> None:
        """The trial ended; `outcome` is a few words."""
        ...

    def note(self, line: str) -> None:
        """Something a person should know."""
        ...

    def close(self) -> None:
        """The run ended; nothing more will be shown."""
        ...


@dataclass(slots=True)
class TimeLeft:
    """Estimates the time of what is still to run from what has run.

    A trial is taken to need what the same cell on the same workload needed before, else its planned
    tokens at the mean speed seen so far.
    """

    seconds_by_key: dict[tuple[str, ...], list[float]] = field(default_factory=dict)
    seconds: float = 0.0
    weight: float = 0.0

    def record(self, key: tuple[str, ...], weight: float, seconds: float) -> None:
        """Take in one finished trial."""
        self.seconds_by_key.setdefault(key, []).append(seconds)
        self.seconds += seconds
        self.weight += weight

    def estimate(self, pending: Iterable[tuple[tuple[str, ...], float]]) -> float | None:
        """Return the seconds that the pending (key, weight) trials need; None before the first."""
        if self.weight <= 0:
            return None
        total = 0.0
        for key, weight in pending:
            seen = self.seconds_by_key.get(key)
            total += sum(seen) / len(seen) if seen else weight * self.seconds / self.weight
        return total


def spoken(seconds: float | None) -> str:
    """Return the time that is left as people say it, e.g. `about 4 min 10 s left`."""
    return "time left not known yet" if seconds is None else f"about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """Return a duration as people say it, e.g. `4 min 10 s`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class LineProgress:
    """One plain line for each finished trial, for pipes and `--quiet`."""

    def __init__(self, stream: TextIO, clock: Clock = monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._started_s = 0.0
        self._done = self._total = 0

    def begin(self, seconds_left: float | None, num_trials: int) -> None:
        """Remember how many there are."""
        self._total = num_trials

    def trial(self, label: str, planned_tokens: int) -> None:
        """Note the time."""
        self._started_s = self._clock()

    def tokens(self, count: int) -> None:
        """Show nothing: a line a token would be noise."""

    def done(self, label: str, outcome: str, seconds_left: float | None) -> None:
        """Print the line."""
        self._done += 1
        took = self._clock() - self._started_s
        left = f", {spoken(seconds_left)}" if self._done < self._total else ""
        self.note(f"{self._done}/{self._total} {label}: {outcome} in {took:.1f} s{left}")

    def note(self, line: str) -> None:
        """Print it."""
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def close(self) -> None:
        """Nothing to clean up."""


class BarProgress:
    """A rich progress bar; redrawn twice a second, so that it does not disturb what it shows.

    Between two steps of a trial it does nothing but count: an update takes 3 us, which is 0.6 % of
    a step of half a millisecond.
    """

    def __init__(self, stream: TextIO, clock: Clock = monotonic) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TextColumn("{task.fields[left]}"),
            console=Console(file=stream),
            refresh_per_second=1 / REDRAWN_S,
            transient=True,
        )
        self._task = self._bar.add_task("", total=1, speed="", left="")
        self._planned = self._emitted = self._done = 0
        self._clock = clock
        self._due_s = 0.0

    def begin(self, seconds_left: float | None, num_trials: int) -> None:
        """Draw the empty bar."""
        self._bar.update(self._task, total=num_trials, left=spoken(seconds_left))
        self._bar.start()

    def trial(self, label: str, planned_tokens: int) -> None:
        """Name the trial."""
        self._planned, self._emitted, self._due_s = planned_tokens, 0, 0.0
        room = max(LEAST_LABEL, self._bar.console.width - BESIDE_LABEL)
        short = label if len(label) <= room else f"…{label[1 - room :]}"
        self._bar.update(self._task, description=short, speed="")

    def tokens(self, count: int) -> None:
        """Count tokens in the bar's text."""
        self._emitted += count
        now_s = self._clock()
        if now_s < self._due_s:
            return
        self._due_s = now_s + REDRAWN_S
        share = min(1.0, self._emitted / max(1, self._planned))
        speed = f"{self._emitted}/{self._planned} tok"
        self._bar.update(self._task, completed=self._done + share, speed=speed)

    def done(self, label: str, outcome: str, seconds_left: float | None) -> None:
        """Move the bar on."""
        self._done += 1
        self._bar.update(self._task, completed=self._done, left=spoken(seconds_left))

    def note(self, line: str) -> None:
        """Print it above the bar."""
        self._bar.console.print(line, markup=False, highlight=False)

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()


def progress_for(stream: TextIO, is_quiet: bool) -> Progress:
    """Return a bar on a terminal, plain lines elsewhere and where quiet is asked for."""
    if is_quiet or not stream.isatty():
        return LineProgress(stream)
    return BarProgress(stream)
