"""What a run says of itself as it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import exit_codes
from harness.report import build_report, to_html, to_json, to_markdown
from harness.running.conclusion import Places, conclude
from harness.running.run import Outcome
from harness.store import DivergenceRow, EvalStore
from tests.harness.store.sample_run import Sample, reply


@pytest.mark.parametrize("gap", [None, 1e-5, 0.5], ids=["unjudged", "near-tie", "wrong"])
def test_a_run_writes_as_it_ends_what_a_later_report_says(
    tmp_path: Path, gap: float | None
) -> None:
    """Which replies a report shows depends on the gates that are stored, and on the run's end."""
    sample = Sample(run={"status": "running"})
    sample.add("serial", replies=[reply(ids=(1, 2))])
    trial = sample.add("serial+spec", replies=[reply(ids=(1, 3))])
    if gap is not None:
        sample.divergences.append(
            DivergenceRow(
                trial_id=trial.trial_id, prompt_id="p1", reference="serial", position=1, gap=gap
            )
        )
    places = Places(db=tmp_path / "fm.db", reports=tmp_path / "reports", json=tmp_path / "run.json")
    with EvalStore.open(places.db) as store:
        sample.store_in(store)
        ended = conclude(store, sample.run_id, Outcome("finished"), places)
        later = build_report(store.load_report(sample.run_id))
    is_wrong = gap is None or gap > 1e-3
    assert ended.exit_code == (exit_codes.CORRECTNESS if is_wrong else exit_codes.PASS)
    assert bool(later.partings) == is_wrong
    for ending, write in {"md": to_markdown, "html": to_html}.items():
        (written,) = places.reports.glob(f"*.{ending}")
        assert written.read_text(encoding="utf-8") == write(later)
    assert (tmp_path / "run.json").read_text(encoding="utf-8") == to_json(later)
