"""What the harness adds to what it measures: an engine of known speed, in real time.

In process each step takes its time from when it is called, so that everything the harness does
between two steps is in the figures. They are compared with the metronome's own record of every
step: on a busy machine its steps take longer than they were set to, and both see it. Over HTTP a
server in a child keeps the schedule, and the figures are compared with that.
"""

from __future__ import annotations

import io
import math
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from engine.telemetry import StepReport
from harness.calibration.metronome import MetronomeTarget, Pace, RealClock
from harness.calibration.metronome_server import LISTENING, MODEL
from harness.calibration.rehearsal import rehearse
from harness.choices import Choices
from harness.clock import RssSampler
from harness.progress import BarProgress
from harness.remote_target import RemoteTarget
from harness.server_process import Launch, ServerProcess
from harness.stats import per_stream_rate
from harness.store import EvalStore, RequestRow, RunData

PACE = Pace(step_s=0.0005, ttft_s=0.030)
"""2,000 tokens a second."""

MOST_RATE_ERROR = 0.01
MOST_TTFT_ERROR_S = 0.001
BLOCKS = 5
"""No baseline is repeated below 6 blocks, so that every step is one of `serial`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """How far measured figures are from what they measure: medians over requests.

    Args:
        tok_s: tokens a second of one stream, as measured.
        per_stream_error, aggregate_error: relative; negative where the harness measures too
            slow. None for an aggregate that the target does not tell.
        ttft_error_s: positive where the first token is measured too late.
        gap_s: from one step to the next, median over steps, which a busy machine hardly moves;
            None where steps are not seen.
    """

    target: str
    requests: int
    tok_s: float
    per_stream_error: float
    aggregate_error: float | None
    ttft_error_s: float
    gap_s: float | None = None

    @property
    def is_small(self) -> bool:
        """True when the promise is kept."""
        errors = (self.per_stream_error, self.aggregate_error or 0.0)
        is_right = all(abs(error) <= MOST_RATE_ERROR for error in errors)
        return is_right and abs(self.ttft_error_s) <= MOST_TTFT_ERROR_S

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for programs."""
        return {**asdict(self), "is_small": self.is_small}


@dataclass(frozen=True, slots=True)
class Kept:
    """What the metronome itself kept of one reply, in seconds."""

    prefill_s: float
    decode_s: float
    tokens: int

    @property
    def tok_s(self) -> float:
        """Tokens a second of its decode steps alone."""
        return self.tokens / self.decode_s


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


def measure_in_process(prompts: int, tokens: int, pace: Pace = PACE) -> Overhead:
    """Measure a metronome with everything that goes on beside a real trial: progress, memory."""
    record = StepRecord()
    target = MetronomeTarget({"serial": pace}, clock=RealClock(), on_step=record.add)
    with RssSampler():
        data = _rehearsed(target, _choices(prompts, tokens))
    kept, rows = record.replies(), _measured(data)
    seconds = math.fsum(trial.aggregate_s or 0.0 for trial in data.trials)
    aggregate = sum(trial.aggregate_tokens or 0 for trial in data.trials) / seconds
    known = sum(item.tokens for item in kept) / math.fsum(item.decode_s for item in kept)
    pairs = list(zip(rows, kept, strict=True))
    return Overhead(
        target="in process",
        requests=len(rows),
        tok_s=median(map(_rate, rows)),
        per_stream_error=median(_rate(row) / item.tok_s - 1 for row, item in pairs),
        aggregate_error=aggregate / known - 1,
        ttft_error_s=median(_ttft(row) - item.prefill_s for row, item in pairs),
        gap_s=record.gap_s(),
    )


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
    return Overhead(
        target="over HTTP",
        requests=len(rows),
        tok_s=median(map(_rate, rows)),
        per_stream_error=median(_rate(row) / pace.tok_s - 1 for row in rows),
        aggregate_error=None,
        ttft_error_s=median(_ttft(row) - pace.ttft_s for row in rows),
    )


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
