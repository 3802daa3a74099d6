"""Runs with a base, hand-written or on the metronome, and what a policy makes of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.calibration.metronome import MetronomeTarget, Pace
from harness.calibration.rehearsal import rehearse
from harness.planning.choices import Choices
from harness.policy.judge import judge
from harness.policy.judgement import Finding, Judgement
from harness.policy.policy_file import Policy, load_policy
from harness.store import EvalStore, RequestRow
from tests.harness.jobs import PEOPLE
from tests.harness.store.sample_run import CELLS, Sample, cell, reply

BASE_SHA = "b" * 40
BLOCKS = 7
CELLS_MEASURED = (
    "serial",
    "spec@draft_budgets=fixed",
    "grammar",
    "spec+grammar@draft_budgets=fixed",
)


def alone() -> Sample:
    """Return an empty run that was compared with nothing."""
    return Sample(run={"status": "finished"})


def compared(**run: Any) -> Sample:
    """Return an empty run that was compared with a base."""
    fixed = {"drafter": "ngram", "num_draft_tokens": 4, "draft_budgets": "fixed"}
    own = [
        cell("serial"),
        cell("serial+grammar", baseline="serial"),
        cell("serial+spec", baseline="serial", reference="serial"),
        cell(
            "serial+spec@draft_budgets=fixed", baseline="serial", reference="serial", settings=fixed
        ),
    ]
    twins = [
        replace(
            row,
            name=f"{row.name}@base",
            content_hash=f"{row.content_hash}@base",
            baseline=row.baseline and f"{row.baseline}@base",
            reference=row.reference and f"{row.reference}@base",
        )
        for row in own
    ]
    known = {**CELLS, **{row.name: row for row in (*own, *twins)}}
    settings = {
        "settings": {"base": BASE_SHA},
        "git_sha": "a" * 40,
        "blocks": BLOCKS,
        "status": "finished",
    }
    return Sample(run={**settings, **run}, cells=known)


def both(
    sample: Sample,
    name: str = "serial",
    head: Callable[[int], Mapping[str, Any]] = lambda block: {},
    base: Callable[[int], Mapping[str, Any]] = lambda block: {},
    blocks: int = BLOCKS,
) -> Sample:
    """Add trials of one cell on both sides; `head` and `base` give what a block is to hold."""
    for block in range(blocks):
        sample.add(name, block, **head(block))
        sample.add(f"{name}@base", block, **base(block))
    return sample


def judged(
    sample: Sample, folder: Path, policy: str | Policy = "default", **options: Any
) -> Judgement:
    """Store a run and judge what is stored."""
    rules = load_policy(policy) if isinstance(policy, str) else policy
    return judge(sample.load(folder), rules, **options)


def found(judgement: Judgement, kind: str, name: str, where: str | None = None) -> Finding:
    """Return the only finding of a name, in one cell where that is given."""
    (finding,) = [
        item
        for item in judgement.findings
        if (item.kind, item.name) == (kind, name) and where in (None, item.place.cell)
    ]
    return finding


def drafting(drafted: int, accepted: int, calls: int) -> list[RequestRow]:
    """Return one reply with these counts."""
    return [reply(drafted=drafted, accepted=accepted, target_calls=calls, illegal_drafts=0)]


# -- the metronome ---------------------------------------------------------------------------------

USUAL = {
    "serial": Pace(step_s=0.0200, ttft_s=0.10),
    "serial+spec@draft_budgets=fixed": Pace(step_s=0.0240, ttft_s=0.10, tokens_per_step=2),
    "serial+grammar": Pace(step_s=0.0210, ttft_s=0.11, mask_s=0.0004),
    "serial+spec+grammar@draft_budgets=fixed": Pace(
        step_s=0.0260, ttft_s=0.11, tokens_per_step=2, mask_s=0.0004
    ),
}
"""Speeds as a small model has them on two cores."""

NOISE = {"noise": 0.01, "step_noise": 0.03, "outlier_rate": 0.01, "outlier_factor": 1.3}
"""What a quiet machine adds: 1 % a trial, 3 % a step; one trial in a hundred takes 1.3 times."""

USUALLY = {"host_s": 0.002, "drift_per_trial": 0.0005, **NOISE}
"""What all of them share: the host's part of a step, and a machine that warms up."""


def metronome_gate(
    seed: int, change: Callable[[Pace], Pace] = lambda pace: pace, policy: str = "default"
) -> Judgement:
    """Judge a head that is a changed base, on a machine with noise, autocorrelation and drift."""
    noisy = {name: replace(pace, **USUALLY) for name, pace in USUAL.items()}
    speeds = {name: change(pace) for name, pace in noisy.items()}
    speeds |= {f"{name}@base": pace for name, pace in noisy.items()}
    choices = Choices(
        cells=CELLS_MEASURED,
        models=("metronome",),
        workloads=("people",),
        preset="gate",
        prompts=2,
        max_tokens=12,
        base=BASE_SHA,
        seed=seed,
    )
    target = MetronomeTarget(speeds, seed=seed, autocorrelation=0.5)
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "fm.db"
        report = rehearse(choices, target, workloads={"people": FULL_PEOPLE}, db=db)
        with EvalStore.open_existing(db) as store:
            data = store.load_run(report.run.run_id)
    return judge(data, load_policy(policy))


def failed(judgement: Judgement) -> set[tuple[str, str]]:
    """Return kind and name of what decides and failed."""
    hard = [item for item in judgement.findings if item.is_hard and item.status == "fail"]
    return {(item.kind, item.name) for item in hard}


FULL_PEOPLE = replace(
    PEOPLE,
    prompts=tuple(
        replace(prompt, expected={"sex": "f", "age": 30 + place})
        for place, prompt in enumerate(PEOPLE.prompts)
    ),
    warmup=tuple(replace(prompt, expected={"sex": "m", "age": 7}) for prompt in PEOPLE.warmup),
)
