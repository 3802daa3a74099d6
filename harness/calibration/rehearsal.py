"""A run without a model: the plan, the run loop, the database and the report are the real ones."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from harness import exit_codes
from harness.cells.cell import load_cells
from harness.planning.choices import Choices
from harness.planning.matrix import Matrix, plan_matrix
from harness.report import RunReport, build_report
from harness.resources import cells_dir
from harness.running.plan_rows import plan_trials, run_plan, settings_of
from harness.running.progress import Progress, Standing
from harness.running.run import RunLoop
from harness.store import ConditionRow, EvalStore, RunRow, TrialRow, new_id, utc_now
from harness.trials.target import Target
from harness.workloads.workload import Workload, load_workload

HOST = "rehearsal"


class Unseen:
    """Progress that nobody looks at."""

    def begin(self, seconds_left: float | None, num_trials: int) -> None:
        """Show nothing."""

    def turn(self, label: str, planned_tokens: int, share: float, standing: Standing) -> None:
        """Show nothing."""

    def tokens(self, count: int) -> None:
        """Show nothing."""

    def done(self, label: str, outcome: str, seconds: float, standing: Standing) -> None:
        """Show nothing."""

    def note(self, line: str) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


def rehearsal_matrix(choices: Choices, workloads: Mapping[str, Workload] | None = None) -> Matrix:
    """Return the matrix of some choices; models of any name draft for themselves.

    Args:
        workloads: by name; None reads those that exist.
    """
    found = workloads or {name: load_workload(name) for name in dict.fromkeys(choices.workloads)}
    return plan_matrix(choices, load_cells(cells_dir()), found, lambda model: model)


def rehearse(
    choices: Choices,
    target: Target,
    *,
    workloads: Mapping[str, Workload] | None = None,
    db: Path | None = None,
    progress: Progress | None = None,
) -> RunReport:
    """Run the matrix of some choices, on a metronome say, as on a clean machine; return its report.

    Args:
        db: the database that takes the run; None takes one that is thrown away.
        progress: None shows nothing.
    """
    matrix = rehearsal_matrix(choices, workloads)
    if db is not None:
        return _rehearse(matrix, target, db, progress or Unseen())
    with tempfile.TemporaryDirectory() as folder:
        return _rehearse(matrix, target, Path(folder) / "fm.db", progress or Unseen())


def _rehearse(matrix: Matrix, target: Target, db: Path, progress: Progress) -> RunReport:
    models = {pair.model: target.open(pair.model) for pair in matrix.pairs}
    run = _run_row(matrix)
    planned = plan_trials(matrix, run.run_id, models)
    with EvalStore.open(db) as store:
        store.begin_run(run_plan(matrix, run, models, planned))
        loop = RunLoop(store=store, target=target, progress=progress, observe=_calm)
        if loop.run(planned, []).ending == "finished":
            code = exit_codes.PASS
            store.finish_run(run.run_id, status="finished", exit_code=code, unquotable_reasons=[])
        return build_report(store.load_run(run.run_id))


def _run_row(matrix: Matrix) -> RunRow:
    choices, amounts = matrix.choices, matrix.choices.amounts()
    return RunRow(
        run_id=new_id(),
        created_at=utc_now(),
        tag=f"feature-matrix[{HOST}]",
        command="",
        preset=choices.preset,
        target=choices.target,
        seed=choices.seed,
        blocks=amounts.blocks,
        prompts=amounts.prompts,
        max_tokens=amounts.max_tokens,
        settings=settings_of(choices),
        plan_hash=matrix.digest,
        environment={"host": HOST},
    )


def _calm(trial: TrialRow) -> ConditionRow:
    return ConditionRow(
        run_id=trial.run_id, sampled_at=utc_now(), phase="trial", trial_id=trial.trial_id
    )
