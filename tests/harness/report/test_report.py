"""What a report says follows from the rows, and it says why it does not say more."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.report import (
    RunReport,
    build_report,
    comparison_rows,
    plain_report,
    to_json,
    to_markdown,
)
from harness.report.figures import Against, CellFigures
from harness.store import EvalStore
from tests.harness.report.full_run import failed_run, full_run
from tests.harness.store.sample_run import EXTRACT, Sample, reply


def report_of(sample: Sample, folder: Path) -> RunReport:
    return build_report(sample.load(folder))


def figures(report: RunReport, cell: str, workload: str = "short-chat") -> CellFigures:
    (found,) = [
        item for item in report.cells if item.place.cell == cell and item.place.workload == workload
    ]
    return found


def blocks(**speeds: list[float]) -> Sample:
    """Return a run of the cells serial, spec, aa with these speeds block by block."""
    names = {"serial": "serial", "spec": "serial+spec", "aa": "serial@aa", "batch": "batch4"}
    count = max(map(len, speeds.values()))
    sample = Sample(run={"blocks": count})
    for word, values in speeds.items():
        for block, tok_s in enumerate(values):
            sample.add(names[word], block, tok_s)
    return sample


def main(report: RunReport, cell: str) -> Against:
    found = figures(report, cell).main
    assert found is not None
    return found


def test_a_ratio_is_taken_within_blocks_so_a_slowing_machine_does_not_matter(
    tmp_path: Path,
) -> None:
    """Speed falls by 1 % a trial; the order changes from block to block, as in a real run."""
    sample = Sample(run={"blocks": 6})
    speed = 100.0
    for block in range(6):
        names = ["serial", "serial+spec", "batch4"]
        for name in names[block % 3 :] + names[: block % 3]:
            sample.add(name, block, speed)
            speed *= 0.99
    report = report_of(sample, tmp_path)
    ratio = main(report, "serial+spec").ratio
    assert ratio.estimate == pytest.approx(1.0, abs=0.02)
    assert ratio.verdict == "same"
    assert figures(report, "serial").drift == pytest.approx(0.99**17 - 1, abs=0.03)
    assert any("drift too high" in reason for reason in report.unquotable_reasons)
    assert any("cool down" in reason for reason in report.unquotable_reasons)


def test_order_and_start_of_every_trial_are_stored(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", started_at="2026-03-04T05:06:07Z")
    sample.add("serial+spec", started_at="2026-03-04T05:07:07Z")
    trials = sample.load(tmp_path).trials
    assert [(trial.block, trial.order_in_block, trial.started_at) for trial in trials] == [
        (0, 0, "2026-03-04T05:06:07Z"),
        (0, 1, "2026-03-04T05:07:07Z"),
    ]


def test_speeds_are_medians_over_blocks(tmp_path: Path) -> None:
    report = report_of(blocks(serial=[10.0, 30.0, 20.0]), tmp_path)
    assert figures(report, "serial").speed.aggregate == pytest.approx(20.0)
    assert figures(report, "serial").num_blocks == 3


def test_each_ratio_of_a_cell_is_there_once(tmp_path: Path) -> None:
    report = report_of(full_run(), tmp_path)
    names = {
        name: [item.baseline for item in figures(report, name, "json-extract").ratios]
        for name in ("serial", "serial+grammar", "serial+spec+grammar", "batch4", "mlx-lm")
    }
    assert names == {
        "serial": ["mlx-lm"],
        "serial+grammar": ["serial", "mlx-lm"],
        "serial+spec+grammar": ["serial+grammar", "serial", "mlx-lm"],
        "batch4": ["serial"],
        "mlx-lm": ["serial"],
    }


def test_a_clean_run_is_quotable_and_says_what_it_found(tmp_path: Path) -> None:
    report = report_of(full_run(), tmp_path)
    assert report.unquotable_reasons == ()
    assert report.exit_code == 0
    cell = figures(report, "serial+spec+grammar", "json-extract")
    assert cell.main is not None
    assert cell.main.baseline == "serial+grammar"
    assert cell.main.ratio.verdict == "faster"
    assert cell.main.ratio.wins == 7
    assert cell.grammar is not None
    assert cell.grammar.overhead_pct == pytest.approx(1.0)
    assert cell.grammar.mask_us_per_token == pytest.approx(21.0)
    assert cell.grammar.free_ratio_pct == pytest.approx(100 * 31 / 26, rel=0.02)
    assert cell.conforming is not None
    assert (cell.conforming.n, cell.conforming.ok) == (28, 28)
    assert cell.conforming.lower_bound == pytest.approx(0.05 ** (1 / 28))
    assert cell.acceptance is not None
    assert cell.acceptance.rate == 0.625
    assert cell.acceptance.per_position == ((112, 84), (70, 42), (42, 14))


def test_a_repeated_baseline_is_the_noise_floor_and_no_row_of_its_own(tmp_path: Path) -> None:
    report = report_of(full_run(), tmp_path)
    assert all(group.noise is not None for group in report.groups)
    assert "serial@aa" not in {cell.place.cell for cell in report.cells}


def test_the_noise_floor_is_the_repeat_in_units_of_the_baseline_and_says_so(tmp_path: Path) -> None:
    report = report_of(blocks(serial=[20.0] * 6, aa=[22.0] * 6), tmp_path)
    assert "Noise floor: serial repeated, against serial: 1.10 [1.10, 1.10]." in to_markdown(report)


def test_a_cell_that_only_prefilled_has_no_acceptance(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial+spec", replies=[reply(drafted=0, accepted=0, target_calls=0)])
    assert figures(report_of(sample, tmp_path), "serial+spec").acceptance is None


def test_a_baseline_that_differs_from_itself_takes_every_verdict(tmp_path: Path) -> None:
    steady = [20.0, 20.1, 19.9, 20.0, 20.1, 19.9]
    faster = [value * 1.3 for value in steady]
    shifted = [value * 1.08 for value in steady]
    report = report_of(blocks(serial=steady, spec=faster, aa=shifted), tmp_path)
    ratio = main(report, "serial+spec").ratio
    assert ratio.estimate == pytest.approx(1.3)
    assert ratio.verdict is None
    assert "serial differs from its own repeat" in ratio.refusals[0]
    assert not report.is_quotable


def test_noise_within_the_tolerance_takes_nothing(tmp_path: Path) -> None:
    steady = [20.0, 20.1, 19.9, 20.0, 20.1, 19.9]
    faster = [value * 1.3 for value in steady]
    shifted = [value * 1.01 for value in steady]
    report = report_of(blocks(serial=steady, spec=faster, aa=shifted), tmp_path)
    assert main(report, "serial+spec").ratio.verdict == "faster"


def test_a_baseline_that_was_hardly_repeated_tells_no_noise_floor(tmp_path: Path) -> None:
    steady = [20.0, 20.1, 19.9, 20.0, 20.1, 19.9]
    faster = [value * 1.3 for value in steady]
    report = report_of(blocks(serial=steady, spec=faster, aa=steady[:5]), tmp_path)
    ratio = main(report, "serial+spec").ratio
    assert ratio.verdict is None
    assert "serial was repeated in 5 blocks" in ratio.refusals[0]
    short = report_of(blocks(serial=steady[:3], spec=faster[:3], aa=steady[:3]), tmp_path / "short")
    assert main(short, "serial+spec").ratio.verdict == "provisional"


def test_a_long_run_without_a_repeated_baseline_is_not_quotable(tmp_path: Path) -> None:
    report = report_of(blocks(serial=[20.0] * 6), tmp_path)
    assert report.unquotable_reasons == ("no baseline was repeated, so the noise is unknown",)


REFUSED: dict[str, tuple[Callable[[Sample], object], str]] = {
    "a failed request": (
        lambda run: run.add("serial+spec", 9, replies=[reply(), reply("p2", status="error")]),
        "1 requests failed",
    ),
    "an estimated count": (
        lambda run: run.add("serial", 9, replies=[reply(count_source="estimated")]),
        "1 token counts are estimates",
    ),
    "a warm prefix cache": (
        lambda run: run.add("serial+spec", 9, replies=[reply(cached_tokens=64)]),
        "64 prompt tokens came from a cache",
    ),
    "other token ids": (
        lambda run: (
            run.add("serial", 9, replies=[reply("p9", (1,))]),
            run.add("serial+spec", 9, replies=[reply("p9", (2,))]),
        ),
        "token ids differ from its reference",
    ),
}


@pytest.mark.parametrize(("spoil", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_spoiled_cell_gets_no_verdict(
    tmp_path: Path, spoil: Callable[[Sample], object], reason: str
) -> None:
    steady = [20.0, 20.1, 19.9, 20.0, 20.1, 19.9]
    sample = blocks(serial=steady, spec=[value * 1.3 for value in steady])
    spoil(sample)
    sample.run = {**sample.run, "status": "finished"}
    ratio = main(report_of(sample, tmp_path), "serial+spec").ratio
    assert ratio.verdict is None
    assert any(reason in text for text in ratio.refusals)


def test_what_a_cell_keeps_of_its_own_prompts_is_no_reason_against_it(tmp_path: Path) -> None:
    """Where prefix_cache_bytes is set the cache is what is measured; elsewhere it is a fault."""
    steady = [20.0, 20.1, 19.9, 20.0, 20.1, 19.9]
    sample = blocks(serial=steady, spec=[value * 1.3 for value in steady])
    sample.add("serial+spec", 9, replies=[reply(cached_tokens=64)])
    told = "64 prompt tokens came from a cache"
    assert told in " ".join(report_of(sample, tmp_path / "without").unquotable_reasons)
    spec = sample.cells["serial+spec"]
    settings = {**spec.settings, "prefix_cache_bytes": 1_000_000}
    sample.cells["serial+spec"] = replace(spec, settings=settings)
    report = report_of(sample, tmp_path / "with")
    assert told not in " ".join(report.unquotable_reasons)
    assert main(report, "serial+spec").ratio.verdict == "faster"


def test_an_estimated_count_takes_no_part_in_a_comparison(tmp_path: Path) -> None:
    sample = blocks(serial=[20.0, 20.0])
    sample.add("serial+spec", 0, 30.0)
    sample.add("serial+spec", 1, 99.0, replies=[reply(count_source="estimated")])
    ratio = main(report_of(sample, tmp_path), "serial+spec").ratio
    assert (ratio.n, ratio.estimate) == (1, pytest.approx(1.5))
    assert {row.count_source for row in sample.load(tmp_path / "again").requests} == {
        "engine",
        "estimated",
    }


def test_a_machine_that_is_not_fit_takes_every_verdict(tmp_path: Path) -> None:
    steady = [20.0, 20.1, 19.9, 20.0, 20.1, 19.9]
    sample = blocks(serial=steady, spec=[value * 1.3 for value in steady])
    sample.run = {"blocks": 6, "machine_refusals": ("load is 7.1 on 2 cores",)}
    report = report_of(sample, tmp_path)
    assert main(report, "serial+spec").ratio.refusals == ("load is 7.1 on 2 cores",)
    assert "load is 7.1 on 2 cores" in report.unquotable_reasons


def test_short_runs_are_provisional_and_not_quotable(tmp_path: Path) -> None:
    report = report_of(full_run(blocks=3), tmp_path)
    verdicts = {item.ratio.verdict for cell in report.cells for item in cell.ratios}
    assert verdicts == {"provisional"}
    assert report.unquotable_reasons == ("3 blocks; a verdict needs 6",)


def test_uncommitted_changes_and_open_gates_are_reasons(tmp_path: Path) -> None:
    sample = failed_run()
    sample.run = {"git_dirty": True}
    report = report_of(sample, tmp_path)
    assert "the working tree has uncommitted changes" in report.unquotable_reasons
    assert "gate conformance: fail" in report.unquotable_reasons
    assert "gate completeness: incomplete" in report.unquotable_reasons
    assert report.exit_code == 3


def test_stored_reasons_stay_and_are_not_repeated(tmp_path: Path) -> None:
    sample = full_run(blocks=3)
    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
        first = build_report(store.load_run(sample.run_id))
        store.record_gates(sample.run_id, first.gates)
        store.record_comparisons(sample.run_id, comparison_rows(first))
        store.finish_run(
            sample.run_id,
            status="finished",
            exit_code=first.exit_code,
            unquotable_reasons=["on battery", *first.unquotable_reasons],
        )
        second = build_report(store.load_run(sample.run_id))
    assert second.unquotable_reasons == ("on battery", *first.unquotable_reasons)
    assert second.groups == first.groups
    assert second.gates == first.gates
    assert second.summaries == first.summaries


def test_empty_replies_are_counted_and_give_no_figure(tmp_path: Path) -> None:
    sample = Sample()
    nothing = [
        reply("p1", (), ttft_s=None, last_token_s=None, e2e_s=0.03),
        reply("p2", (4,), ttft_s=0.04, last_token_s=0.04, e2e_s=0.04),
    ]
    sample.add("serial", tok_s=None, replies=nothing, wall_s=0.0)
    cell = figures(report_of(sample, tmp_path), "serial")
    assert (cell.empty_replies, cell.one_token_replies) == (1, 1)
    assert not cell.speed.is_known
    assert cell.ttft is not None
    assert cell.ttft.n == 1


def test_failures_carry_the_reply_that_shows_them(tmp_path: Path) -> None:
    report = report_of(failed_run(), tmp_path)
    told = {(item.place.cell, item.what.partition(":")[0]) for item in report.failures}
    assert told == {("serial+spec", "RowError | dead end"), ("serial+spec+grammar", "truncated")}
    assert any("<script>" in item.quote for item in report.failures)


def test_free_text_that_breaks_a_schema_is_a_figure_not_a_failure(tmp_path: Path) -> None:
    sample = Sample()
    replies = [reply("p1", conformance="not-json"), reply("p2", conformance="ok")]
    sample.add("serial", workload=EXTRACT, replies=replies)
    report = report_of(sample, tmp_path)
    conforming = figures(report, "serial", "json-extract").conforming
    assert conforming is not None
    assert (conforming.n, conforming.ok) == (2, 1)
    assert report.failures == ()


def test_a_skipped_pair_is_told_and_has_no_row(tmp_path: Path) -> None:
    report = report_of(full_run(), tmp_path)
    assert {skip.place.cell for skip in report.skips} == {"serial+grammar", "serial+spec+grammar"}
    chat = [cell.place.cell for cell in report.cells if cell.place.workload == "short-chat"]
    assert "serial+grammar" not in chat


def test_a_routing_check_has_a_lane_and_no_speed(tmp_path: Path) -> None:
    cell = figures(report_of(full_run(), tmp_path), "batch4+spec@routed")
    assert (cell.lane_taken, cell.lane_reason) == ("serial", "speculation runs serially")
    assert not cell.speed.is_known
    assert cell.ttft is None
    assert cell.ratios == ()


def test_peers_are_compared_with_cells_of_their_lane_only(tmp_path: Path) -> None:
    sample = blocks(serial=[20.0], batch=[60.0])
    sample.add("mlx-lm", 0, 10.0)
    sample.add("mlx-lm+batch4", 0, 30.0)
    report = report_of(sample, tmp_path)
    peers = {
        name: [item.baseline for item in figures(report, name).others]
        for name in ("serial", "batch4")
    }
    assert peers == {"serial": ["mlx-lm"], "batch4": ["mlx-lm+batch4"]}


def test_a_run_with_nothing_in_it_still_has_a_report(tmp_path: Path) -> None:
    report = report_of(Sample(), tmp_path)
    assert report.groups == ()
    assert report.exit_code == 6


def test_comparison_rows_are_finite(tmp_path: Path) -> None:
    rows = comparison_rows(report_of(full_run(), tmp_path))
    assert len(rows) == len({(row.workload, row.cell, row.baseline) for row in rows})
    assert all(row.estimate is not None and math.isfinite(row.estimate) for row in rows)


def test_renaming_a_cell_changes_no_figure(tmp_path: Path) -> None:
    sample = blocks(serial=[20.0, 21.0, 22.0], spec=[25.0, 26.0, 30.0])
    before = figures(report_of(sample, tmp_path), "serial+spec")
    renamed = Sample(run=sample.run, cells=dict(sample.cells))
    spec = sample.cells["serial+spec"]
    for name, values in (("serial", (20.0, 21.0, 22.0)), ("serial+spec", (25.0, 26.0, 30.0))):
        for block, tok_s in enumerate(values):
            renamed.add(name, block, tok_s)
    renamed.cells["serial+spec"] = replace(spec, name="serial+spec@zz")
    (tmp_path / "b").mkdir()
    after = figures(report_of(renamed, tmp_path / "b"), "serial+spec@zz")
    assert after.main == before.main
    assert after.speed == before.speed


def test_where_decode_steps_are_not_told_speeds_are_those_of_wall_time(tmp_path: Path) -> None:
    """A server of others beside a cell of ours: both are compared by what both have."""
    sample = Sample(run={"blocks": 3})
    silent = {"client_stream_s": 9.0, "client_delay_s": 0.18, "retries": 1}
    for block in range(3):
        sample.add("serial", block, 50.0, tokens=200)
        sample.add("serial+spec", block, None, tokens=100, **silent)
        sample.add("batch4", block, 100.0)
    report = report_of(sample, tmp_path)
    against = main(report, "serial+spec")
    assert (against.figure, against.ratio.estimate) == ("e2e", pytest.approx(0.5))
    assert main(report, "batch4").figure == "aggregate"
    metrics = {(row.cell, row.metric) for row in comparison_rows(report)}
    assert metrics == {("serial+spec", "e2e"), ("batch4", "aggregate")}
    assert figures(report, "serial+spec").client_delay == pytest.approx(0.02)
    assert figures(report, "serial").client_delay is None
    text = to_markdown(report)
    assert "wall time, prefill included" in text
    assert "ratios compare tokens a second of wall time" in plain_report(report)
    assert "serial+spec against serial." in text
    assert (
        "Client delay, at most, of the time between two events of a stream: serial+spec 2.0 %"
        in text
    )
    assert "sent again after a 429 that named a time: serial+spec 3." in text
    document = json.loads(to_json(report))
    named = {cell["cell"]: cell["ratio"].get("figure") for cell in document["cells"][1:]}
    assert named == {"serial+spec": "e2e", "batch4": None}
    environment = document["environment"]
    assert environment["client"]["retries"] == 3
    assert list(environment["client"]["delay_pct"].values()) == [pytest.approx(2.0)]
    assert "client" not in json.loads(to_json(report_of(full_run(), tmp_path / "b")))["environment"]
