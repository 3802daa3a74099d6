"""A gate that saw nothing is not green: what one side lost, and what nobody looked at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import exit_codes
from harness.policy.policy_file import CounterRule, Floor, MetricRule, load_policy
from harness.store import ConditionRow
from tests.harness.policy.gate_runs import alone, both, compared, drafting, found, judged
from tests.harness.store.sample_run import EXTRACT, MODEL, Sample, reply

FIXED = "serial+spec@draft_budgets=fixed"
JITTER = (1.0, 1.004, 0.997, 1.002, 0.999, 1.001, 0.998)


def test_a_cell_that_this_checkout_runs_no_more_is_incomplete(tmp_path: Path) -> None:
    sample = both(compared())
    for block in range(7):
        sample.add(f"{FIXED}@base", block)
    sample.plan(FIXED, status="skipped", reason="drafts are refused")
    judgement = judged(sample, tmp_path)
    finding = found(judgement, "coverage", "compared")
    assert "this checkout does not: drafts are refused" in finding.detail
    assert judgement.exit_code == exit_codes.INCOMPLETE


def test_a_cell_that_neither_side_can_run_is_no_finding(tmp_path: Path) -> None:
    sample = both(compared())
    for name in (FIXED, f"{FIXED}@base"):
        sample.plan(name, status="skipped", reason="no constraint")
    judgement = judged(sample, tmp_path)
    assert not judgement.of("coverage")
    assert judgement.exit_code == exit_codes.PASS


def test_a_model_that_was_compared_with_nothing_is_incomplete(tmp_path: Path) -> None:
    """The other model's cells ran on both sides, and are green."""
    sample = both(compared())
    other = replace(MODEL, name="other", digest="e" * 64)
    for block in range(7):
        sample.add("serial", block, model=other)
    sample.plan("serial@base", model=other, status="skipped", reason="another digest")
    judgement = judged(sample, tmp_path)
    finding = found(judgement, "coverage", "base")
    assert (finding.place.model, finding.status) == ("other", "incomplete")
    assert judgement.exit_code == exit_codes.INCOMPLETE


def silent(**values: Any):  # type: ignore[no-untyped-def]  # a maker of trial values
    return lambda block: {"replies": [reply(**values)]}


def test_a_metric_that_this_checkout_tells_no_more_is_incomplete(tmp_path: Path) -> None:
    judgement = judged(both(compared(), head=silent(ttft_s=None)), tmp_path)
    finding = found(judgement, "metric", "ttft_ms")
    assert (finding.status, finding.detail) == (
        "incomplete",
        "time to the first token: this checkout tells it no more",
    )
    assert judgement.exit_code == exit_codes.INCOMPLETE


def test_a_metric_that_the_base_does_not_tell_decides_nothing(tmp_path: Path) -> None:
    judgement = judged(both(compared(), base=silent(ttft_s=None)), tmp_path)
    assert not found(judgement, "metric", "ttft_ms").is_hard
    assert judgement.exit_code == exit_codes.PASS


def again(*blocks: int):  # type: ignore[no-untyped-def]  # a maker of trial values
    """Trials that failed, and ran at half the speed when the run was gone on with."""
    return lambda block: {"failed_before": ("lost",), "tok_s": 10.0} if block in blocks else {}


def test_a_trial_that_was_run_again_is_not_compared_with_one_that_was_not(tmp_path: Path) -> None:
    judgement = judged(both(compared(), head=again(3)), tmp_path)
    assert found(judgement, "metric", "tok_s", "serial").n == 6
    assert judgement.exit_code == exit_codes.PASS


def test_a_cell_whose_trials_all_ran_apart_from_the_base_is_incomplete(tmp_path: Path) -> None:
    judgement = judged(both(compared(), head=again(*range(7))), tmp_path)
    finding = found(judgement, "coverage", "compared")
    assert (finding.place.cell, finding.status) == ("serial", "incomplete")
    assert "start a new run" in finding.detail
    assert judgement.exit_code == exit_codes.INCOMPLETE


def test_blocks_that_both_sides_ran_again_are_compared(tmp_path: Path) -> None:
    judgement = judged(both(compared(), head=again(3), base=again(3)), tmp_path)
    assert found(judgement, "metric", "tok_s", "serial").n == 7


@pytest.mark.parametrize(
    ("side", "code"), [("head", exit_codes.INCOMPLETE), ("base", exit_codes.PASS)]
)
def test_a_count_told_in_some_blocks_alone_is_not_held_against_the_whole(
    tmp_path: Path, side: str, code: int
) -> None:
    """One of seven trials tells its steps: the sum of that one is no fewer steps."""

    def whole(block: int) -> dict[str, Any]:
        return {"counters": {"steps": 20}}

    def part(block: int) -> dict[str, Any]:
        return {"counters": {"steps": 20} if block == 0 else {}}

    sides = {"head": whole, "base": whole, side: part}
    judgement = judged(both(compared(), **sides), tmp_path)
    assert found(judgement, "counter", "steps").status == "incomplete"
    assert judgement.exit_code == code


@pytest.mark.parametrize("status", ["running", "failed", "interrupted"])
def test_a_run_that_did_not_end_in_order_is_incomplete(tmp_path: Path, status: str) -> None:
    """All its trials are there; what was not saved may be what speaks against it."""
    judgement = judged(both(compared(status=status)), tmp_path)
    assert status in found(judgement, "coverage", "run").detail
    assert judgement.exit_code == exit_codes.INCOMPLETE


def begun(sample: Sample, at: str) -> Sample:
    """Add the look at the machine with which a run begins, or goes on."""
    row = ConditionRow(run_id=sample.run_id, phase="preflight", sampled_at=f"2026-03-04T{at}Z")
    sample.conditions.append(row)
    return sample


@pytest.mark.parametrize("name", ["compiles", "kv_bytes"])
def test_what_engines_came_to_decides_nothing_where_they_began_twice(
    tmp_path: Path, name: str
) -> None:
    """A run was gone on with: each side forgot what it had compiled, at another cell."""
    sample = both(
        compared(),
        head=lambda block: {"counters": {name: 5}},
        base=lambda block: {"counters": {name: 4}},
    )
    once = judged(begun(sample, "05:06:07"), tmp_path / "once", "shared-runner")
    assert once.exit_code == exit_codes.REGRESSION
    twice = judged(begun(sample, "05:09:07"), tmp_path / "twice", "shared-runner")
    assert found(twice, "counter", name).status == "fail"
    assert twice.exit_code == exit_codes.PASS


@pytest.mark.parametrize("name", ["memory_bytes", "compiles"])
@pytest.mark.parametrize("kind", ["new", "routing", "shared"])
def test_what_the_head_alone_ran_is_not_held_against_its_other_cells(
    tmp_path: Path, name: str, kind: str
) -> None:
    """Its engine keeps its memory, and its grammars stay compiled, while the others run."""
    more = {"counters": {"compiles": 2}, "peak_mlx_bytes": 700_000_000}
    less = {"counters": {"compiles": 1}, "peak_mlx_bytes": 600_000_000}
    sample = both(compared(), head=lambda block: more, base=lambda block: less)
    cell = {"new": FIXED, "routing": "batch4+spec@routed", "shared": "serial+grammar"}[kind]
    for block in range(7):
        sample.add(cell, block, **more)
        if kind == "shared":
            sample.add(f"{cell}@base", block, **less)
    judgement = judged(sample, tmp_path)
    group = "counter" if name == "compiles" else "metric"
    told = [item for item in judgement.of(group) if item.name == name]
    is_failed = any(item.is_hard and item.status == "fail" for item in told)
    assert told
    assert is_failed == (kind == "shared")


# -- times that deserve no verdict -----------------------------------------------------------------


def with_repeat(blocks: int, tok_s: float = 20.0) -> Sample:
    sample = both(compared(), head=lambda block: {"tok_s": 10.0 * JITTER[block]})
    for block in range(blocks):
        sample.add("serial@aa", block, tok_s=tok_s * JITTER[block])
    return sample


def test_a_baseline_that_was_repeated_too_rarely_tells_no_noise(tmp_path: Path) -> None:
    judgement = judged(with_repeat(3, tok_s=10.0), tmp_path)
    assert found(judgement, "noise", "baseline").status == "inconclusive"
    assert found(judgement, "metric", "tok_s").status == "inconclusive"


def test_noise_decides_nothing_where_no_time_does(tmp_path: Path) -> None:
    """Else --strict would fail unchanged builds on machines that others use."""
    judgement = judged(with_repeat(7, tok_s=24.0), tmp_path, "shared-runner", is_strict=True)
    assert found(judgement, "noise", "baseline").status == "inconclusive"
    assert judgement.exit_code == exit_codes.PASS


def test_prompts_from_a_cache_on_one_side_take_the_verdict_on_times(tmp_path: Path) -> None:
    sample = both(compared(), base=silent(cached_tokens=9, ttft_s=0.01))
    finding = found(judged(sample, tmp_path), "metric", "ttft_ms")
    assert finding.status == "inconclusive"
    assert finding.detail == "serial@base: 63 prompt tokens came from a cache"


# -- floors ----------------------------------------------------------------------------------------


def floored(folder: Path, factors: tuple[float, ...], floor: Floor, **run: Any) -> Any:
    sample = alone()
    sample.run = {**sample.run, "blocks": 7, **run}
    for block, factor in enumerate(factors):
        sample.add("serial", block, tok_s=20.0)
        sample.add("serial@aa", block, tok_s=20.0)
        sample.add("serial+spec", block, tok_s=20.0 * factor)
    return judged(sample, folder, replace(load_policy(), floors=(floor,)))


def test_a_ratio_that_varies_widely_reaches_no_floor(tmp_path: Path) -> None:
    wide = (1.6, 2.4, 1.7, 2.3, 1.5, 2.5, 2.0)
    judgement = floored(tmp_path, wide, Floor(cell="serial+spec", at_least=1.2))
    finding = found(judgement, "floor", "ratio")
    assert finding.status == "inconclusive"
    assert "varies by" in finding.detail


def test_a_noisy_baseline_takes_the_floors_too(tmp_path: Path) -> None:
    sample = with_repeat(7, tok_s=24.0)
    policy = replace(load_policy(), floors=(Floor(cell="serial", metric="tok_s", at_least=1.0),))
    assert found(judged(sample, tmp_path, policy), "floor", "tok_s").status == "inconclusive"


def test_a_floor_without_a_figure_is_incomplete_on_any_machine(tmp_path: Path) -> None:
    floor = Floor(cell="serial", metric="ratio", at_least=1.0)
    judgement = floored(tmp_path, (1.5,) * 7, floor, machine_refusals=("load is 9.0",))
    assert found(judgement, "floor", "ratio").status == "incomplete"
    assert judgement.exit_code == exit_codes.INCOMPLETE


# -- the worst decides -----------------------------------------------------------------------------

HARD = {
    "correctness": {"replies": [reply(lane_taken="batch")]},
    "regression": {"counters": {"steps": 21}},
    "same": {"counters": {"steps": 20}},
}


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("is_unfinished", [False, True])
@pytest.mark.parametrize("head", list(HARD))
def test_the_worst_of_all_that_was_found_decides(
    tmp_path: Path, head: str, is_unfinished: bool, is_busy: bool, is_strict: bool
) -> None:
    """3, 6, 1, 5, 4, 0: five blocks make every time inconclusive on a clean machine."""
    run: dict[str, Any] = {"machine_refusals": ("load is 9.0",)} if is_busy else {}
    run |= {"status": "failed"} if is_unfinished else {}
    sample = both(
        compared(**run),
        head=lambda block: HARD[head],
        base=lambda block: HARD["same"],
        blocks=5,
    )
    expected = (
        exit_codes.CORRECTNESS
        if head == "correctness"
        else exit_codes.INCOMPLETE
        if is_unfinished
        else exit_codes.REGRESSION
        if head == "regression"
        else exit_codes.MACHINE_REFUSED
        if is_busy
        else exit_codes.INCONCLUSIVE
        if is_strict
        else exit_codes.PASS
    )
    assert judged(sample, tmp_path, is_strict=is_strict).exit_code == expected


def test_a_policy_that_looks_at_nothing_still_fails_what_is_wrong(tmp_path: Path) -> None:
    usual = load_policy()
    blind = replace(
        usual,
        required=(),
        metrics=dict.fromkeys(usual.metrics, MetricRule(mode="off")),
        counters=dict.fromkeys(usual.counters, CounterRule(mode="off")),
    )
    wrong = both(compared(), head=lambda block: HARD["correctness"])
    assert judged(wrong, tmp_path / "wrong", blind).exit_code == exit_codes.CORRECTNESS
    plain = {"workload": EXTRACT}
    nothing = compared()
    nothing.plan("serial", **plain)
    nothing.plan("serial@base", **plain)
    assert judged(nothing, tmp_path / "nothing", blind).exit_code == exit_codes.INCOMPLETE


def test_drafts_that_one_reply_does_not_tell_are_not_fewer(tmp_path: Path) -> None:
    sample = both(
        compared(),
        FIXED,
        head=lambda block: {"replies": drafting(9, 4, 10) if block else [reply()]},
        base=lambda block: {"replies": drafting(9, 4, 10)},
    )
    both(sample)
    judgement = judged(sample, tmp_path, "shared-runner")
    assert found(judgement, "counter", "drafted", FIXED).status == "incomplete"
    assert judgement.exit_code == exit_codes.INCOMPLETE
