"""The calibration of the harness: what docs/method.md promises, computed again.

Simulated sessions, whole runs of a metronome, its overhead in real time, a build against itself.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from engine.errors import FmError
from harness import exit_codes
from harness.calibration.known import known_effects
from harness.calibration.overhead import Overhead, measure_in_process, measure_over_http
from harness.calibration.rehearsal import rehearse
from harness.calibration.simulate import (
    NOMINAL,
    SCENARIOS,
    Scenario,
    detectable,
    found_at,
    in_any,
    in_one_go,
    invented,
    margin,
    mirrored,
    one_after_another,
    shuffled,
    simulate,
    spread,
    unluckiest,
)
from harness.machine import read_machine
from harness.planning.choices import PRESETS, Choices
from harness.report.gfm import table
from harness.stats import POWER, SIGNED_RANK_REACH, detectable_change
from harness.store import utc_now
from harness.targets.in_process import local_target

PARTS = ("simulation", "orders", "detectable", "runs", "overhead", "http", "self")
PRESETS_WITH_VERDICT = ("gate", "quote")
ORDER_SEEDS = 10
SPREAD = 0.04
"""Of log-ratios; the share that finds a detectable change hangs on it hardly."""

NOISES = (0.01, 0.02, 0.03, 0.04, 0.06)
EFFECTS = (0.05, 0.08)
SHORT, LONG = (32, 32), (8, 256)
"""Prompts a trial and tokens a reply of the overhead: short replies in process, so that a busy
machine leaves some of them alone; long ones over HTTP, where a late event is little of a reply."""

Say = Callable[[str], None]


@dataclass(slots=True)
class Calibration:
    """What was found, and what of it breaks a promise."""

    say: Say
    figures: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def expect(self, is_kept: bool, promise: str) -> None:
        """Take note of a promise that is not kept."""
        if not is_kept:
            self.failures.append(promise)

    def simulation(self, sessions: int) -> None:
        """Simulate sessions at no effect, and with one."""
        for preset in PRESETS_WITH_VERDICT:
            blocks = PRESETS[preset].blocks
            self._no_effect(preset, blocks, sessions)
            self._power(preset, blocks, sessions)

    def orders(self, sessions: int) -> None:
        """Compare orders of running on a machine that drifts."""
        blocks = PRESETS["gate"].blocks
        machine = Scenario(name="noise 1 %, drift 6 %", noise=0.01, drift=0.06)
        shares = {
            layout.__name__: invented(machine, blocks, sessions, layout)
            for layout in (mirrored, one_after_another)
        }
        self.say(
            f"{machine.name}: equal cells are told apart in "
            f"{_percent(shares['one_after_another'])} % of sessions that run one cell after "
            f"another, in {_percent(shares['mirrored'])} % of ours"
        )
        steep = Scenario(
            name="noise 1 %, drift 1 % a trial, 9 cells", noise=0.01, drift=0.62, cells=9
        )
        few = max(1, sessions // 20)
        for layout in (shuffled, mirrored):
            worst = [unluckiest(steep, blocks, few, layout, seed) for seed in range(ORDER_SEEDS)]
            shares[f"unluckiest pair, {layout.__name__}"] = sum(worst) / len(worst)
            self.say(
                f"{steep.name}, {layout.__name__}: the unluckiest of 36 pairs of equal cells is "
                f"told apart in {_percent(sum(worst) / len(worst))} % of sessions of one seed, "
                f"{_percent(max(worst))} % at the worst of {ORDER_SEEDS} seeds"
            )
        for turns, memory in ((4, 0.5), (24, 0.9)):
            wave = Scenario(
                name=f"noise 15 %, memory {memory}, 9 cells, {turns} turns",
                noise=0.15,
                autocorrelation=memory,
                cells=9,
                turns=turns,
            )
            found = {
                layout.__name__: spread(wave, blocks, sessions // 10, layout)
                for layout in (in_one_go, mirrored)
            }
            shares |= {f"spread, {wave.name}, {name}": value for name, value in found.items()}
            self.say(
                f"{wave.name}: ratios of equal cells vary by {_percent(found['in_one_go'])} % "
                "between blocks where a trial runs in one go, "
                f"by {_percent(found['mirrored'])} % where trials take turns"
            )
        many = Scenario(name="noise 3 %, 9 cells", noise=0.03, cells=9)
        shares["any of 7 ratios"] = in_any(many, blocks, sessions // 4)
        self.figures["orders"] = shares
        self.say(
            f"{many.name}: at least one of 7 equal cells told apart in "
            f"{_percent(shares['any of 7 ratios'])} % of {sessions // 4} sessions"
        )

    def detectable(self, sessions: int) -> None:
        """See that the change printed as detectable is found in 80 % of sessions."""
        rows, kept = [], {}
        for blocks in (6, 7, 8, 10):
            change = detectable_change(SPREAD, blocks)
            plain = math.expm1(math.log1p(change) / SIGNED_RANK_REACH[blocks])
            found = [found_at(item, SPREAD, blocks, sessions) for item in (change, plain)]
            kept[f"{blocks}"] = found
            rows.append((f"{blocks}", *map(_percent, found)))
            is_true = abs(found[0] - POWER) <= 0.01 + margin(POWER, sessions)
            self.expect(is_true, f"detectable in {blocks} blocks: found in {found[0]:.3f}")
        self.figures["detectable"] = kept
        title = f"The detectable change, percent of {sessions} sessions that find it"
        self._show(title, ("blocks", "as printed", "by Student's formula alone"), rows)

    def runs(self, runs: int) -> None:
        """Run metronomes of known effects from plan to report."""
        found = known_effects(runs)
        self.figures["runs"] = {cell: asdict(item) for cell, item in found.items()}
        rows = [
            (
                cell,
                f"{100 * item.effect:+.0f} %",
                f"{item.covered} of {item.runs}",
                *(str(item.verdicts.get(word, 0)) for word in VERDICTS),
            )
            for cell, item in found.items()
        ]
        head = ("cell", "true effect", "interval holds it", *VERDICTS)
        self._show(f"Whole runs of a metronome, {runs} of preset gate", head, rows)
        for cell, item in found.items():
            wrong = {"slower"} if item.effect > 0 else {"faster"}
            wrong = {"faster", "slower"} if not item.effect else wrong
            most = NOMINAL + margin(NOMINAL, item.runs)
            share = sum(item.verdicts.get(word, 0) for word in wrong) / item.runs
            self.expect(share <= most, f"{cell}: a wrong verdict in {100 * share:.1f} % of runs")

    def overhead(self, found: Overhead) -> None:
        """Judge what the harness adds to what it measures."""
        self.figures[found.target] = found.as_dict()
        gap = "" if found.gap_s is None else f", {1e6 * found.gap_s:.1f} us between steps"
        self.say(
            f"Overhead {found.target}: {found.replies} replies, {found.steady} of them steady; "
            f"{found.tok_s:.1f} tok/s, rate {100 * found.rate_error:+.2f} %, TTFT "
            f"{1000 * found.ttft_error_s:+.3f} ms{gap}"
        )
        self.expect(found.is_small, f"overhead {found.target}: over 1 % or 1 ms")

    def itself(self, model: str) -> None:
        """Run one build twice in each block, and compare it with itself."""
        choices = Choices(
            cells=("serial",), models=(model,), workloads=("short-chat",), preset="gate"
        )
        target = local_target(tell=self.say)
        try:
            report = rehearse(choices, target)
        finally:
            target.close()
        noise = report.groups[0].noise
        if noise is None or noise.ratio.cv is None:
            raise FmError(f"the run did not come to its end: {report.failures}")
        ratio = noise.ratio
        # The spread of a ratio is that of two trials.
        trial_noise = noise.ratio.cv / math.sqrt(2)
        self.figures["self"] = {"model": model, **asdict(ratio), "trial_noise": trial_noise}
        self.say(
            f"{model} against itself: {ratio.estimate:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] in "
            f"{ratio.n} blocks, noise of a trial {100 * trial_noise:.1f} %; "
            f"{'; '.join(report.refusals) or 'not told apart'}"
        )

    def _no_effect(self, preset: str, blocks: int, sessions: int) -> None:
        rows, kept = [], []
        for scenario in SCENARIOS:
            tally = simulate(scenario, blocks=blocks, sessions=sessions)
            kept.append({"scenario": asdict(scenario), "tally": asdict(tally)})
            rows.append(
                (
                    scenario.name,
                    *map(
                        _percent,
                        (
                            tally.different,
                            tally.different_when_given,
                            tally.share("same"),
                            tally.share("unclear"),
                            tally.share("refused"),
                            tally.by_noise_floor / sessions,
                            tally.covered / sessions,
                        ),
                    ),
                )
            )
            most = NOMINAL + margin(NOMINAL, sessions)
            self.expect(
                tally.different <= most,
                f"{preset}, {scenario.name}: {100 * tally.different:.1f} % false differences",
            )
        self.figures[f"no effect, {preset}"] = kept
        title = f"No effect, {preset}: {blocks} blocks, {sessions} sessions, percent of them"
        self._show(title, NO_EFFECT_HEAD, rows)

    def _power(self, preset: str, blocks: int, sessions: int) -> None:
        rows, kept = [], []
        for noise in NOISES:
            machine = Scenario(name=f"noise {_percent(noise)} %", noise=noise)
            found = {
                effect: simulate(machine, blocks=blocks, sessions=sessions, effect=-effect)
                for effect in EFFECTS
            }
            kept.append({"noise": noise, **{f"{key}": asdict(item) for key, item in found.items()}})
            shares = [_percent(item.share("slower")) for item in found.values()]
            intervals = [_percent(item.excludes_one / sessions) for item in found.values()]
            pairs = [f"{a} ({b})" for a, b in zip(shares, intervals, strict=True)]
            rows.append((machine.name, *pairs, _percent(detectable(noise, blocks))))
        self.figures[f"power, {preset}"] = kept
        title = (
            f"Power, {preset}: {blocks} blocks, {sessions} sessions; percent called slower "
            "(interval excludes 1)"
        )
        self._show(title, ("machine", "5 % slower", "8 % slower", "detectable %"), rows)

    def _show(self, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        columns = [(name, place > 0) for place, name in enumerate(head)]
        self.say(f"\n{title}\n\n{table(columns, rows)}\n")


VERDICTS = ("faster", "slower", "same", "unclear", "refused")
NO_EFFECT_HEAD = (
    "machine",
    "false difference",
    "of those given",
    "same",
    "unclear",
    "refused",
    "by A/A",
    "interval holds 1",
)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


@click.command(help=__doc__)
@click.option("--only", type=click.Choice(PARTS), multiple=True, help="Parts; all when none given.")
@click.option("--sessions", type=click.IntRange(100), default=4000, show_default=True)
@click.option("--runs", type=click.IntRange(1), default=300, show_default=True)
@click.option("--model", default="smollm2-135m", show_default=True, help="Runs against itself.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, writable=True))
def main(only: Sequence[str], sessions: int, runs: int, model: str, json_path: str | None) -> None:
    """Calibrate; exits 3 when a promise is not kept."""
    found = Calibration(say=click.echo)
    work: Mapping[str, Callable[[], None]] = {
        "simulation": lambda: found.simulation(sessions),
        "orders": lambda: found.orders(sessions),
        "detectable": lambda: found.detectable(sessions),
        "runs": lambda: found.runs(runs),
        "overhead": lambda: found.overhead(measure_in_process(*SHORT)),
        "http": lambda: found.overhead(measure_over_http(*LONG)),
        "self": lambda: found.itself(model),
    }
    for part in only or PARTS:
        began = time.monotonic()
        try:
            work[part]()
        except FmError as error:
            found.failures.append(f"{part}: {error}")
        click.echo(f"{part}: {time.monotonic() - began:.0f} s", err=True)
    if json_path is not None:
        about = {"created_at": utc_now(), "machine": read_machine().as_dict()}
        content = {**about, "failures": found.failures, **found.figures}
        Path(json_path).write_text(json.dumps(content, indent=1), encoding="utf-8")
    for failure in found.failures:
        click.echo(f"not kept: {failure}")
    sys.exit(exit_codes.CORRECTNESS if found.failures else exit_codes.PASS)


if __name__ == "__main__":
    main()
