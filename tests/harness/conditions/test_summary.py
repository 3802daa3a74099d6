"""What the samples of a run say in a few lines."""

from __future__ import annotations

from harness.conditions.summary import summary
from harness.store.rows import ConditionRow


def row(**values: object) -> ConditionRow:
    return ConditionRow(run_id="r", sampled_at="", phase="running", **values)  # type: ignore[arg-type]  # values of any field


def test_each_figure_is_told_by_its_median_and_its_most() -> None:
    rows = [
        row(window_s=5.0, others_cores=cores, swapped_bytes=2**20, frequency_mhz=clock)
        for cores, clock in ((0.0, 3500.0), (0.1, 3400.0), (0.9, None))
    ]

    assert summary(rows) == (
        "the machine was watched for 15 s in 3 samples",
        "used by other processes: 0.10 cores at the median, 0.90 at most",
        "swapped: 0.20 MiB/s at the median, 0.20 at most",
        "clock of the processor: 3400 to 3500 MHz",
    )


def test_runs_without_a_watch_have_no_summary() -> None:
    assert summary([]) == ()
    assert summary([row(load_1m=1.0)]) == ()
