"""What rows of a batch cost each other: `python benchmarks/batch_lane.py [MODEL]`.

Three figures, each a ratio within one run. Joining and leaving: what some steps take with it in
their midst beyond as many steps without, the joining row's own prompt apart. A late short prompt:
its time to the first token against steps of the rows that decode, its own prompt apart. A long
prompt: the largest gap between two tokens of a live row, beside one chunk and one step.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator

from engine.backend import backend_info
from engine.config import EngineConfig
from engine.loop import Engine
from engine.models.load import LoadedModel, load_model
from engine.request import Request

ROWS = 8
LONG = 2_000
SHORT = 30
REPEATS = 12
WINDOW = 8


def prompt(model: LoadedModel, length: int, start: int = 0) -> tuple[int, ...]:
    """Return a prompt of ordinary tokens."""
    return tuple(20 + (start + 7 * index) % (model.vocab_size - 40) for index in range(length))


def request(model: LoadedModel, length: int, max_tokens: int, start: int = 0) -> Request:
    """Return a row that ends by its budget alone."""
    return Request(prompt_ids=prompt(model, length, start), max_tokens=max_tokens, ignore_eos=True)


def timed_steps(engine: Engine) -> Iterator[tuple[float, set[str]]]:
    """Step for ever; yield the milliseconds and the ids that emitted."""
    while True:
        before = time.perf_counter()
        events = engine.step()
        yield (time.perf_counter() - before) * 1e3, {event.request_id for event in events}


def steps_until(engine: Engine, request_id: str) -> tuple[float, int]:
    """Step until a row emits; return the milliseconds and the number of steps."""
    total_ms = 0.0
    for count, (ms, emitted) in enumerate(timed_steps(engine), start=1):
        total_ms += ms
        if request_id in emitted:
            return total_ms, count
    raise AssertionError("unreachable")


def median_step_ms(engine: Engine, count: int = 5) -> float:
    """Return the median of some steps of the rows as they are."""
    steps = timed_steps(engine)
    return statistics.median(next(steps)[0] for _ in range(count))


def long_rows(model: LoadedModel, num_rows: int, max_rows: int) -> tuple[Engine, list[str]]:
    """Return an engine in which rows of 2,000 tokens decode."""
    engine = Engine(model, EngineConfig(max_rows=max_rows))
    ids = engine.submit_copies(request(model, LONG, 1_500), num_rows)
    seen: set[str] = set()
    for _, emitted in timed_steps(engine):
        seen |= emitted
        if len(seen) == num_rows:
            return engine, ids
    raise AssertionError("unreachable")


def report(name: str, ratios: list[float], unit: str) -> None:
    """Print the median of some ratios with their quartiles."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"{name}: {middle:.3f} {unit} (quartiles {low:.3f}, {high:.3f}; n {len(ratios)})")


def window(engine: Engine) -> tuple[float, int]:
    """Run some steps; return the milliseconds they took and how many of them were decode steps."""
    total_ms, decodes = 0.0, 0
    steps = timed_steps(engine)
    while decodes < WINDOW:
        total_ms += next(steps)[0]
        decodes += engine.last_step is not None and engine.last_step.is_decode
    return total_ms, decodes


def join_and_leave(model: LoadedModel) -> None:
    """Print what it costs a batch of eight that a row joins or leaves it."""
    prompt_ms = prompt_alone_ms(model, 1)
    engine, _ = long_rows(model, ROWS - 1, ROWS)
    joins, leaves = [], []
    for _ in range(REPEATS):
        guest = engine.submit(request(model, 1, 1_000))
        joining_ms, _ = window(engine)
        step_ms = window(engine)[0] / WINDOW
        joins.append((joining_ms - prompt_ms) / step_ms - WINDOW)
        engine.cancel(guest)
        leaving_ms, _ = window(engine)
        step_ms = window(engine)[0] / WINDOW
        leaves.append(leaving_ms / step_ms - WINDOW)
    report("a row joins a batch of eight", joins, "steps")
    report("a row leaves a batch of eight", leaves, "steps")


def prompt_alone_ms(model: LoadedModel, length: int) -> float:
    """Return the median time of a prompt on an idle engine."""
    engine = Engine(model, EngineConfig())
    times = [
        steps_until(engine, engine.submit(request(model, length, 1, start)))[0]
        for start in range(5)
    ]
    return statistics.median(times)


def late_short_prompt(model: LoadedModel) -> None:
    """Print the time to the first token of a short prompt while four long rows decode."""
    prefill_ms = prompt_alone_ms(model, SHORT)
    engine, _ = long_rows(model, 4, ROWS)
    ratios, counts = [], []
    for start in range(REPEATS):
        step_ms = median_step_ms(engine)
        late_ms, count = steps_until(engine, engine.submit(request(model, SHORT, 1, start)))
        ratios.append((late_ms - prefill_ms) / step_ms)
        counts.append(count)
    report("late short prompt, beyond its own prompt", ratios, "steps of four rows")
    print(f"  in {max(counts)} engine steps at most, its own prompt among them")


def long_prompt_beside(model: LoadedModel) -> None:
    """Print the largest gap of a live row while a prompt of 2,000 tokens is computed."""
    config = EngineConfig(max_rows=2)
    engine = Engine(model, config)
    live = engine.submit(request(model, SHORT, 1_000))
    steps_until(engine, live)
    step_ms = median_step_ms(engine)
    newcomer = engine.submit(request(model, LONG, 2, start=3))
    gaps, chunks, gap_ms = [], [], 0.0
    for ms, emitted in timed_steps(engine):
        gap_ms += ms
        if engine.last_step is not None and not engine.last_step.is_decode:
            chunks.append(ms)
        if live in emitted:
            gaps.append(gap_ms)
            gap_ms = 0.0
        if newcomer in emitted:
            break
    print(
        f"long prompt beside a live row: largest gap {max(gaps):.0f} ms, chunks of "
        f"{config.interleaved_prefill} columns up to {max(chunks):.0f} ms, a step {step_ms:.0f} ms"
    )


def main() -> None:
    """Run all three."""
    model = load_model(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
    info = backend_info()
    print(f"{model.name} {model.dtype}, {info.device}, {info.blas_name} x{info.blas_threads}")
    join_and_leave(model)
    late_short_prompt(model)
    long_prompt_beside(model)


if __name__ == "__main__":
    main()
