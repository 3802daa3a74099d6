"""What an engine counts of its own work: the same for the same trial, whatever the clock says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import engine.flight
from engine.models.load import load_model
from harness.store import TrialRow
from harness.store.codec import decode, encode
from harness.targets.in_process import InProcess
from tests.harness.jobs import PEOPLE, run
from tests.harness.store.sample_run import Sample

EXACT = ("steps", "positions", "host_syncs", "mask_calls")


@pytest.fixture
def target() -> Iterator[InProcess]:
    opened = InProcess(load=load_model, folder_of=lambda name: Path())
    opened.open("tiny-thinking")
    yield opened
    opened.close()


def counted(target: InProcess, cell: str, block: int = 0) -> dict[str, int]:
    return dict(run(target, cell, PEOPLE, count=2, max_tokens=12, block=block).trial.counters)


def test_a_trial_counts_the_same_each_time(target: InProcess) -> None:
    cell = "serial+spec+grammar@draft_budgets=fixed"
    first, again = counted(target, cell), counted(target, cell, block=1)
    assert {name: first[name] for name in EXACT} == {name: again[name] for name in EXACT}
    assert all(first[name] > 0 for name in EXACT)
    assert first["compiles"] == again["compiles"] == 1
    assert first["kv_bytes"] > 0


def test_masks_are_counted_where_they_are_filled(
    target: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = counted(target, "serial+grammar")["mask_calls"]
    fill = engine.flight.fill_masks

    def twice(*arguments: object) -> object:
        fill(*arguments)
        return fill(*arguments)

    monkeypatch.setattr(engine.flight, "fill_masks", twice)
    assert counted(target, "serial+grammar", block=1)["mask_calls"] == 2 * before
    assert counted(target, "serial")["mask_calls"] == 0


def test_counters_are_stored_with_the_trial(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", counters={"steps": 7, "kv_bytes": 2**40})
    sample.add("serial+grammar")
    trials = {len(trial.counters): trial for trial in sample.load(tmp_path).trials}
    assert trials[2].counters == {"steps": 7, "kv_bytes": 2**40}
    assert trials[0].counters == {}


def test_a_row_of_another_version_is_read_with_defaults() -> None:
    row = TrialRow(
        trial_id="t", run_id="r", block=0, order_in_block=0, model="m", workload="w", cell="c"
    )
    columns = encode(replace(row, counters={"steps": 1}, reason="why"))
    del columns["counters"]
    columns["warp"] = 9
    assert decode(TrialRow, columns) == replace(row, reason="why")
