"""Finished runs that are quotable, or not, made of hand-written observations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.report import build_report
from harness.store import EvalStore, ModelRow, WorkloadRow
from tests.harness.store.sample_run import CHAT, MODEL, Sample, reply

ONE = "01M8R0000000000000000000A1"
TWO = "01M8R0000000000000000000A2"
THREE = "01M8R0000000000000000000A3"
MACHINE = {"host": "box", "device": "cpu", "device_name": "Toy CPU", "usable_cores": 2}
STEADY = (20.0, 20.1, 19.9, 20.0, 20.1, 19.9)


def steady_run(
    run_id: str = ONE,
    *,
    speedup: float = 1.3,
    blocks: int = 6,
    model: ModelRow = MODEL,
    workload: WorkloadRow = CHAT,
    **run: Any,
) -> Sample:
    """Return a run whose speeds are steady and whose baseline was repeated: it is quotable."""
    sample = Sample(run_id=run_id, run={"blocks": blocks, "environment": MACHINE, **run})
    for block, tok_s in enumerate(STEADY[:blocks]):
        for name, times in {"serial": 1.0, "serial@aa": 1.0, "serial+spec": speedup}.items():
            sample.add(name, block, tok_s * times, [reply()], model=model, workload=workload)
    return sample


def finish(store: EvalStore, sample: Sample) -> None:
    """Store a run and conclude it as `fm run` does."""
    sample.store_in(store)
    data = store.load_run(sample.run_id)
    report = build_report(replace(data, run=replace(data.run, status="finished")))
    store.record_gates(sample.run_id, report.gates)
    store.finish_run(
        sample.run_id,
        status="finished",
        exit_code=report.exit_code,
        unquotable_reasons=report.unquotable_reasons,
    )


def database(folder: Path, *samples: Sample) -> Path:
    """Return a database that holds these runs, all of them concluded."""
    path = folder / "fm.db"
    with EvalStore.open(path) as store:
        for sample in samples:
            finish(store, sample)
    return path
