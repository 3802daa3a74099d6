"""What storing costs a run: the trials of a stored run, written again into a new database.

    uv run python benchmarks/record_cost.py [DB] [RUN]

Writes each finished trial of the run (results/fm.db, the latest) with its requests and one sample
of the machine, as the run loop does behind each trial, and compares the time this takes with what
the trial itself took. Prints the shares; the database write should stay below 1 % of a trial.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from harness.store import (
    ConditionRow,
    EvalStore,
    RunData,
    RunPlan,
    TrialRecord,
    TrialRow,
    utc_now,
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds to store one trial, and seconds that the trial took."""

    trial: TrialRow
    stored_s: float
    took_s: float

    @property
    def share(self) -> float:
        """Storing, as a share of the trial."""
        return self.stored_s / self.took_s


def main(arguments: list[str]) -> int:
    """Store the run again and print what that took."""
    path = Path(arguments[0] if arguments else "results/fm.db")
    with EvalStore.open_existing(path) as store:
        run = store.find_run(arguments[1] if len(arguments) > 1 else "latest")
        data = store.load_run(run.run_id)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        costs = store_again(data, Path(folder) / "fm.db")
    if not costs:
        print(f"run {run.run_id} has no finished trial")
        return 2
    shares = sorted(cost.share for cost in costs)
    stored, took = sum(cost.stored_s for cost in costs), sum(cost.took_s for cost in costs)
    worst = max(costs, key=lambda cost: cost.share)
    print(
        f"run {run.run_id}: {len(costs)} trials, {1000 * stored / len(costs):.1f} ms to store one, "
        f"{took / len(costs):.2f} s to run one"
    )
    print(
        f"share of a trial: {100 * stored / took:.2f} % over all, median "
        f"{100 * shares[len(shares) // 2]:.2f} %, at most {100 * worst.share:.2f} % "
        f"({1000 * worst.stored_s:.1f} ms of {worst.took_s:.2f} s)"
    )
    return 0


def store_again(data: RunData, path: Path) -> list[Cost]:
    """Write the finished trials of a run into a new database, on the disk of the old one."""
    pending = [
        TrialRow(
            **{
                name: getattr(trial, name)
                for name in (
                    "trial_id",
                    "run_id",
                    "block",
                    "order_in_block",
                    "model",
                    "workload",
                    "cell",
                )
            }
        )
        for trial in data.trials
    ]
    plan = RunPlan(
        run=replace(data.run, status="running"),
        models=data.models,
        workloads=data.workloads,
        cells=data.cells,
        trials=tuple(pending),
    )
    costs = []
    with EvalStore.open(path) as store:
        store.begin_run(plan)
        for trial in data.trials:
            if trial.status != "done" or trial.turns_s is None:
                continue
            record = TrialRecord(
                trial=trial,
                requests=tuple(row for row in data.requests if row.trial_id == trial.trial_id),
                accepts=tuple(row for row in data.accepts if row.trial_id == trial.trial_id),
            )
            sample = ConditionRow(run_id=trial.run_id, sampled_at=utc_now(), phase="trial")
            start = time.perf_counter()
            save = store.record_trial(record, [sample])
            stored_s = time.perf_counter() - start
            assert save.saved
            costs.append(Cost(trial, stored_s, trial.turns_s))
    return costs


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
