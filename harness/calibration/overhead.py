"""What the harness adds to what it measures: an engine of known speed, in real time.

In process each step takes its time from when it is called, so that everything the harness does
between two steps is in the figures. Over HTTP a server in a child keeps the schedule, and writes
into each token when it sends it. Figures are compared with the metronome's own record, reply by
reply, and where there are some only in those in which the machine let it keep its pace: on a busy
one the others tell of the neighbours.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from engine.telemetry import StepReport
from harness.calibration.metronome import MetronomeTarget, Pace, RealClock
from harness.calibration.metronome_server import LISTENING, MODEL
from harness.calibration.pacing import PacedClock
from harness.calibration.rehearsal import rehearse
from harness.http.process import Launch, ServerProcess
from harness.planning.choices import Choices
from harness.running.progress import BarProgress
from harness.stats import per_stream_rate
from harness.store import EvalStore, RequestRow, RunData
from harness.targets.remote import RemoteTarget
from harness.trials.memory import RssSampler

PACE = Pace(step_s=0.0005, ttft_s=0.030)
"""2,000 tokens a second."""

MOST_RATE_ERROR = 0.01
MOST_TTFT_ERROR_S = 0.001
STEADY = 0.05
"""A metronome this far from its pace was not let alone."""

FEWEST_STEADY = 5
BLOCKS = 5
"""No baseline is repeated below 6 blocks, so that every step is one of `serial`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """How far measured figures are from what they measure: medians over replies.

    Args:
        replies, steady: all, and those in which the metronome kept its pace; with fewer than
            FEWEST_STEADY of them the figures are of all, and tell of the machine.
        tok_s: tokens a second of a stream, as measured.
        rate_error: relative; negative where the harness measures too slow.
        ttft_error_s: positive where the first token is measured too late.
        gap_s: from one step to the next, median over steps; None where steps are not seen.
    """

    target: str
    replies: int
    steady: int
    tok_s: float
    rate_error: float
    ttft_error_s: float
    gap_s: float | None = None

    @property
    def is_small(self) -> bool:
        """True when the promise is kept."""
        is_right = abs(self.rate_error) <= MOST_RATE_ERROR
        return is_right and abs(self.ttft_error_s) <= MOST_TTFT_ERROR_S

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for programs."""
        return {**asdict(self), "is_small": self.is_small}


@dataclass(frozen=True, slots=True)
class Kept:
    """What the metronome itself kept of one reply, in seconds.

    Args:
        tokens: those behind the first one, which took `decode_s`.
    """

    prefill_s: float
    decode_s: float
    tokens: int

    @property
    def tok_s(self) -> float:
        """Tokens a second behind the first one."""
        return self.tokens / self.decode_s

    def is_steady(self, pace: Pace) -> bool:
        """True when the machine let it keep its pace."""
        return abs(self.tok_s / pace.tok_s - 1) <= STEADY


@dataclass(slots=True)
class StepRecord:
    """The metronome's own record; adding to it makes no object that garbage collection counts."""

    steps: list[StepReport] = field(default_factory=list)
    over_s: list[float] = field(default_factory=list)

    def add(self, step: StepReport, over_s: float) -> None:
        """Take a step in, and the instant at which it was over."""
        self.steps.append(step)
        self.over_s.append(over_s)

    def gap_s(self) -> float:
        """Return the median of the seconds between a decode step and the next."""
        starts = (step.started_s for step in self.steps[1:])
        gaps = zip(self.over_s, starts, self.steps[1:], strict=False)
        return median(start_s - over_s for over_s, start_s, step in gaps if step.is_decode)

    def replies(self) -> list[Kept]:
        """Return what the steps of one row at a time say of each reply; a prefill begins one."""
        found: list[Kept] = []
        for step, over_s in zip(self.steps, self.over_s, strict=True):
            seconds = over_s - step.started_s
            if not step.is_decode:
                found.append(Kept(seconds, 0.0, 0))
                continue
            last = found[-1]
            found[-1] = Kept(last.prefill_s, last.decode_s + seconds, last.tokens + step.committed)
        return found


def measure_in_process(
    prompts: int, tokens: int, pace: Pace = PACE, clock: PacedClock | None = None
) -> Overhead:
    """Measure a metronome with everything that goes on beside a real trial: progress, memory.

    Args:
        clock: None takes the one of the machine.
    """
    record = StepRecord()
    target = MetronomeTarget({"serial": pace}, clock=clock or RealClock(), on_step=record.add)
    with RssSampler():
        rows = _measured(_rehearsed(target, _choices(prompts, tokens)))
    found = _overhead("in process", pace, rows, record.replies())
    return replace(found, gap_s=record.gap_s())


def measure_over_http(prompts: int, tokens: int, pace: Pace = PACE) -> Overhead:
    """Measure a metronome in a child through the load client.

    Raises:
        ServerError: it does not start, or does not answer.
    """
    module = "harness.calibration.metronome_server"
    launch = Launch(
        name="the metronome",
        command=(sys.executable, "-P", "-m", module, str(pace.step_s), str(pace.ttft_s)),
        listening=LISTENING,
    )
    server = ServerProcess(launch, tell=lambda _line: None)
    target = RemoteTarget(f"{server.url}/v1", tell=lambda _line: None)
    try:
        choices = _choices(prompts, tokens, target=target.url, models=(MODEL,))
        rows = _measured(_rehearsed(target, choices))
    finally:
        target.close()
        server.close()
    return _overhead("over HTTP", pace, rows, [_sent(row) for row in rows])


def _overhead(
    target: str, pace: Pace, rows: Sequence[RequestRow], kept: Sequence[Kept]
) -> Overhead:
    """Compare replies with their record: the steady ones, or all where there are hardly any."""
    pairs = list(zip(rows, kept, strict=True))
    steady = [(row, item) for row, item in pairs if item.is_steady(pace)]
    judged = steady if len(steady) >= FEWEST_STEADY else pairs
    return Overhead(
        target=target,
        replies=len(pairs),
        steady=len(steady),
        tok_s=median(_rate(row) for row, _ in judged),
        rate_error=median(_rate(row) / item.tok_s - 1 for row, item in judged),
        ttft_error_s=median(_ttft(row) - item.prefill_s for row, item in judged),
    )


def _sent(row: RequestRow) -> Kept:
    """Return what the server wrote into a reply: when it read the request, and sent each token."""
    read_s, *sent_s = map(float, (row.text or "").split())
    return Kept(sent_s[0] - read_s, sent_s[-1] - sent_s[0], len(sent_s) - 1)


def _choices(prompts: int, tokens: int, **given: Any) -> Choices:
    return Choices(
        cells=("serial",),
        workloads=("short-chat",),
        blocks=BLOCKS,
        prompts=prompts,
        max_tokens=tokens,
        **given,
    )


def _rehearsed(target: MetronomeTarget | RemoteTarget, choices: Choices) -> RunData:
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "fm.db"
        report = rehearse(choices, target, db=db, progress=BarProgress(io.StringIO()))
        with EvalStore.open(db) as store:
            return store.load_run(report.run.run_id)


def _measured(data: RunData) -> list[RequestRow]:
    """Return the measured replies in the order in which they came."""
    places = {trial.trial_id: (trial.block, trial.order_in_block) for trial in data.trials}
    rows = [row for row in data.requests if row.phase == "measured"]
    assert rows, [trial.reason for trial in data.trials]
    return sorted(rows, key=lambda row: (places[row.trial_id], row.position))


def _rate(row: RequestRow) -> float:
    found = per_stream_rate(row.completion_tokens, row.ttft_s, row.last_token_s)
    assert found is not None, row.error
    return found


def _ttft(row: RequestRow) -> float:
    assert row.ttft_s is not None, row.error
    return row.ttft_s
