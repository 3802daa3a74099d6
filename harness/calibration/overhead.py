"""What the harness adds to what it measures: an engine of known speed, in real time.

In process each step takes its time from when it is called, so that everything the harness does
between two steps is in the figures. Over HTTP a server in a child keeps the schedule.
"""

from __future__ import annotations

import io
import sys
from dataclasses import asdict, dataclass
from typing import Any

from harness.calibration.metronome import MetronomeTarget, Pace, RealClock
from harness.calibration.metronome_server import LISTENING, MODEL
from harness.calibration.rehearsal import rehearse
from harness.choices import Choices
from harness.clock import RssSampler
from harness.progress import BarProgress
from harness.remote_target import RemoteTarget
from harness.report import RunReport
from harness.server_process import Launch, ServerProcess

PACE = Pace(step_s=0.0005, ttft_s=0.030)
"""2,000 tokens a second."""

MOST_RATE_ERROR = 0.01
MOST_TTFT_ERROR_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What was set and what was measured; a rate that a target does not tell is None.

    Args:
        aggregate, per_stream: tokens a second, medians over blocks and over requests.
        ttft_s: median over requests.
    """

    target: str
    pace: Pace
    requests: int
    aggregate: float | None
    per_stream: float
    ttft_s: float

    @property
    def rate_errors(self) -> tuple[float, ...]:
        """By how much the measured rates are off, relatively."""
        rates = (self.aggregate, self.per_stream)
        return tuple(rate / self.pace.tok_s - 1 for rate in rates if rate is not None)

    @property
    def ttft_error_s(self) -> float:
        """By how many seconds the first token is measured too late."""
        return self.ttft_s - self.pace.ttft_s

    @property
    def is_small(self) -> bool:
        """True when the promise is kept."""
        is_right = all(abs(error) <= MOST_RATE_ERROR for error in self.rate_errors)
        return is_right and abs(self.ttft_error_s) <= MOST_TTFT_ERROR_S

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for programs."""
        return {
            **asdict(self),
            "rate_errors": self.rate_errors,
            "ttft_error_s": self.ttft_error_s,
            "is_small": self.is_small,
        }


def measure_in_process(blocks: int, prompts: int, tokens: int, pace: Pace = PACE) -> Overhead:
    """Measure a metronome with everything that goes on beside a real trial: progress, memory."""
    choices = _choices(blocks, prompts, tokens)
    target = MetronomeTarget({"serial": pace}, clock=RealClock())
    with RssSampler():
        report = rehearse(choices, target, progress=BarProgress(io.StringIO()))
    return _overhead(report, pace)


def measure_over_http(blocks: int, prompts: int, tokens: int, pace: Pace = PACE) -> Overhead:
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
    try:
        url = f"{server.url}/v1"
        target = RemoteTarget(url, tell=lambda _line: None)
        try:
            choices = _choices(blocks, prompts, tokens, target=url, models=(MODEL,))
            report = rehearse(choices, target, progress=BarProgress(io.StringIO()))
        finally:
            target.close()
    finally:
        server.close()
    return _overhead(report, pace)


def _choices(blocks: int, prompts: int, tokens: int, **given: Any) -> Choices:
    return Choices(
        cells=("serial",),
        workloads=("short-chat",),
        blocks=blocks,
        prompts=prompts,
        max_tokens=tokens,
        **given,
    )


def _overhead(report: RunReport, pace: Pace) -> Overhead:
    cell = next(cell for cell in report.cells if cell.place.cell == "serial")
    assert cell.speed.per_stream is not None, report.failures
    assert cell.ttft is not None
    is_here = report.run.target == Choices().target
    return Overhead(
        target="in process" if is_here else "over HTTP",
        pace=pace,
        requests=cell.num_requests,
        aggregate=cell.speed.aggregate,
        per_stream=cell.speed.per_stream,
        ttft_s=cell.ttft.p50,
    )
