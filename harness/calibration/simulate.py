"""The verdict chain on made-up speeds: how often it invents a difference, how often it finds one.

A session is what a run is to its report: blocks in their mirrored orders, a machine that disturbs
turn after turn, the baseline twice in each block. Orders, ratios, noise floor and verdicts come
from the modules that serve real runs; only the speeds are drawn.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean, stdev

from harness.calibration.disturbance import Disturbances
from harness.calibration.metronome import Pace
from harness.planning.shuffle import mirrored_orders, turns_of_blocks
from harness.report.figures import Against
from harness.report.refusals import noise_refusals
from harness.stats import (
    CONFIDENCE,
    Ratio,
    compare,
    detectable_change,
    estimate,
    judge,
    log_ratios,
)
from harness.store.index import Place

BASELINE, REPEAT, CANDIDATE = 0, 1, 2
"""Cells of a session; any further ones only take their places in the order."""

PLACE = Place("simulated", "simulated", "serial@aa")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A machine, as it disturbs a session.

    Args:
        noise: standard deviation of the logarithm of a turn's time.
        autocorrelation: of the noise, from one turn to the next.
        drift: of the logarithm of the time, from the first trial of the session to the last.
        outlier_rate, outlier_factor: share of turns that take so many times as long.
        cells: in a block, the baseline's repeat included.
        turns: of each trial.
    """

    name: str
    noise: float
    autocorrelation: float = 0.0
    drift: float = 0.0
    outlier_rate: float = 0.0
    outlier_factor: float = 1.0
    cells: int = 3
    turns: int = 1

    def pace(self, blocks: int) -> Pace:
        """Return the pace of every cell; the candidate's effect comes on top."""
        return Pace(
            noise=self.noise,
            drift_per_trial=self.drift / max(1, self.cells * blocks - 1),
            outlier_rate=self.outlier_rate,
            outlier_factor=self.outlier_factor,
        )


SCENARIOS = (
    Scenario(name="noise 1 %", noise=0.01),
    Scenario(name="noise 3 %", noise=0.03),
    Scenario(name="noise 6 %", noise=0.06),
    Scenario(name="noise 2 %, drift 6 %", noise=0.02, drift=0.06),
    Scenario(name="noise 2 %, drift 30 %", noise=0.02, drift=0.30),
    Scenario(name="noise 1 %, drift 86 %, 9 cells", noise=0.01, drift=0.62, cells=9),
    Scenario(name="noise 5 %, memory 0.5", noise=0.05, autocorrelation=0.5),
    Scenario(name="noise 5 %, memory 0.9, 9 cells", noise=0.05, autocorrelation=0.9, cells=9),
    Scenario(
        name="noise 2 %, 5 % outliers x 1.3", noise=0.02, outlier_rate=0.05, outlier_factor=1.3
    ),
    Scenario(name="noise 2 %, 5 % outliers x 2", noise=0.02, outlier_rate=0.05, outlier_factor=2.0),
    Scenario(
        name="noise 3 %, memory 0.7, drift 10 %, 5 % outliers x 1.3",
        noise=0.03,
        autocorrelation=0.7,
        drift=0.10,
        outlier_rate=0.05,
        outlier_factor=1.3,
    ),
    Scenario(
        name="noise 5 %, memory 0.9, 9 cells, 4 turns",
        noise=0.05,
        autocorrelation=0.9,
        cells=9,
        turns=4,
    ),
    Scenario(
        name="noise 15 %, memory 0.9, 3 cells, 24 turns", noise=0.15, autocorrelation=0.9, turns=24
    ),
    Scenario(
        name="noise 3 %, memory 0.7, drift 10 %, 5 % outliers x 1.3, 4 turns",
        noise=0.03,
        autocorrelation=0.7,
        drift=0.10,
        outlier_rate=0.05,
        outlier_factor=1.3,
        turns=4,
    ),
)
"""Machines on which nothing differs; the verdicts have to say so."""


Layout = Callable[[Scenario, int, str], Iterator[tuple[int, int]]]
"""From a scenario, the number of blocks, and a seed to (block, cell) of each turn as they run."""


@dataclass(slots=True)
class Tally:
    """What sessions came to.

    Attributes:
        verdicts: how often each was given; "refused" where none was.
        by_noise_floor, by_spread: refused since the baseline differs from itself, or since the
            ratio varies too much.
        excludes_one: sessions whose interval excludes 1, whatever was refused or tolerated.
        covered: sessions whose interval holds the true ratio.
    """

    sessions: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    by_noise_floor: int = 0
    by_spread: int = 0
    excludes_one: int = 0
    covered: int = 0

    def share(self, *verdicts: str) -> float:
        """Return the share of all sessions that gave one of the verdicts."""
        return sum(self.verdicts.get(verdict, 0) for verdict in verdicts) / self.sessions

    @property
    def different(self) -> float:
        """Share of all sessions that gave `faster` or `slower`."""
        return self.share("faster", "slower")

    @property
    def different_when_given(self) -> float:
        """Share of `faster` or `slower` among the sessions that gave any verdict."""
        given = 1 - self.share("refused")
        return self.different / given if given else 0.0

    def add(self, ratio: Ratio, is_noise: bool, effect: float) -> None:
        """Count one session."""
        assert ratio.low is not None
        assert ratio.high is not None
        self.sessions += 1
        word = ratio.verdict or "refused"
        self.verdicts[word] = self.verdicts.get(word, 0) + 1
        self.by_noise_floor += is_noise
        self.by_spread += len(ratio.refusals) > is_noise
        self.excludes_one += ratio.low > 1 or ratio.high < 1
        self.covered += ratio.low <= 1 + effect <= ratio.high


def mirrored(machine: Scenario, blocks: int, seed: str) -> Iterator[tuple[int, int]]:
    """Yield the order in which runs go."""
    turns = [machine.turns] * machine.cells
    for block, places in enumerate(turns_of_blocks(turns, blocks, seed)):
        owners = {place: cell for cell, taken in enumerate(places) for place in taken}
        for place in sorted(owners):
            yield block, owners[place]


def in_one_go(machine: Scenario, blocks: int, seed: str) -> Iterator[tuple[int, int]]:
    """Yield an order in which a trial takes all its turns in a row."""
    for block, order in enumerate(mirrored_orders(machine.cells, blocks, seed)):
        for cell in order:
            yield from [(block, cell)] * machine.turns


def one_after_another(machine: Scenario, blocks: int, _seed: str) -> Iterator[tuple[int, int]]:
    """Yield the order of scripts that finish a cell before they begin the next."""
    for cell in range(machine.cells):
        for block in range(blocks):
            yield from [(block, cell)] * machine.turns


def shuffled(machine: Scenario, blocks: int, seed: str) -> Iterator[tuple[int, int]]:
    """Yield an order drawn for each block by itself, without mirror images."""
    rng = random.Random(seed)
    for block in range(blocks):
        for cell in rng.sample(range(machine.cells), machine.cells):
            yield from [(block, cell)] * machine.turns


def rates(
    scenario: Scenario,
    blocks: int,
    effect: float,
    seed: int,
    layout: Layout = mirrored,
    order_seed: int | None = None,
) -> list[dict[int, float | None]]:
    """Return the speed of each cell by block.

    Args:
        effect: by how much the candidate is faster, e.g. -0.05; the other cells are alike.
        order_seed: of the order alone; None takes `seed`, which the machine has.
    """
    pace = scenario.pace(blocks)
    machine = Disturbances(seed, scenario.autocorrelation)
    factors: list[dict[int, list[float]]] = [{} for _ in range(scenario.cells)]
    order = f"{seed if order_seed is None else order_seed}"
    for block, cell in layout(scenario, blocks, order):
        factor = machine.next_factor(pace, 1 / scenario.turns)
        factors[cell].setdefault(block, []).append(factor)
    speeds = [pace.tok_s] * scenario.cells
    speeds[CANDIDATE] *= 1 + effect
    return [
        {block: speed / fmean(turns) for block, turns in found.items()}
        for speed, found in zip(speeds, factors, strict=True)
    ]


def verdict(speeds: Sequence[Mapping[int, float | None]], blocks: int) -> tuple[Ratio, bool]:
    """Return the candidate's ratio to the baseline, and whether the noise floor refuses it."""
    repeat = compare(log_ratios(speeds[REPEAT], speeds[BASELINE]))
    refusals = noise_refusals({PLACE: Against("serial", repeat)}, blocks)
    logs = log_ratios(speeds[CANDIDATE], speeds[BASELINE])
    return compare(logs, refusals=refusals), bool(refusals)


def simulate(
    scenario: Scenario,
    *,
    blocks: int,
    sessions: int,
    effect: float = 0.0,
    first_seed: int = 0,
    layout: Layout = mirrored,
) -> Tally:
    """Return what many sessions on one machine come to, each with a seed of its own."""
    tally = Tally()
    for seed in range(first_seed, first_seed + sessions):
        ratio, is_noise = verdict(rates(scenario, blocks, effect, seed, layout), blocks)
        tally.add(ratio, is_noise, effect)
    return tally


def invented(scenario: Scenario, blocks: int, sessions: int, layout: Layout) -> float:
    """Return how often an interval alone would tell equal cells apart, for a layout.

    What `unrefused` verdicts would be: neither a noise floor nor a limit on the spread.
    """
    count = 0
    for seed in range(sessions):
        speeds = rates(scenario, blocks, 0.0, seed, layout)
        logs = log_ratios(speeds[CANDIDATE], speeds[BASELINE])
        count += judge(estimate(logs), blocks) in {"faster", "slower"}
    return count / sessions


def in_any(scenario: Scenario, blocks: int, sessions: int) -> float:
    """Return how often at least one cell of a session is told apart from a baseline that equals it.

    Each ratio by itself is allowed 5 %; this is what a table of many ratios comes to.
    """
    count = 0
    for seed in range(sessions):
        speeds = rates(scenario, blocks, 0.0, seed)
        others = speeds[CANDIDATE:]
        found = {
            verdict([speeds[BASELINE], speeds[REPEAT], other], blocks)[0].verdict
            for other in others
        }
        count += bool(found & {"faster", "slower"})
    return count / sessions


def unluckiest(
    scenario: Scenario, blocks: int, sessions: int, layout: Layout, order_seed: int
) -> float:
    """Return how often the pair of equal cells is told apart for which one order is worst."""
    counts = dict.fromkeys(combinations(range(scenario.cells), 2), 0)
    for seed in range(sessions):
        speeds = rates(scenario, blocks, 0.0, seed, layout, order_seed)
        for one, other in counts:
            logs = log_ratios(speeds[one], speeds[other])
            counts[one, other] += judge(estimate(logs), blocks) in {"faster", "slower"}
    return max(counts.values()) / sessions


def spread(machine: Scenario, blocks: int, sessions: int, layout: Layout) -> float:
    """Return the mean standard deviation of equal cells' log-ratios between a session's blocks."""
    found = []
    for seed in range(sessions):
        speeds = rates(machine, blocks, 0.0, seed, layout)
        found.append(stdev(log_ratios(speeds[CANDIDATE], speeds[BASELINE])))
    return fmean(found)


def found_at(change: float, spread: float, blocks: int, sessions: int) -> float:
    """Return in how many sessions an interval of normal log-ratios finds a change.

    Args:
        spread: standard deviation of the log-ratios.
    """
    rng = random.Random(f"found/{blocks}")
    middle, found = math.log1p(change), 0
    for _ in range(sessions):
        interval = estimate([rng.gauss(middle, spread) for _ in range(blocks)])
        found += interval.low is not None and interval.low > 0
    return found / sessions


def detectable(noise: float, blocks: int) -> float:
    """Return the smallest detectable change on a machine of known noise.

    A block's log-ratio has the noise of two trials.
    """
    return detectable_change(math.sqrt(2) * noise, blocks)


def margin(share: float, sessions: int) -> float:
    """Return three standard errors of a share seen in so many sessions."""
    return 3 * math.sqrt(share * (1 - share) / sessions)


NOMINAL = 1 - CONFIDENCE
"""Most false differences that are allowed at no effect."""
