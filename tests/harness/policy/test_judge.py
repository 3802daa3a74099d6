"""What a policy makes of stored runs: what decides, what is told, what was not seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness import exit_codes
from harness.policy.judge import ALL_CELLS
from harness.policy.policy_file import Floor, MetricRule, Policy, load_policy
from harness.report import build_report
from tests.harness.policy.gate_runs import (
    BASE_SHA,
    alone,
    both,
    compared,
    drafting,
    failed,
    found,
    judged,
)
from tests.harness.store.sample_run import EXTRACT, reply

JITTER = (1.0, 1.004, 0.997, 1.002, 0.999, 1.001, 0.998)


def speed(factor: float = 1.0):  # type: ignore[no-untyped-def]  # a maker of trial values
    return lambda block: {"tok_s": 20.0 * factor * JITTER[block]}


def counting(**counters: int):  # type: ignore[no-untyped-def]  # a maker of trial values
    return lambda block: {"counters": counters}


def test_an_unchanged_build_passes(tmp_path: Path) -> None:
    judgement = judged(both(compared(), head=speed(), base=speed()), tmp_path)
    assert judgement.exit_code == exit_codes.PASS
    assert found(judgement, "metric", "tok_s").status == "pass"
    assert any(BASE_SHA[:12] in note for note in judgement.notes)


@pytest.mark.parametrize(
    ("factor", "status", "code"),
    [
        (0.90, "fail", exit_codes.REGRESSION),
        (0.98, "pass", exit_codes.PASS),
        (1.20, "pass", exit_codes.PASS),
    ],
)
def test_speed_is_held_to_delta(tmp_path: Path, factor: float, status: str, code: int) -> None:
    sample = both(compared(), head=speed(factor), base=speed())
    judgement = judged(sample, tmp_path)
    finding = found(judgement, "metric", "tok_s")
    assert finding.status == status
    assert finding.effect is not None
    assert finding.effect.ratio == pytest.approx(factor, rel=0.01)
    assert finding.effect.n == 7
    assert judgement.exit_code == code


def test_too_few_blocks_are_inconclusive_which_fails_a_strict_gate_alone(tmp_path: Path) -> None:
    sample = both(compared(), head=speed(0.5), base=speed(), blocks=5)
    judgement = judged(sample, tmp_path)
    assert found(judgement, "metric", "tok_s").status == "inconclusive"
    assert judgement.verdict == exit_codes.INCONCLUSIVE
    assert judgement.exit_code == exit_codes.PASS
    assert replace(judgement, is_strict=True).exit_code == exit_codes.INCONCLUSIVE


def test_a_machine_that_is_not_fit_refuses_times_and_nothing_else(tmp_path: Path) -> None:
    busy = compared(machine_refusals=("load is 9.0 on 2 cores",))
    sample = both(busy, head=speed(0.5), base=speed())
    judgement = judged(sample, tmp_path)
    assert found(judgement, "metric", "tok_s").status == "refused"
    assert found(judgement, "metric", "memory_bytes").status == "pass"
    assert judgement.exit_code == exit_codes.MACHINE_REFUSED


def test_a_forced_run_is_judged_on_any_machine(tmp_path: Path) -> None:
    settings = {"base": BASE_SHA, "forced": True}
    busy = compared(machine_refusals=("load is 9.0 on 2 cores",), settings=settings)
    judgement = judged(both(busy, head=speed(0.5), base=speed()), tmp_path)
    assert judgement.exit_code == exit_codes.REGRESSION


def test_advisory_times_decide_nothing_on_any_machine(tmp_path: Path) -> None:
    busy = compared(machine_refusals=("load is 9.0 on 2 cores",))
    sample = both(busy, head=speed(0.5), base=speed())
    judgement = judged(sample, tmp_path, "shared-runner")
    assert found(judgement, "metric", "tok_s").status == "fail"
    assert judgement.exit_code == exit_codes.PASS


def test_a_change_below_what_matters_is_none(tmp_path: Path) -> None:
    def after(ttft_s: float):  # type: ignore[no-untyped-def]  # a maker of trial values
        return lambda block: {"replies": [reply(ttft_s=ttft_s * JITTER[block])]}

    tiny = both(compared(), head=after(0.0020), base=after(0.0015))
    assert found(judged(tiny, tmp_path / "tiny"), "metric", "ttft_ms").status == "pass"
    large = both(compared(), head=after(0.200), base=after(0.150))
    assert found(judged(large, tmp_path / "large"), "metric", "ttft_ms").status == "fail"


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ({"step_s": 1.00, "wait_s": 0.50, "launch_s": 0.30}, "pass"),
        ({"step_s": 1.00, "wait_s": 0.70, "launch_s": 0.10}, "pass"),
        ({"step_s": 1.00, "wait_s": 0.40, "launch_s": 0.30}, "fail"),
        ({"step_s": 0.50, "wait_s": 0.10, "launch_s": 0.10}, "fail"),
    ],
)
def test_host_time_is_what_a_step_leaves_without_its_waits(
    tmp_path: Path, parts: dict[str, float], status: str
) -> None:
    def taking(parts: dict[str, float]):  # type: ignore[no-untyped-def]  # a maker of trial values
        return lambda block: {
            "decode_steps": 50,
            **{name: seconds * JITTER[block] for name, seconds in parts.items()},
        }

    usual = {"step_s": 1.00, "wait_s": 0.50, "launch_s": 0.30}
    judgement = judged(both(compared(), head=taking(parts), base=taking(usual)), tmp_path)
    assert found(judgement, "metric", "host_ms").status == status


def test_a_step_whose_waits_nobody_told_has_no_host_time(tmp_path: Path) -> None:
    sample = both(compared(), head=speed(), base=speed())
    assert not [item for item in judged(sample, tmp_path).findings if item.name == "host_ms"]


@pytest.mark.parametrize(
    ("head", "base", "name"),
    [
        ((9, 4, 10), (8, 4, 10), "drafted"),
        ((8, 3, 10), (8, 4, 10), "accepted"),
        ((8, 4, 11), (8, 4, 10), "target_calls"),
    ],
)
def test_drafts_are_counted(
    tmp_path: Path, head: tuple[int, int, int], base: tuple[int, int, int], name: str
) -> None:
    sample = both(
        compared(),
        "serial+spec@draft_budgets=fixed",
        head=lambda block: {"replies": drafting(*head)},
        base=lambda block: {"replies": drafting(*base)},
    )
    both(sample)
    judgement = judged(sample, tmp_path, "shared-runner")
    assert failed(judgement) == {("counter", name)}
    assert judgement.exit_code == exit_codes.REGRESSION
    better = both(
        compared(),
        "serial+spec@draft_budgets=fixed",
        head=lambda block: {"replies": drafting(*base)},
        base=lambda block: {"replies": drafting(*head)},
    )
    assert judged(both(better), tmp_path / "better", "shared-runner").exit_code == exit_codes.PASS


def test_counts_that_follow_measured_times_are_told_and_decide_nothing(tmp_path: Path) -> None:
    sample = both(
        compared(),
        "serial+spec",
        head=lambda block: {"replies": drafting(9, 4, 10)},
        base=lambda block: {"replies": drafting(8, 4, 10)},
    )
    judgement = judged(both(sample), tmp_path, "shared-runner")
    finding = found(judgement, "counter", "drafted")
    assert (finding.status, finding.is_hard) == ("fail", False)
    assert "@draft_budgets=fixed" in finding.detail
    assert judgement.exit_code == exit_codes.PASS


@pytest.mark.parametrize("name", ["mask_calls", "steps", "positions", "host_syncs"])
def test_the_work_of_engines_is_counted_by_cell(tmp_path: Path, name: str) -> None:
    sample = both(compared(), head=counting(**{name: 21}), base=counting(**{name: 20}))
    judgement = judged(sample, tmp_path, "shared-runner")
    assert failed(judgement) == {("counter", name)}
    assert found(judgement, "counter", name).count is not None


@pytest.mark.parametrize("name", ["compiles", "kv_bytes"])
def test_what_depends_on_the_order_of_cells_is_counted_over_all_of_them(
    tmp_path: Path, name: str
) -> None:
    """The larger cell of one side may run before the smaller one and on the other side after."""
    sample = both(
        compared(), "serial", head=counting(**{name: 5}), base=counting(**{name: 9}), blocks=1
    )
    both(sample, "serial+grammar", head=counting(**{name: 9}), base=counting(**{name: 3}), blocks=1)
    finding = found(judged(sample, tmp_path), "counter", name)
    assert finding.count is not None
    assert (finding.count.head, finding.count.base, finding.status) == (9, 9, "pass")
    assert finding.place.cell == ""


def test_a_count_that_the_base_cannot_tell_decides_nothing(tmp_path: Path) -> None:
    judgement = judged(both(compared(), head=counting(steps=20)), tmp_path, "shared-runner")
    assert not found(judgement, "counter", "steps").is_hard
    assert judgement.exit_code == exit_codes.PASS


def test_a_count_that_is_told_no_more_is_incomplete(tmp_path: Path) -> None:
    judgement = judged(both(compared(), base=counting(steps=20)), tmp_path, "shared-runner")
    assert found(judgement, "counter", "steps").status == "incomplete"
    assert judgement.exit_code == exit_codes.INCOMPLETE


def test_replies_of_other_tokens_are_told(tmp_path: Path) -> None:
    sample = both(compared(), head=lambda block: {"replies": [reply(ids=(5, 6, 8))]})
    finding = found(judged(sample, tmp_path), "counter", "changed_replies")
    assert (finding.status, finding.is_hard) == ("fail", False)
    assert finding.count is not None
    assert finding.count.head == 7


def test_a_document_that_does_not_conform_fails_whatever_the_base_does(tmp_path: Path) -> None:
    bad = {"replies": [reply(conformance="schema-invalid")], "workload": EXTRACT}
    good = {"replies": [reply(conformance="ok")], "workload": EXTRACT}
    plain = {"workload": EXTRACT}
    ours = both(compared(), head=lambda block: plain, base=lambda block: plain)
    both(ours, "serial+grammar", head=lambda block: bad, base=lambda block: good)
    judgement = judged(ours, tmp_path / "head", "shared-runner")
    assert ("correctness", "conformance") in failed(judgement)
    assert judgement.exit_code == exit_codes.CORRECTNESS
    theirs = both(compared(), head=lambda block: plain, base=lambda block: plain)
    both(theirs, "serial+grammar", head=lambda block: good, base=lambda block: bad)
    judgement = judged(theirs, tmp_path / "base", "shared-runner")
    assert failed(judgement) == set()
    assert judgement.exit_code == exit_codes.PASS


def test_a_lane_that_was_not_declared_fails(tmp_path: Path) -> None:
    sample = both(compared(), head=lambda block: {"replies": [reply(lane_taken="batch")]})
    judgement = judged(sample, tmp_path)
    assert ("correctness", "routing") in failed(judgement)


# -- a gate that saw nothing is not green ----------------------------------------------------------


def test_a_run_that_did_not_finish_is_incomplete(tmp_path: Path) -> None:
    sample = both(compared(), blocks=6)
    sample.plan("serial", 6)
    assert judged(sample, tmp_path).exit_code == exit_codes.INCOMPLETE


def test_a_base_that_ran_nothing_is_incomplete(tmp_path: Path) -> None:
    sample = compared()
    for block in range(7):
        sample.add("serial", block)
    judgement = judged(sample, tmp_path)
    assert found(judgement, "coverage", "base").status == "incomplete"
    assert judgement.exit_code == exit_codes.INCOMPLETE


def test_a_cell_that_the_base_cannot_run_is_told(tmp_path: Path) -> None:
    sample = both(compared())
    for block in range(7):
        sample.add("serial+spec@draft_budgets=fixed", block)
    sample.plan(
        "serial+spec@draft_budgets=fixed@base",
        status="skipped",
        reason="the base knows no draft_budgets",
    )
    finding = found(judged(sample, tmp_path), "coverage", "compared")
    assert "the base knows no draft_budgets" in finding.detail
    assert not finding.is_hard


def test_a_run_without_a_base_is_judged_by_its_gates_unless_one_is_required(tmp_path: Path) -> None:
    sample = alone()
    sample.add("serial")
    assert judged(sample, tmp_path / "a").exit_code == exit_codes.PASS
    assert judged(sample, tmp_path / "b", "shared-runner").exit_code == exit_codes.INCOMPLETE


def test_a_gate_that_is_required_and_absent_is_incomplete(tmp_path: Path) -> None:
    policy = replace(load_policy(), required=("conformance",))
    sample = alone()
    sample.add("serial")
    judgement = judged(sample, tmp_path, policy)
    assert found(judgement, "coverage", "conformance").status == "incomplete"
    assert judgement.exit_code == exit_codes.INCOMPLETE


def test_a_run_of_nothing_is_incomplete(tmp_path: Path) -> None:
    sample = alone()
    sample.plan("serial", status="skipped", reason="no model")
    assert judged(sample, tmp_path).exit_code == exit_codes.INCOMPLETE


def test_a_baseline_that_differs_from_its_repeat_takes_the_verdicts_of_its_group(
    tmp_path: Path,
) -> None:
    sample = both(compared(), head=speed(0.5), base=speed())
    for block in range(7):
        sample.add("serial@aa", block, tok_s=24.0 * JITTER[block])
    judgement = judged(sample, tmp_path)
    noise = found(judgement, "noise", "baseline")
    assert noise.status == "inconclusive"
    assert noise.detail == "serial repeated, against serial: mean 2.400 of 7 blocks"
    assert found(judgement, "metric", "tok_s").status == "inconclusive"
    assert judgement.verdict == exit_codes.INCONCLUSIVE


def test_the_mean_over_all_cells_is_a_comparison_of_its_own(tmp_path: Path) -> None:
    sample = both(compared(), head=speed(0.9), base=speed())
    both(sample, "serial+spec@draft_budgets=fixed", head=speed(0.9), base=speed())
    mean = found(judged(sample, tmp_path), "metric", "tok_s", ALL_CELLS)
    assert mean.status == "fail"


def test_a_report_compares_each_cell_with_its_twin(tmp_path: Path) -> None:
    sample = both(compared(), head=speed(0.9), base=speed())
    cells = {cell.place.cell: cell for cell in build_report(sample.load(tmp_path)).cells}
    (against,) = cells["serial"].ratios
    assert (against.baseline, against.ratio.verdict) == ("serial@base", "slower")
    assert cells["serial@base"].ratios == ()


# -- floors ----------------------------------------------------------------------------------------


def with_floor(**values: object) -> Policy:
    return replace(load_policy(), floors=(Floor(**values),))


@pytest.mark.parametrize(
    ("least", "code"),
    [
        (1.4, exit_codes.PASS),
        (1.6, exit_codes.REGRESSION),
        (1.5, exit_codes.INCONCLUSIVE),
    ],
)
def test_a_ratio_in_the_run_itself_is_held_to_a_floor(
    tmp_path: Path, least: float, code: int
) -> None:
    sample = alone()
    for block in range(7):
        sample.add("serial", block, tok_s=20.0)
        sample.add("serial+spec", block, tok_s=30.0 * JITTER[block])
    policy = with_floor(cell="serial+spec", at_least=least)
    judgement = judged(sample, tmp_path, policy)
    assert judgement.verdict == code
    assert "at least" in found(judgement, "floor", "ratio").detail


def test_a_floor_that_no_cell_meets_with_is_incomplete(tmp_path: Path) -> None:
    sample = alone()
    sample.add("serial")
    policy = with_floor(cell="batch4", metric="tok_s", at_least=1)
    assert judged(sample, tmp_path, policy).exit_code == exit_codes.INCOMPLETE


def test_what_is_off_is_not_looked_at(tmp_path: Path) -> None:
    usual = load_policy()
    rules = {**usual.metrics, "tok_s": MetricRule(mode="off")}
    sample = both(compared(), head=speed(0.5), base=speed())
    judgement = judged(sample, tmp_path, replace(usual, metrics=rules))
    assert not [item for item in judgement.of("metric") if item.name == "tok_s"]
    assert judgement.exit_code == exit_codes.PASS
