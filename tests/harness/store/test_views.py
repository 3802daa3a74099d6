"""The views say of a run what plain Python says of its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.stats import per_stream_rate, percentile
from harness.store import EvalStore, RequestRow, RunData
from tests.harness.store.sample_run import EXTRACT, Sample, reply


def figure(data: RunData, cell: str, name: str) -> tuple[int, float, float] | None:
    for row in data.figures:
        if (row.cell, row.figure) == (cell, name):
            return row.n, row.p50, row.p95
    return None


@pytest.mark.parametrize("count", [1, 2, 3, 19, 20, 21, 59, 100])
def test_percentiles_of_the_views_are_the_nearest_rank(tmp_path: Path, count: int) -> None:
    times = [0.01 * ((7 * place) % 101) + 0.01 for place in range(count)]
    sample = Sample()
    sample.add("serial", replies=[reply(f"p{n}", ttft_s=time) for n, time in enumerate(times)])
    assert figure(sample.load(tmp_path), "serial", "ttft") == (
        count,
        percentile(times, 50),
        percentile(times, 95),
    )


def test_short_and_timeless_replies_have_no_rate_and_are_counted(tmp_path: Path) -> None:
    replies = [
        reply("empty", ids=(), ttft_s=None, last_token_s=None),
        reply("one", ids=(1,), ttft_s=0.04, last_token_s=0.04),
        reply("eleven", ids=range(11), ttft_s=0.04, last_token_s=0.14),
        reply("timeless", ids=range(5), ttft_s=0.04, last_token_s=0.04),
    ]
    sample = Sample()
    sample.add("serial", replies=replies)
    sample.add("serial+spec", tok_s=None, wall_s=0.0, replies=replies[:2])
    data = sample.load(tmp_path)
    n, p50, _ = figure(data, "serial", "per_stream") or (0, 0.0, 0.0)
    assert (n, p50) == (1, pytest.approx(100.0))
    assert figure(data, "serial+spec", "per_stream") is None
    assert figure(data, "serial+spec", "aggregate") is None
    assert figure(data, "serial+spec", "e2e") is None
    totals = {row.cell: row for row in data.totals}
    assert (totals["serial"].empty_replies, totals["serial"].one_token_replies) == (1, 1)
    assert totals["serial+spec"].requests == 2


REPLIES = st.builds(
    reply,
    ids=st.lists(st.integers(0, 9), max_size=4),
    ttft_s=st.none() | st.floats(0.01, 2),
    last_token_s=st.none() | st.floats(0.01, 3),
    status=st.sampled_from(["ok", "ok", "error"]),
    phase=st.sampled_from(["measured", "measured", "warmup"]),
)


@settings(max_examples=25)
@given(replies=st.lists(REPLIES, max_size=12))
def test_the_rates_of_the_views_are_those_of_the_statistics(
    tmp_path_factory: pytest.TempPathFactory, replies: list[RequestRow]
) -> None:
    sample = Sample()
    sample.add("serial", replies=replies)
    data = sample.load(tmp_path_factory.mktemp("views"))
    good = [item for item in replies if item.status == "ok" and item.phase == "measured"]
    rates = [
        found
        for item in good
        if (found := per_stream_rate(item.completion_tokens, item.ttft_s, item.last_token_s))
    ]
    row = figure(data, "serial", "per_stream")
    assert (row is None) == (not rates)
    if row is not None:
        assert row == (
            len(rates),
            pytest.approx(percentile(rates, 50)),
            pytest.approx(percentile(rates, 95)),
        )


def test_a_block_is_paired_with_its_own_baseline(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", block=0, tok_s=10.0)
    sample.add("serial", block=1, tok_s=20.0)
    sample.add("serial+spec", block=0, tok_s=15.0)
    sample.add("serial+spec", block=1, tok_s=25.0)
    sample.add("serial+spec", block=2, tok_s=30.0)
    # One of the two failed, and ran again when the other was long through.
    sample.add("serial", block=3, tok_s=10.0)
    sample.add("serial+spec", block=3, tok_s=40.0, failed_before=("boom",))
    data = sample.load(tmp_path)
    pairs = {
        row.block: (row.baseline_tok_s, row.ratio)
        for row in data.blocks
        if row.cell == "serial+spec"
    }
    assert pairs == {
        0: (pytest.approx(10.0), pytest.approx(1.5)),
        1: (pytest.approx(20.0), pytest.approx(1.25)),
        2: (None, None),
        3: (pytest.approx(10.0), None),
    }


def test_warm_up_is_in_no_figure(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", replies=[reply("w", phase="warmup", ttft_s=9.0), reply("p", ttft_s=0.1)])
    data = sample.load(tmp_path)
    assert figure(data, "serial", "ttft") == (1, 0.1, 0.1)
    assert data.totals[0].requests == 1


def test_the_acceptance_curve_adds_up_the_trials(tmp_path: Path) -> None:
    sample = Sample()
    for block in range(2):
        sample.add("serial+spec", block=block, accepts=[(10, 8), (8, 2)])
    curve = [
        (row.position, row.drafted, row.accepted) for row in sample.load(tmp_path).accept_curve
    ]
    assert curve == [(0, 20, 16), (1, 16, 4)]


def test_grammar_cost_comes_from_the_replay(tmp_path: Path) -> None:
    sample = Sample()
    for block, masked_s in enumerate((2.00, 2.02, 2.40)):
        sample.add(
            "serial+grammar",
            block=block,
            workload=EXTRACT,
            replay_tokens=100,
            replay_plain_s=2.0,
            replay_masked_s=masked_s,
            replay_mask_s=0.003,
        )
    data = sample.load(tmp_path)
    assert figure(data, "serial+grammar", "grammar_overhead") == (
        3,
        pytest.approx(1.0),
        pytest.approx(20.0),
    )
    assert figure(data, "serial+grammar", "mask_us") == (3, pytest.approx(30), pytest.approx(30))


def test_the_history_has_one_line_for_each_cell_that_ran(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial")
    sample.add("serial+spec", tok_s=None)
    sample.plan("serial+grammar")
    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
        history = store._connection.read(
            lambda raw: [tuple(row) for row in raw.execute("SELECT cell, n_blocks FROM v_history")]
        )
    assert history == [("serial", 1), ("serial+spec", None)]
