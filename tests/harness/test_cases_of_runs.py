"""Cases ha-07 and ha-08: warm-ups and caches, and the order in which cells run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from harness.calibration.metronome import MetronomeTarget, Pace
from harness.calibration.rehearsal import rehearsal_matrix, rehearse
from harness.planning.choices import Choices
from harness.report import RunReport
from harness.report.figures import Against
from harness.targets.remote import RemoteTarget
from harness.trials.prompting import WARM_UP_TOKENS, warm_up_prompts
from harness.workloads.workload import load_workload
from tests.harness.foreign_server import DONE, Foreign, chunk, event, foreign
from tests.harness.jobs import cell_of, job_of

TOKENS = WARM_UP_TOKENS + 1
"""What tells a measured request from a warm-up, for a server."""


@dataclass
class Remembering:
    """A server that prepares each size of prompt once, and may keep the prompts it has seen.

    Attributes:
        slow: measured requests that came first in their size.
        seen_before: measured requests whose prompt it had seen.
    """

    keeps: bool
    sizes: set[int] = field(default_factory=set)
    prompts: set[str] = field(default_factory=set)
    slow: int = 0
    seen_before: int = 0
    measured: int = 0

    def script(self, body: dict[str, Any]) -> Any:
        text = "".join(message["content"] for message in body["messages"])
        size, is_measured = (len(text) - 1).bit_length(), body["max_tokens"] >= TOKENS
        self.measured += is_measured
        self.slow += is_measured and size not in self.sizes
        self.seen_before += is_measured and text in self.prompts
        cached = len(text) if self.keeps and text in self.prompts else 0
        self.sizes.add(size)
        self.prompts.add(text)
        counts = {"prompt_tokens": len(text), "completion_tokens": 2}
        told = {**counts, "prompt_tokens_details": {"cached_tokens": cached}}
        end = event({"choices": [], "usage": told})
        return (chunk("one"), chunk(" two"), chunk(finish="stop"), end, DONE)


@contextmanager
def remembering(keeps: bool) -> Iterator[tuple[Foreign, Remembering]]:
    memory = Remembering(keeps)
    with foreign(script=memory.script) as server:
        yield server, memory


def measure(server: Foreign, *cells: str, workload: str = "short-chat") -> RunReport:
    target = RemoteTarget(server.url, lambda _line: None)
    choices = Choices(
        cells=cells,
        models=("words",),
        workloads=(workload,),
        target=server.url,
        blocks=2,
        prompts=4,
        max_tokens=TOKENS,
    )
    try:
        return rehearse(choices, target)
    finally:
        target.close()


@pytest.mark.parametrize("workload", ["short-chat", "long-form"])
def test_what_a_server_prepares_once_for_a_length_is_never_measured(workload: str) -> None:
    """Case ha-07: the warm-up covers each size of prompt."""
    with remembering(keeps=False) as (server, memory):
        measure(server, "serial", workload=workload)
        assert memory.measured == 8
        assert memory.slow == 0
        assert memory.seen_before == 0, "no measured prompt is a warm-up, nor comes twice in a cell"


@pytest.mark.parametrize("name", ["short-chat", "json-extract", "long-form"])
def test_a_warm_up_is_as_long_as_what_it_warms_up_for_and_shares_no_message(name: str) -> None:
    """Case ha-07: the last message is where prompts of a workload differ."""
    workload = load_workload(name)
    job = job_of(cell_of("batch4"), workload)
    warm = warm_up_prompts(job)
    sizes = {(prompt.num_characters - 1).bit_length() for prompt in warm}
    assert sizes >= {(prompt.num_characters - 1).bit_length() for prompt in workload.prompts}
    assert len(warm) % 4 == 0
    asked = {prompt.messages[-1]["content"] for prompt in workload.prompts}
    assert not asked & {prompt.messages[-1]["content"] for prompt in warm}


def test_prompts_from_a_cache_are_told_and_nobody_should_quote_them() -> None:
    """Case ha-07: a later cell sees the prompts of an earlier one, and so does a later run."""
    with remembering(keeps=True) as (server, _memory):
        first, again = measure(server, "serial"), measure(server, "serial")
        both = measure(server, "serial", "batch2")
    assert not [reason for reason in first.unquotable_reasons if "came from a cache" in reason]
    for report in (again, both):
        assert any(
            reason.startswith("serial on words short-chat: ") and "came from a cache" in reason
            for reason in report.unquotable_reasons
        )
    (against,) = [cell.main for cell in both.cells if cell.main is not None]
    assert any("came from a cache" in reason for reason in against.ratio.refusals)
    assert against.ratio.verdict is None


SLOWER = Pace(drift_per_trial=0.01)
"""1 % slower with every trial, whichever cell runs."""

CELLS = ("serial", "serial+spec", "batch2")


def drifting(preset: str = "gate", **changes: Any) -> RunReport:
    choices = Choices(cells=CELLS, workloads=("short-chat",), preset=preset, **changes)
    speeds = dict.fromkeys(CELLS, SLOWER)
    return rehearse(choices, MetronomeTarget(speeds))


def against_serial(report: RunReport) -> Against:
    found = {cell.place.cell: cell.main for cell in report.cells}["serial+spec"]
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("blocks", [4, 7])
def test_equal_cells_come_out_equal_on_a_machine_that_slows_down(seed: int, blocks: int) -> None:
    """Case ha-08: cells that ran one after another would differ by the drift of a whole block."""
    report = drifting(seed=seed, blocks=blocks)
    ratio = against_serial(report).ratio
    assert ratio.estimate == pytest.approx(1, abs=0.02)
    assert ratio.verdict not in {"faster", "slower"}


def test_drift_is_told_with_a_remedy() -> None:
    """Case ha-08."""
    report = drifting()
    drifts = [cell.drift for cell in report.cells]
    assert all(drift is not None and drift < -0.15 for drift in drifts)
    assert any(
        "drift too high" in reason and "cool down" in reason for reason in report.unquotable_reasons
    )


def test_a_real_difference_shows_through_the_drift() -> None:
    """Case ha-08: C is slower, whatever the machine does."""
    speeds = {"serial": SLOWER, "serial+spec": replace(SLOWER, step_s=SLOWER.step_s * 1.1)}
    choices = Choices(cells=("spec",), workloads=("short-chat",), preset="gate")
    against = against_serial(rehearse(choices, MetronomeTarget(speeds)))
    assert against.ratio.verdict == "slower"
    assert against.ratio.estimate == pytest.approx(1 / 1.1, rel=0.02)


def test_cells_are_interleaved_in_an_order_that_the_seed_keeps() -> None:
    """Case ha-08: and every cell has early and late places alike."""
    matrix = rehearsal_matrix(Choices(cells=CELLS, workloads=("short-chat",), blocks=6, seed=4))
    trials = matrix.trials()
    for block in range(6):
        assert Counter(trial.pair.cell.name for trial in trials if trial.block == block) == Counter(
            {"serial": 1, "serial@aa": 1, "serial+spec": 1, "batch2": 1}
        )
    places = Counter[str]()
    for trial in trials:
        places[trial.pair.cell.name] += trial.order
    assert len(set(places.values())) == 1
    assert trials == matrix.trials()
