"""What `fm plan` shows: plain aligned lines, or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from harness.commands.columns import aligned
from harness.planning.forecast import STATED_STEPS_PER_S, Forecast, PairForecast, Source
from harness.report.numbers import counted
from harness.report.visible import one_line
from harness.running.progress import duration
from harness.store.codec import clean

HEADINGS = ("cell", "against", "tokens", "time", "known by")


def plan_lines(plan: Forecast) -> list[str]:
    """Return what a matrix would run, a table for each model and workload, and what it skips."""
    choices = plan.matrix.choices
    amounts = choices.amounts()
    cap = amounts.max_tokens or "the workload's own"
    notes = [plan.note] if plan.note else []
    return [
        (
            f"preset {choices.preset}: {counted(amounts.blocks, 'block')} of "
            f"{counted(amounts.prompts, 'prompt')}, cap {cap}, "
            f"temperature {choices.temperature:g}, seed {choices.seed}"
        ),
        (
            f"{sum(item.trials for item in plan.pairs)} trials, "
            f"{sum(item.requests for item in plan.pairs)} requests, target {choices.target}"
        ),
        *_time(plan),
        *notes,
        *(line for part in _parts(plan) for line in _part_lines(part)),
        "",
        f"plan {plan.matrix.digest[:16]}",
    ]


def plan_json(plan: Forecast) -> str:
    """Return the plan for programs; absent values are null."""
    choices, amounts = plan.matrix.choices, plan.matrix.choices.amounts()
    content = {
        "schema_version": 1,
        "plan": plan.matrix.digest,
        "preset": choices.preset,
        **asdict(amounts),
        "temperature": choices.temperature,
        "seed": choices.seed,
        "target": choices.target,
        "tag": choices.tag,
        "trials": sum(item.trials for item in plan.pairs),
        "requests": sum(item.requests for item in plan.pairs),
        "seconds": round(plan.seconds, 3),
        "stated_steps_per_s": STATED_STEPS_PER_S,
        "pairs": [_pair_object(item) for item in plan.pairs],
    }
    return json.dumps(clean(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _parts(plan: Forecast) -> Iterable[Sequence[PairForecast]]:
    """Return the pairs of each model and workload, in the order of the plan."""
    parts: dict[tuple[str, str], list[PairForecast]] = {}
    for item in plan.pairs:
        parts.setdefault((item.pair.model, item.pair.workload.name), []).append(item)
    return parts.values()


def _part_lines(part: Sequence[PairForecast]) -> list[str]:
    """Return the table of one model on one workload, then its cells that are skipped."""
    pair = part[0].pair
    rows = [_pair_row(item) for item in part if item.estimate is not None]
    skipped: dict[str, list[str]] = {}
    for item in part:
        if item.estimate is None:
            skipped.setdefault(item.pair.skip_reason, []).append(item.pair.cell.name)
    return [
        "",
        one_line(f"{pair.model} on {pair.workload.name}"),
        *(aligned([HEADINGS, *rows]) if rows else ()),
        *(one_line(f"skipped {', '.join(cells)}: {why}") for why, cells in skipped.items()),
    ]


def _time(plan: Forecast) -> list[str]:
    """Return the time in all, and what it is known by."""
    words: dict[Source, str] = {
        "past run": "by what they took in past runs on this machine",
        "this model": "by what other cells of the model took",
        "stated rate": f"at a stated {STATED_STEPS_PER_S:g} decode steps a second",
    }
    return [
        f"about {duration(plan.seconds)}, loading models not counted",
        *(
            f"  {counted(plan.sources[source], 'pair')} {text}"
            for source, text in words.items()
            if plan.sources[source]
        ),
    ]


def _pair_row(item: PairForecast) -> tuple[str, ...]:
    pair, estimate = item.pair, item.estimate
    return (
        pair.cell.name,
        pair.baseline or "",
        str(pair.max_tokens),
        "" if estimate is None else duration(estimate.seconds),
        "" if estimate is None else estimate.source,
    )


def _pair_object(item: PairForecast) -> dict[str, object]:
    pair, estimate = item.pair, item.estimate
    return {
        "model": pair.model,
        "workload": pair.workload.name,
        "cell": pair.cell.name,
        "kind": pair.cell.kind.value,
        "baseline": pair.baseline,
        "reference": pair.reference,
        "max_tokens": pair.max_tokens,
        "trials": item.trials,
        "requests": item.requests,
        "seconds": None if estimate is None else round(estimate.seconds, 3),
        "seconds_by": None if estimate is None else estimate.source,
        "past_run": estimate.run_id or None if estimate is not None else None,
        "skipped": pair.skip_reason or None,
    }
