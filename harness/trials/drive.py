"""Drive an engine through the requests of a turn, and note when each token was read.

The clock is read after Engine.step returns, which is after the device was waited for. Nothing but
the reading of it happens between two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.request import Completion, Request, TokenEvent
from engine.telemetry import StepReport
from harness.trials.clock import Clock, StepTally, TokenTimes
from harness.trials.record import Served
from harness.trials.target import OnTokens


class Decoder(Protocol):
    """What is driven: an engine, or a double whose speed is known."""

    @property
    def has_work(self) -> bool:
        """True while another step would do something."""
        ...

    @property
    def last_step(self) -> StepReport | None:
        """The step that `step` ran last, None before the first."""
        ...

    def submit(self, request: Request) -> str:
        """Queue a request and return its id."""
        ...

    def step(self) -> list[TokenEvent]:
        """Run one step, wait for the device, and return what it emitted."""
        ...

    def completion(self, request_id: str) -> Completion:
        """Return the record of a finished row."""
        ...


@dataclass(frozen=True, slots=True)
class Drive:
    """What a turn's requests did, in submission order."""

    served: tuple[Served, ...]
    tally: StepTally
    wall_s: float


@dataclass(slots=True)
class Watch:
    """The instants of one request so far."""

    submitted_s: float
    first_token_s: float | None = None
    first_text_s: float | None = None
    last_token_s: float | None = None
    ended_s: float | None = None

    def see(self, event: TokenEvent, now_s: float) -> None:
        """Take one event in; one without a token or text moves only what it stands for."""
        if event.token_id is not None:
            self.last_token_s = now_s
            if self.first_token_s is None:
                self.first_token_s = now_s
        if event.text and self.first_text_s is None:
            self.first_text_s = now_s
        if event.finish_reason is not None:
            self.ended_s = now_s

    def times(self) -> TokenTimes:
        """Return the finished record."""
        assert self.ended_s is not None
        return TokenTimes(
            submitted_s=self.submitted_s,
            first_token_s=self.first_token_s,
            first_text_s=self.first_text_s,
            last_token_s=self.last_token_s,
            ended_s=self.ended_s,
        )


def drive(
    engine: Decoder,
    requests: Sequence[Request],
    rows: int,
    clock: Clock,
    on_tokens: OnTokens,
) -> Drive:
    """Run the requests in waves of `rows` submitted together, each wave to its end."""
    started_s = clock()
    tally = StepTally()
    served: list[Served] = []
    for start in range(0, len(requests), rows):
        served += _run_wave(engine, requests[start : start + rows], clock, tally, on_tokens)
    return Drive(tuple(served), tally, clock() - started_s)


def _run_wave(
    engine: Decoder,
    requests: Sequence[Request],
    clock: Clock,
    tally: StepTally,
    on_tokens: OnTokens,
) -> list[Served]:
    watches: dict[str, Watch] = {}
    for request in requests:
        submitted_s = clock()
        watches[engine.submit(request)] = Watch(submitted_s)
    steps: list[tuple[StepReport | None, float]] = []
    while engine.has_work:
        before_s = clock()
        events = engine.step()
        now_s = clock()
        tokens = 0
        for event in events:
            watches[event.request_id].see(event, now_s)
            tokens += event.token_id is not None
        steps.append((engine.last_step, now_s - before_s))
        on_tokens(tokens)
    # Summed up behind the last token: a stream's rate has all that happens between two steps.
    for step, seconds in steps:
        _count_step(step, tally, seconds)
    return [
        Served(engine.completion(request_id), watch.times())
        for request_id, watch in watches.items()
    ]


def _count_step(step: StepReport | None, tally: StepTally, seconds: float) -> None:
    if step is None or not step.is_decode:
        return
    tally.add(is_full=step.is_full, committed=step.committed, seconds=seconds)
    tally.masked += step.mask_positions
    tally.add_parts(step.parts_s)
