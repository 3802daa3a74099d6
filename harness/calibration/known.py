"""Whole runs of a metronome: effects that are known, and a build against itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from harness.calibration.metronome import MetronomeTarget, Pace
from harness.calibration.rehearsal import rehearse
from harness.planning.choices import Choices

STEP_S = 0.02
EFFECTS = {"serial+spec": 0.08, "serial+spec@two-model": -0.05, "serial+spec@self": 0.0}
"""By how much each cell is faster than `serial`."""

PROMPTS, TOKENS = 2, 20
"""Of a trial: few, since its noise is set for the trial and not for its length."""

MACHINE = Pace(
    noise=0.015,
    step_noise=0.05,
    drift_per_trial=0.001,
    outlier_rate=0.02,
    outlier_factor=1.1,
)
AUTOCORRELATION = 0.3


@dataclass(slots=True)
class Found:
    """What many runs said of one cell.

    Attributes:
        effect: the true one.
        covered: runs whose interval holds it.
    """

    effect: float
    runs: int = 0
    covered: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)


def known_effects(runs: int, preset: str = "gate") -> dict[str, Found]:
    """Return what runs with seeds of their own say of cells whose effects are known."""
    found = {cell: Found(effect) for cell, effect in EFFECTS.items()}
    choices = Choices(
        cells=tuple(EFFECTS),
        workloads=("short-chat",),
        preset=preset,
        prompts=PROMPTS,
        max_tokens=TOKENS,
    )
    for seed in range(runs):
        target = MetronomeTarget(_paces(), seed, autocorrelation=AUTOCORRELATION)
        report = rehearse(replace(choices, seed=seed), target)
        for cell in report.cells:
            if cell.place.cell in found and cell.main is not None:
                ratio, into = cell.main.ratio, found[cell.place.cell]
                assert ratio.low is not None
                assert ratio.high is not None
                into.runs += 1
                word = ratio.verdict or "refused"
                into.verdicts[word] = into.verdicts.get(word, 0) + 1
                into.covered += ratio.low <= 1 + into.effect <= ratio.high
    return found


def _paces() -> dict[str, Pace]:
    effects = {"serial": 0.0, **EFFECTS}
    return {
        cell: replace(MACHINE, step_s=STEP_S / (1 + effect)) for cell, effect in effects.items()
    }
