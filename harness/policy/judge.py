"""From a stored run and a policy to a judgement: pure, so the same rows give the same one.

Correctness is judged on this checkout's own cells, whatever the base does; speed and counts only
against the base's cells of the same run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from harness.cells.name import BASE, on_side, side_of
from harness.conditions.verdict import blemishes
from harness.judging import gates
from harness.policy.counters import COUNTERS, Count, counts
from harness.policy.family import NOISE_ERROR, Effect, Gains, is_noisy
from harness.policy.family import judge as judge_family
from harness.policy.floors import floor_findings
from harness.policy.judgement import NOISY, NOWHERE, Finding, Judgement, Status
from harness.policy.measures import METRICS, beside, by_block
from harness.policy.policy_file import MetricRule, Policy
from harness.policy.twins import pairs, shared_trials, unpaired_cells
from harness.report.numbers import counted
from harness.report.partings import partings
from harness.report.refusals import keeps_prefixes, machine_reasons
from harness.revision import SHORT, revision_text
from harness.stats import MIN_BLOCKS_VERDICT, TOLERANCE, log_ratios, percentile
from harness.store.index import Place, RunIndex
from harness.store.loaded import RunData

ALL_CELLS = "all cells"
APART = "no block has it beside the base, since trials failed and were run again; start a new run"


def judge(data: RunData, policy: Policy, *, is_strict: bool = False) -> Judgement:
    """Return what a policy makes of a run."""
    index = RunIndex(data)
    base = str(data.run.settings.get("base", ""))
    noise = tuple(_noise(index, policy))
    findings = (
        *_correctness(index, policy),
        *_coverage(index, policy, base),
        *(_counter(count, policy) for count in counts(index) if _is_wanted(count, policy)),
        *noise,
        *_metrics(index, policy, noise),
        *_untold(index, policy),
        *floor_findings(index, policy.floors, _machine(data), noisy_groups(noise)),
    )
    return Judgement(
        run=data.run,
        policy=policy.name,
        base=base,
        is_strict=is_strict,
        findings=findings,
        notes=tuple(_notes(data, base)),
    )


# -- what must be right ----------------------------------------------------------------------------


def _correctness(index: RunIndex, policy: Policy) -> Iterator[Finding]:
    rows = gates.evaluate(index.data)
    parted = {cell.place: cell for cell in partings(index.data, rows)}
    for row in rows:
        side = side_of(row.cell)
        place = Place(row.model, row.workload, row.cell)
        yield Finding(
            kind="correctness",
            name=row.name,
            place=place,
            status=row.status,
            # A base that is wrong is no fault of the head.
            is_hard=not side,
            detail=row.detail,
            observed=row.observed,
            n=row.n,
            partings=parted.get(place) if row.name == "identity" else None,
        )
    seen = {row.name for row in rows if not side_of(row.cell)}
    for name in policy.required:
        if name not in seen:
            yield _gap(name, f"the policy requires {name}, and nothing in this run shows it")


def _coverage(index: RunIndex, policy: Policy, base: str) -> Iterator[Finding]:
    """Yield what was not looked at: a gate that saw nothing is not green."""
    heads = [place for place in index.places() if not side_of(place.cell)]
    if not any(True for place in heads for _ in index.measured(index.trials(place, "done"))):
        yield _gap("requests", "no measured request of this checkout is stored")
    if index.data.run.status != "finished":
        yield _gap("run", f"the run is {index.data.run.status}, not finished; go on with --resume")
    if not base:
        if policy.require_base:
            yield _gap("base", "the policy requires a base; run fm gate --base REF")
        return
    twins = list(pairs(index))
    yield from _uncompared_groups(index, twins)
    for place, twin in twins:
        if not shared_trials(index, place, twin)[0]:
            yield from _uncompared(index, place, twin)
        elif not index.paired(place, twin):
            yield _gap("compared", APART, place)


def _uncompared_groups(index: RunIndex, twins: Sequence[tuple[Place, Place]]) -> Iterator[Finding]:
    """Yield each model and workload of which not one cell was compared."""
    seen: dict[Place, bool] = {}
    for place, twin in twins:
        group = place.other("")
        seen[group] = seen.get(group, False) or bool(shared_trials(index, place, twin)[0])
    detail = "no cell ran on both sides, so nothing was compared"
    if not seen:
        yield _gap("base", detail)
    for group, is_compared in seen.items():
        if not is_compared:
            yield _gap("base", detail, group)


def _uncompared(index: RunIndex, place: Place, twin: Place) -> Iterator[Finding]:
    """Yield why a cell was not compared: one that the base cannot run is new, and only told."""
    is_gone, is_new = index.is_skipped(place), index.is_skipped(twin)
    if is_gone and is_new:
        return
    silent = place if is_gone else twin
    reason = next((trial.reason for trial in index.trials(silent) if trial.reason), "")
    what = (
        "the base runs it and this checkout does not" if is_gone else "not compared with the base"
    )
    yield Finding(
        kind="coverage",
        name="compared",
        place=place,
        status="incomplete",
        is_hard=not is_new,
        detail=f"{what}: {reason or 'it has not run'}",
    )


def _gap(name: str, detail: str, place: Place = NOWHERE) -> Finding:
    return Finding(kind="coverage", name=name, place=place, status="incomplete", detail=detail)


# -- what is counted -------------------------------------------------------------------------------


def _is_wanted(count: Count, policy: Policy) -> bool:
    return policy.counters[count.name].mode != "off"


def _counter(count: Count, policy: Policy) -> Finding:
    rule = policy.counters[count.name]
    status, detail = _counted(count, rule.tolerance)
    return Finding(
        kind="counter",
        name=count.name,
        place=count.place,
        status=status,
        is_hard=rule.mode == "hard" and count.is_exact and count.base is not None,
        detail=detail,
        count=count,
    )


def _counted(count: Count, tolerance: float) -> tuple[Status, str]:
    what = COUNTERS[count.name].what
    told = f"{what}: {_number(count.head)} against the base's {_number(count.base)}"
    inexact = (
        ""
        if count.is_exact
        else "; adaptive budgets follow measured times, see @draft_budgets=fixed"
    )
    if count.head is None:
        return "incomplete", f"{told}; this checkout tells it no more"
    if count.base is None:
        return "incomplete", f"{told}; the base does not tell it"
    return ("fail" if count.excess > tolerance else "pass"), told + inexact


def _number(value: int | None) -> str:
    return "none" if value is None else str(value)


# -- what is measured ------------------------------------------------------------------------------


def _noise(index: RunIndex, policy: Policy) -> Iterator[Finding]:
    """Yield for each baseline that was measured twice whether it equals its repeat.

    It takes verdicts on times, and decides where one of these does.
    """
    decides = _times_decide(policy)
    repeats = [
        (place, place.other(baseline))
        for place in index.places()
        if index.cell(place).kind == "aa" and (baseline := index.cell(place).baseline)
    ]
    for repeat, place in repeats:
        logs = log_ratios(*beside(index, repeat, place, METRICS["tok_s"]))
        noisy = is_noisy(logs, error=NOISE_ERROR / len(repeats), tolerance=TOLERANCE)
        noisy = noisy or len(logs) < MIN_BLOCKS_VERDICT <= index.data.run.blocks
        ratio = math.exp(math.fsum(logs) / len(logs)) if logs else None
        yield Finding(
            kind="noise",
            name="baseline",
            place=place,
            status="inconclusive" if noisy else "pass",
            is_hard=noisy and decides,
            detail=f"{place.cell} repeated, against {place.cell}: "
            + (
                "not measured"
                if ratio is None
                else f"mean {ratio:.3f} of {counted(len(logs), 'block')}"
            ),
            n=len(logs),
        )


def _times_decide(policy: Policy) -> bool:
    """Return whether a verdict on times can change the exit."""
    metrics = any(
        rule.mode == "hard" and METRICS[name].is_timing for name, rule in policy.metrics.items()
    )
    return metrics or any(floor.mode == "hard" for floor in policy.floors)


def noisy_groups(noise: Sequence[Finding]) -> frozenset[Place]:
    """Return the models and workloads whose times deserve no verdict."""
    return frozenset(item.place.other("") for item in noise if item.status != "pass")


def _untold(index: RunIndex, policy: Policy) -> Iterator[Finding]:
    """Yield each metric of a compared cell that one side tells and the other does not."""
    for name, rule in policy.metrics.items():
        for place, twin in pairs(index) if rule.mode != "off" else ():
            head, base = (by_block(index, item, METRICS[name]) for item in (place, twin))
            if not shared_trials(index, place, twin)[0] or head.keys() & base.keys():
                continue
            if head or base:
                who = "this checkout tells it no more" if base else "the base does not tell it"
                yield Finding(
                    kind="metric",
                    name=name,
                    place=place,
                    status="incomplete",
                    is_hard=rule.mode == "hard" and bool(base),
                    detail=f"{METRICS[name].what}: {who}",
                )


def _metrics(index: RunIndex, policy: Policy, noise: Sequence[Finding]) -> Iterator[Finding]:
    """Yield every metric of every cell, and the mean over all cells, judged as one family."""
    families: dict[str, list[Gains]] = {}
    places: dict[str, list[Place]] = {}
    for name, rule in policy.metrics.items():
        for place, twin in pairs(index) if rule.mode != "off" else ():
            gains = _gains(index, place, twin, name, rule)
            if gains is not None:
                families.setdefault(name, []).append(gains)
                places.setdefault(name, []).append(place)
    machine = _machine(index.data)
    noisy = noisy_groups(noise)
    for name, effects in judge_family(families, policy.family_error).items():
        for place, effect in zip(
            [*places[name], *_whole(effects, places[name])], effects, strict=True
        ):
            timing = METRICS[name].is_timing
            doubt = _doubt(index, place, noisy) if timing else _more_held(index, place)
            yield _metric(name, policy.metrics[name], place, effect, machine, doubt)


def _doubt(index: RunIndex, place: Place, noisy: frozenset[Place]) -> str:
    """Return why the times of a comparison deserve no verdict, on whichever machine; "" if none."""
    if noisy and (place.cell == ALL_CELLS or place.other("") in noisy):
        return NOISY
    if place.cell == ALL_CELLS:
        return ""
    for side in (place, place.other(on_side(place.cell, BASE))):
        trials = index.trials(side, "done")
        cached = sum(row.cached_tokens for trial in trials if (row := index.timed(trial)))
        if cached and not keeps_prefixes(index.cell(side)):
            return f"{side.cell}: {cached} prompt tokens came from a cache"
    return ""


def _more_held(index: RunIndex, place: Place) -> str:
    """Return why the memory of both sides cannot be compared, "" where it can."""
    models = [place.model] if place.model else list(index.models)
    cells = [cell for model in models for cell in unpaired_cells(index, model)]
    return f"this checkout alone holds an engine of {', '.join(cells)}" if cells else ""


def _whole(effects: Sequence[Effect], places: Sequence[Place]) -> list[Place]:
    """Return the place of the mean over all cells, where there is one."""
    return [Place("", "", ALL_CELLS)] * (len(effects) - len(places))


def _gains(index: RunIndex, place: Place, twin: Place, name: str, rule: MetricRule) -> Gains | None:
    """Return how much better the head is in each block that both sides finished."""
    metric = METRICS[name]
    head, base = beside(index, place, twin, metric)
    blocks = sorted(head.keys() & base.keys())
    better, worse = (head, base) if metric.is_better_high else (base, head)
    gains = {
        block: gain
        for block in blocks
        for gain in log_ratios({block: better[block]}, {block: worse[block]})
    }
    if not gains:
        return None
    usual = percentile([base[block] for block in blocks], 50) or 1.0
    delta = max(rule.delta, rule.ignore_below / usual)
    limit = math.log1p(-min(delta, 0.999)) if metric.is_better_high else -math.log1p(delta)
    return Gains(
        values=tuple(gains.values()),
        limit=limit,
        is_better_high=metric.is_better_high,
        trials=tuple((place, block) for block in gains),
    )


def _metric(
    name: str,
    rule: MetricRule,
    place: Place,
    effect: Effect,
    machine: Sequence[str],
    doubt: str,
) -> Finding:
    """Return the finding of one comparison; the times of an unfit machine get no verdict.

    Args:
        doubt: why it deserves none on any machine, "" where it does.
    """
    is_hard = rule.mode == "hard"
    finding = Finding(
        kind="metric",
        name=name,
        place=place,
        status=effect.status,
        is_hard=is_hard,
        detail=effect.reason,
        n=effect.n,
        effect=effect,
    )
    if machine and is_hard and METRICS[name].is_timing:
        return replace(finding, status="refused", detail=machine[0])
    return replace(finding, status="inconclusive", detail=doubt) if doubt else finding


def _machine(data: RunData) -> tuple[str, ...]:
    """Return why the machine's times deserve no verdict; a forced run gives them all the same."""
    return machine_reasons(data.run, data.conditions)


def _notes(data: RunData, base: str) -> Iterator[str]:
    run = data.run
    head = revision_text(run.git_sha[:SHORT], is_dirty=run.git_dirty)
    yield f"head: {head}" + (f", base: {base[:SHORT]}" if base else "")
    if not base:
        yield "no base: nothing was compared; fm gate --base REF compares with a commit"
    elif base == run.git_sha and not run.git_dirty:
        yield "head and base are the same code: whatever differs is noise"
    yield from (f"machine: {reason}" for reason in blemishes(run, data.conditions))


def decisive(judgement: Judgement) -> Mapping[str, Sequence[Finding]]:
    """Return what people read first: what failed, what is missing, what could not be told."""
    hard = [item for item in judgement.findings if item.is_hard]
    order: tuple[Status, ...] = ("fail", "incomplete", "refused", "inconclusive")
    found = {status: [item for item in hard if item.status == status] for status in order}
    return {status: items for status, items in found.items() if items}
