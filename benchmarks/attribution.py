"""Where a step's time goes, and what it costs to know: `python benchmarks/attribution.py [MODEL]`.

For several cells: the parts of a decode step in milliseconds, mean of the fastest stretch of steps.
For a row alone: steps with the timer against steps without it, in pairs of short stretches in turns
(ABBA), the fastest step of a stretch against that of its neighbour, with the interval that reports
use; and the same cost counted: laps a step times the time of a lap. Fastest ones throughout, since
whatever else runs on the machine only adds time.
"""

from __future__ import annotations

import math
import sys
import time
import timeit
from collections.abc import Iterator

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.loop import Engine
from engine.models.load import LoadedModel, load_model
from engine.request import Constraint, ConstraintKind, Request
from engine.step_time import PARTS, StepTimer
from harness.stats import compare

PROMPT = 64
ROUNDS = 5
PAIRS = 24
STRETCH = 12
LAPS, REPEATS = 1_000, 50
SCHEMA = {
    "type": "object",
    "properties": {"names": {"type": "array", "items": {"type": "string"}, "minItems": 40}},
    "required": ["names"],
}
CLOSED = Constraint(kind=ConstraintKind.JSON_SCHEMA, value=SCHEMA)
SPEC = {"num_draft_tokens": 3, "draft_budgets": "fixed"}
CELLS: dict[str, tuple[EngineConfig, Constraint | None]] = {
    "serial": (EngineConfig(), None),
    "serial+grammar": (EngineConfig(), CLOSED),
    "serial+spec": (EngineConfig(**SPEC), None),
    "batch4": (EngineConfig(max_rows=4), None),
    "batch4+grammar": (EngineConfig(max_rows=4), CLOSED),
}


class Counting(StepTimer):
    """A timer that counts its readings of the clock."""

    readings = 0

    def lap(self, part: str) -> float:
        """Count, and measure."""
        self.readings += 1
        return super().lap(part)

    def skip(self) -> float:
        """Count, and measure."""
        self.readings += 1
        return super().skip()


class Untimed(StepTimer):
    """A timer that never looks at the clock."""

    def start(self) -> None:
        """Leave the parts as they are."""
        self.seconds = ZEROS

    def skip(self) -> float:
        """Do nothing."""
        return 0.0

    def lap(self, part: str) -> float:
        """Do nothing."""
        return 0.0


ZEROS = dict.fromkeys(PARTS, 0.0)


def use(engine: Engine, timer: StepTimer) -> None:
    """Let an engine report to another timer."""
    engine._timer = engine._selector._timer = engine._launcher._timer = timer


def prompt(model: LoadedModel, start: int) -> tuple[int, ...]:
    """Return a prompt of ordinary tokens with repetitions to draft from."""
    return tuple(20 + (start + 7 * (i % 16)) % (model.vocab_size - 40) for i in range(PROMPT))


def decode_steps(engine: Engine) -> Iterator[float]:
    """Step while there is work; yield the seconds of each decode step."""
    while engine.has_work:
        before = time.perf_counter()
        engine.step()
        seconds = time.perf_counter() - before
        if engine.last_step is not None and engine.last_step.is_decode:
            yield seconds


def parts_of(
    model: LoadedModel, config: EngineConfig, constraint: Constraint | None
) -> list[float]:
    """Return the milliseconds of a step: whole, its parts, the remainder."""
    engine = Engine(model, config, build_drafter(config, None))
    found: list[list[float]] = []
    for round_ in range(ROUNDS):
        for row in range(config.max_rows):
            engine.submit(
                Request(
                    prompt_ids=prompt(model, row),
                    max_tokens=4 * STRETCH + 2,
                    ignore_eos=constraint is None,
                    constraint=constraint,
                )
            )
        steps = [
            [seconds, *engine.last_step.parts_s.values()]
            for seconds in decode_steps(engine)
            if engine.last_step is not None
        ]
        if round_:  # the first warms up
            stretches = zip(*[iter(steps)] * STRETCH, strict=False)
            found += [
                [math.fsum(column) for column in zip(*each, strict=True)] for each in stretches
            ]
    step, *parts = min(found)
    return [1000 * seconds / STRETCH for seconds in (step, *parts, step - math.fsum(parts))]


def steps_for_ever(engine: Engine, model: LoadedModel) -> Iterator[float]:
    """Yield the seconds of decode steps of one row after another.

    The first step of a row and the last are left out: behind the last none is launched, so it is
    much faster, and would always fall into the same stretch.
    """
    while True:
        engine.submit(
            Request(prompt_ids=prompt(model, 0), max_tokens=4 * STRETCH + 3, ignore_eos=True)
        )
        steps = decode_steps(engine)
        next(steps)
        held = next(steps)
        for seconds in steps:
            yield held
            held = seconds


def overhead(model: LoadedModel) -> tuple[list[float], float]:
    """Return log-ratios of timed to untimed steps, and the seconds of a timed one."""
    engine = Engine(model, EngineConfig())
    steps = steps_for_ever(engine, model)
    timers = {True: StepTimer(), False: Untimed()}
    logs, timed = [], []
    for pair in range(PAIRS):
        fastest = {}
        for is_timed in (True, False) if pair % 2 else (False, True):
            use(engine, timers[is_timed])
            fastest[is_timed] = min(next(steps) for _ in range(STRETCH))
        logs.append(math.log(fastest[True] / fastest[False]))
        timed.append(fastest[True])
    return logs, min(timed)


def counted(model: LoadedModel) -> float:
    """Return the seconds that the laps of a step take, and the start of its timer."""
    engine, counting = Engine(model, EngineConfig()), Counting()
    use(engine, counting)
    steps = steps_for_ever(engine, model)
    next(steps)
    before = counting.readings
    for _ in range(STRETCH):
        next(steps)
    laps = (counting.readings - before) / STRETCH
    timer = StepTimer()
    lap_s = min(timeit.repeat(lambda: timer.lap("plan"), number=LAPS, repeat=REPEATS)) / LAPS
    start_s = min(timeit.repeat(timer.start, number=LAPS, repeat=REPEATS)) / LAPS
    return laps * lap_s + start_s


def main() -> None:
    """Print the tables."""
    model = load_model(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
    print("cell", "step", *PARTS, "other", sep=" | ")
    for name, (config, constraint) in CELLS.items():
        figures = parts_of(model, config, constraint)
        print(name, *(f"{figure:.3f}" for figure in figures), sep=" | ")
    logs, step_s = overhead(model)
    ratio = compare(logs)
    print(f"timed against untimed: {ratio.estimate:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]")
    print(f"counted: {1e6 * counted(model):.2f} us of {1e3 * step_s:.3f} ms a step")


if __name__ == "__main__":
    main()
