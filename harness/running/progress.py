"""What a person sees while a run goes on: a bar with time left, or plain lines."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from harness.trials.clock import Clock, monotonic

REDRAWN_S = 0.5
"""Between two drawings of the bar."""

UNTOLD_S = 30.0
"""After so long without a line plain progress has one."""

Key = tuple[str, ...]
"""What takes about the same time for the same weight, such as the trials of one cell."""

LEAST_LABEL = 20
BESIDE_LABEL = 50
"""Columns of the bar, its counts and the time left; a long label takes none of them."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a run is.

    Args:
        through: its trials that are over, and the share of those under way.
        seconds_left: None while that is not known.
    """

    through: float
    seconds_left: float | None


class Progress(Protocol):
    """Told what the run is doing; shows it in some way."""

    def begin(self, seconds_left: float | None, num_trials: int) -> None:
        """The run starts with this many trials to do."""
        ...

    def turn(self, label: str, planned_tokens: int, share: float, standing: Standing) -> None:
        """A turn of a trial starts, which is this share of the trial."""
        ...

    def tokens(self, count: int) -> None:
        """The running turn emitted tokens; called between steps, so it must be quick."""
        ...

    def done(self, label: str, outcome: str, seconds: float, standing: Standing) -> None:
        """A trial ended after turns of so many seconds in all; `outcome` is a few words."""
        ...

    def note(self, line: str) -> None:
        """Something a person should know."""
        ...

    def close(self) -> None:
        """The run ended; nothing more will be shown."""
        ...


def _zeros() -> defaultdict[Key, float]:
    return defaultdict(float)


@dataclass(slots=True)
class TimeLeft:
    """Estimates the time of what is still to run from what has run.

    What is expected of a key is taken to go as fast as what was recorded of it, else at the mean
    speed seen so far. A weight is a time in units that nobody needs to know.
    """

    expected: defaultdict[Key, float] = field(default_factory=_zeros)
    weights: defaultdict[Key, float] = field(default_factory=_zeros)
    seconds: defaultdict[Key, float] = field(default_factory=_zeros)

    def expect(self, key: Key, weight: float) -> None:
        """Take in something that is to run."""
        self.expected[key] += weight

    def drop(self, key: Key, weight: float) -> None:
        """Take out something that will not run."""
        self.expected[key] -= weight

    def record(self, key: Key, weight: float, seconds: float) -> None:
        """Take in something that has run."""
        self.drop(key, weight)
        self.weights[key] += weight
        self.seconds[key] += seconds

    def estimate(self) -> float | None:
        """Return the seconds that are left; None before anything has run."""
        if not (done := sum(self.weights.values())):
            return None
        mean = sum(self.seconds.values()) / done
        return sum(
            weight * (self.seconds[key] / seen if (seen := self.weights[key]) else mean)
            for key, weight in self.expected.items()
        )


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
    """One plain line for each finished trial, for pipes and `--quiet`, and some while none ends."""

    def __init__(self, stream: TextIO, clock: Clock = monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._done = self._total = 0
        self._told_s = clock()

    def begin(self, seconds_left: float | None, num_trials: int) -> None:
        """Remember how many there are."""
        self._total = num_trials

    def turn(self, label: str, planned_tokens: int, share: float, standing: Standing) -> None:
        """Print how far the run is where no line came for a while: trials of a block end late."""
        if self._clock() - self._told_s >= UNTOLD_S:
            share = standing.through / max(1, self._total)
            left = spoken(standing.seconds_left)
            self.note(f"{self._done}/{self._total} {100 * share:.0f} % through, {left}")

    def tokens(self, count: int) -> None:
        """Show nothing."""

    def done(self, label: str, outcome: str, seconds: float, standing: Standing) -> None:
        """Print the line."""
        self._done += 1
        left = f", {spoken(standing.seconds_left)}" if self._done < self._total else ""
        self.note(f"{self._done}/{self._total} {label}: {outcome} in {seconds:.1f} s{left}")

    def note(self, line: str) -> None:
        """Print it."""
        self._stream.write(f"{line}\n")
        self._stream.flush()
        self._told_s = self._clock()

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
        self._planned = self._emitted = 0
        self._through = self._share = 0.0
        self._clock = clock
        self._due_s = 0.0

    def begin(self, seconds_left: float | None, num_trials: int) -> None:
        """Draw the empty bar."""
        self._bar.update(self._task, total=num_trials, left=spoken(seconds_left))
        self._bar.start()

    def turn(self, label: str, planned_tokens: int, share: float, standing: Standing) -> None:
        """Name the trial."""
        self._planned, self._emitted, self._due_s = planned_tokens, 0, 0.0
        self._through, self._share = standing.through, share
        room = max(LEAST_LABEL, self._bar.console.width - BESIDE_LABEL)
        short = label if len(label) <= room else f"…{label[1 - room :]}"
        self._bar.update(self._task, description=short, speed="")
        self._stand(standing)

    def tokens(self, count: int) -> None:
        """Count tokens in the bar's text."""
        self._emitted += count
        now_s = self._clock()
        if now_s < self._due_s:
            return
        self._due_s = now_s + REDRAWN_S
        share = self._share * min(1.0, self._emitted / max(1, self._planned))
        speed = f"{self._emitted}/{self._planned} tok"
        self._bar.update(self._task, completed=self._through + share, speed=speed)

    def done(self, label: str, outcome: str, seconds: float, standing: Standing) -> None:
        """Move the bar on."""
        self._stand(standing)

    def _stand(self, standing: Standing) -> None:
        left = spoken(standing.seconds_left)
        self._bar.update(self._task, completed=standing.through, left=left)

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
