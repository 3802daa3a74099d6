"""Where a step's time went, how many drafts a call accepted, and what memory allows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlite_utils import Database

from harness.report import build_report, to_html, to_json, to_markdown
from harness.report.attribution import BANDWIDTH, OTHER, PARTS, step_time
from harness.report.figures import Acceptance, CellFigures
from harness.report.mechanisms import histogram_rows
from harness.report.step_section import roofline_rows, step_rows
from harness.store import EvalStore, TrialRow
from tests.harness.report.full_run import full_run
from tests.harness.store.sample_run import Sample, reply

TIMES = {
    "decode_steps": 100,
    "step_s": 4.0,
    "plan_s": 0.1,
    "draft_s": 0.2,
    "build_s": 0.5,
    "launch_s": 2.0,
    "mask_s": 0.0,
    "sample_s": 0.3,
    "wait_s": 0.4,
    "commit_s": 0.25,
}
READS = {"weight_bytes": 1_000_000, "kv_token_bytes": 1_000, "kv_row_bytes": 500}


def cell_of(sample: Sample, folder: Path, name: str) -> tuple[CellFigures, dict[str, Any]]:
    """The figures of a cell, and its part of the JSON."""
    report = build_report(sample.load(folder))
    place = [cell.place.cell for cell in report.cells].index(name)
    return report.cells[place], json.loads(to_json(report))["cells"][place]


def planned(**changes: Any) -> TrialRow:
    """A trial that is done."""
    names = dict.fromkeys(("trial_id", "run_id", "model", "workload", "cell"), "x")
    return TrialRow(**names, block=0, order_in_block=0, status="done", **changes)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 500),
            st.lists(st.floats(0, 1e3), min_size=len(PARTS), max_size=len(PARTS)),
            st.floats(0, 10),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_parts_and_the_remainder_are_the_step(
    trials: list[tuple[int, list[float], float]],
) -> None:
    rows = [
        planned(
            decode_steps=steps,
            step_s=sum(parts) + rest,
            **dict(zip(PARTS.values(), parts, strict=True)),
        )
        for steps, parts, rest in trials
    ]
    told = step_time(rows)
    assert told is not None
    assert list(told.parts_s) == [*PARTS, OTHER]
    assert told.steps == sum(steps for steps, _, _ in trials)
    assert math.isclose(sum(told.parts_s.values()), told.step_s, abs_tol=1e-9)
    rest = sum(rest for _, _, rest in trials) / told.steps
    assert math.isclose(told.parts_s[OTHER], rest, rel_tol=1e-6, abs_tol=1e-6)


def test_the_parts_of_a_cell_are_those_of_its_mean_step(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", 0, **TIMES)
    sample.add("serial", 1, **{**TIMES, "decode_steps": 300, "wait_s": 5.2, "step_s": 8.8})
    figures, written = cell_of(sample, tmp_path, "serial")
    assert figures.step_time is not None
    assert figures.step_time.steps == 400
    parts = written["step_parts_ms"]
    assert list(parts) == [*PARTS, OTHER]
    assert parts["host_wait"] == pytest.approx(1000 * 5.6 / 400)
    assert parts["forward_launch"] == pytest.approx(1000 * 4.0 / 400)
    assert sum(parts.values()) == pytest.approx(1000 * 12.8 / 400)


def test_what_nobody_told_is_null(tmp_path: Path) -> None:
    figures, written = cell_of(full_run(), tmp_path, "serial")
    assert figures.step_time is figures.roofline is None
    assert written["step_parts_ms"] is written["roofline"] is written["accept_histogram"] is None


def test_a_routing_check_has_no_time(tmp_path: Path) -> None:
    sample = Sample(run={"environment": {BANDWIDTH: 10.0}})
    sample.add("batch4+spec@routed", tok_s=None, **TIMES, **READS)
    figures, _ = cell_of(sample, tmp_path, "batch4+spec@routed")
    assert figures.step_time is figures.roofline is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40))
def test_a_histogram_counts_every_call_by_the_drafts_it_accepted(
    calls: list[tuple[int, int]],
) -> None:
    """Each call drafts some tokens and accepts a prefix of them."""
    calls = [(drafted, min(drafted, accepted)) for drafted, accepted in calls]
    width = max((drafted for drafted, _ in calls), default=0)
    acceptance = Acceptance(
        drafted=sum(drafted for drafted, _ in calls),
        accepted=sum(accepted for _, accepted in calls),
        target_calls=len(calls),
        illegal=0,
        per_position=tuple(
            (
                sum(drafted > place for drafted, _ in calls),
                sum(accepted > place for _, accepted in calls),
            )
            for place in range(width)
        ),
    )
    direct = [sum(accepted == count for _, accepted in calls) for count in range(width + 1)]
    assert list(acceptance.histogram or ()) == direct
    assert acceptance.undrafted == sum(drafted == 0 for drafted, _ in calls)


@pytest.mark.parametrize(
    ("calls", "positions"), [(None, ((4, 2),)), (1, ((4, 2),)), (9, ((4, 2), (2, 3)))]
)
def test_counts_that_are_not_told_or_contradict_each_other_give_no_histogram(
    calls: int | None, positions: tuple[tuple[int, int], ...]
) -> None:
    told = Acceptance(drafted=4, accepted=2, target_calls=calls, illegal=0, per_position=positions)
    assert told.histogram is None


def test_a_histogram_stands_beside_the_curve(tmp_path: Path) -> None:
    sample = full_run(blocks=3)
    _, written = cell_of(sample, tmp_path, "serial+spec")
    # Per trial: 4 replies of 6 calls; 12, 6 and 2 drafts accepted at the three positions.
    assert written["accept_histogram"] == [12 * 3, 6 * 3, 4 * 3, 2 * 3]
    text = to_markdown(build_report(sample.load(tmp_path / "again")))
    assert "| tiny | short-chat | serial+spec | 72 | 24 | 36 | 18 | 12 | 6 |" in text


def test_the_bound_of_a_row_alone_is_bandwidth_over_what_a_token_reads(tmp_path: Path) -> None:
    sample = Sample(run={"environment": {BANDWIDTH: 2.0}})
    sample.add("serial", replies=[reply(ids=range(10))], tok_s=500.0, **READS)
    figures, written = cell_of(sample, tmp_path, "serial")
    read = 1_000_000 + 500 + 1_000 * (9 + 10 / 2)  # its prompt has 9 tokens
    assert written["roofline"] == {
        "bytes_per_token": read,
        "bandwidth_gb_s": 2.0,
        "bound_tok_s": pytest.approx(2e9 / read),
        "share": pytest.approx(500.0 * read / 2e9),
    }
    assert figures.roofline is not None


def test_rows_share_the_weights_and_drafts_share_a_call(tmp_path: Path) -> None:
    sample = Sample(run={"environment": {BANDWIDTH: 2.0}})
    lines = [reply(ids=range(10), drafted=8, accepted=3, target_calls=6)]
    sample.add("serial+spec", replies=lines, accepts=[(6, 3), (2, 0)], **READS)
    sample.add("batch4", replies=[reply(ids=range(10))], **READS)
    row = 500 + 1_000 * 14
    spec, _ = cell_of(sample, tmp_path, "serial+spec")
    batch, _ = cell_of(sample, tmp_path / "b", "batch4")
    assert spec.roofline is not None
    assert batch.roofline is not None
    assert spec.roofline.bytes_per_token == pytest.approx((1_000_000 + row) / (9 / 6))
    assert batch.roofline.bytes_per_token == pytest.approx((1_000_000 + 4 * row) / 4)


def test_without_a_bandwidth_only_the_bytes_are_told(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", **READS)
    _, written = cell_of(sample, tmp_path, "serial")
    line = written["roofline"]
    assert line.pop("bytes_per_token") > 1_000_000
    assert line == {"bandwidth_gb_s": None, "bound_tok_s": None, "share": None}


def test_the_mean_length_weighs_a_reply_by_its_tokens(tmp_path: Path) -> None:
    sample = Sample()
    lines = [
        reply("short", ids=range(2), prompt_tokens=100),
        reply("long", ids=range(6), prompt_tokens=10),
        reply("none", ids=(), prompt_tokens=1_000),
    ]
    sample.add("serial", replies=lines, **READS)
    figures, _ = cell_of(sample, tmp_path, "serial")
    assert figures.roofline is not None
    length = (2 * 101 + 6 * 13) / 8
    assert figures.roofline.bytes_per_token == 1_000_000 + 500 + 1_000 * length


def test_replies_without_tokens_give_no_bound(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", replies=[reply(ids=())], **READS)
    figures, _ = cell_of(sample, tmp_path, "serial")
    assert figures.roofline is None


def test_markdown_names_every_part_and_the_bound(tmp_path: Path) -> None:
    sample = Sample(run={"environment": {BANDWIDTH: 2.0}})
    sample.add("serial", replies=[reply(ids=range(10))], **TIMES, **READS)
    text = to_markdown(build_report(sample.load(tmp_path)))
    section = text.partition("## Where a step's time goes")[2].partition("\n## ")[0]
    for word in ("plan", "draft", "forward", "mask", "sample", "host wait", "commit", "other"):
        assert f"{word}" in section.splitlines()[2]
    assert "| 100 | 40.000 | 1.000 | 2.000 | 5.000 | 20.000 | 0.000 | 3.000 | 4.000 |" in section
    assert "| 20.0 | 1.01 | 2.0 | 1971 | 1 % |" in section


def test_html_shows_the_same_figures(tmp_path: Path) -> None:
    sample = Sample(run={"environment": {BANDWIDTH: 2.0}})
    lines = [reply(ids=range(10), drafted=8, accepted=3, target_calls=6)]
    sample.add("serial+spec", replies=lines, accepts=[(6, 3), (2, 0)], **TIMES, **READS)
    report = build_report(sample.load(tmp_path))
    text = to_html(report)
    for rows in (step_rows(report), roofline_rows(report), histogram_rows(report)):
        assert rows
        for figure in rows[0][3:]:
            assert f">{figure}<" in text


def test_a_database_from_before_opens_and_reports_what_it_has(tmp_path: Path) -> None:
    sample = Sample(run={"environment": {BANDWIDTH: 2.0}})
    sample.add("serial", **TIMES, **READS)
    sample.load(tmp_path)
    database = Database(tmp_path / "fm.db")
    added = [name for name in {**TIMES, **READS} if name not in OLD]
    for column in added:
        database.execute(f"ALTER TABLE trials DROP COLUMN {column}")
    database.execute("DELETE FROM _sqlite_migrations WHERE name = 'm005_step_parts'")
    database.conn.commit()
    database.close()
    with EvalStore.open(tmp_path / "fm.db") as store:
        data = store.load_run(sample.run_id)
    assert data.trials[0].draft_s == TIMES["draft_s"]
    assert data.trials[0].plan_s is data.trials[0].weight_bytes is None
    cell = build_report(data).cells[0]
    assert cell.step_time is cell.roofline is None


OLD = ("decode_steps", "step_s", "mask_s", "draft_s")
"""Columns that were there before the parts."""
