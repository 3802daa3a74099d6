"""What `fm plan` shows: plain aligned lines, or JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from harness.commands.columns import aligned
from harness.planning.forecast import STATED_STEPS_PER_S, Forecast, PairForecast, Source
from harness.running.progress import duration
from harness.store.codec import clean

HEADINGS = ("model", "workload", "cell", "kind", "against", "tokens", "time", "known by")


def plan_lines(plan: Forecast) -> list[str]:
    """Return what a matrix would run, pair by pair, then what it would not and why."""
    choices = plan.matrix.choices
    amounts = choices.amounts()
    cap = amounts.max_tokens or "the workload's own"
    notes = [plan.note] if plan.note else []
    return [
        (
            f"preset {choices.preset}: {amounts.blocks} blocks of {amounts.prompts} "
            f"prompts, cap {cap}, temperature {choices.temperature:g}, "
            f"seed {choices.seed}, target {choices.target}"
        ),
        (
            f"{sum(item.trials for item in plan.pairs)} trials, "
            f"{sum(item.requests for item in plan.pairs)} requests"
        ),
        _time(plan),
        *notes,
        "",
        *aligned([HEADINGS, *(_pair_row(item) for item in plan.pairs)]),
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


def _time(plan: Forecast) -> str:
    """Return the time in all, and what it is known by."""
    words: dict[Source, str] = {
        "past run": "by what they took in past runs on this machine",
        "this model": "by what other cells of the model took",
        "stated rate": f"at a stated {STATED_STEPS_PER_S:g} decode steps a second",
    }
    parts = [f"{plan.sources[source]} {text}" for source, text in words.items()]
    known = [part for part in parts if not part.startswith("0 ")]
    pairs = f", pairs: {'; '.join(known)}" if known else ""
    return f"about {duration(plan.seconds)}, loading models not counted{pairs}"


def _pair_row(item: PairForecast) -> tuple[str, ...]:
    pair, estimate = item.pair, item.estimate
    return (
        pair.model,
        pair.workload.name,
        pair.cell.name,
        pair.cell.kind.value,
        pair.baseline or "",
        str(pair.max_tokens),
        "" if estimate is None else duration(estimate.seconds),
        f"skipped: {pair.skip_reason}" if estimate is None else estimate.source,
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
