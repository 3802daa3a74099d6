"""From a matrix to the rows of a run, and back again when a run is resumed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace

from engine.errors import SettingError
from harness.cells.cell import Cell
from harness.judging import gates
from harness.planning.choices import Choices
from harness.planning.matrix import Matrix, Pair, PlannedTrial, identity_reference, ratio_baseline
from harness.running.partings import Finished
from harness.running.run import Planned
from harness.store import (
    CellRow,
    ModelRow,
    RunData,
    RunPlan,
    RunRow,
    TrialRow,
    TurnRow,
    WorkloadRow,
    new_id,
    record_from,
)
from harness.store.rows import TrialStatus
from harness.workloads.workload import Workload

Key = tuple[str, str, str, int]
"""Model key, workload hash, cell hash, block: what makes a trial unique in its run."""

PENDING: Collection[TrialStatus] = frozenset({"pending"})
TO_DO: Collection[TrialStatus] = frozenset({"pending", "failed"})
"""Statuses of the trials that going on with a run runs, unless what failed has to be kept."""


def run_plan(
    matrix: Matrix,
    run: RunRow,
    models: Mapping[str, ModelRow],
    planned: Sequence[Planned],
) -> RunPlan:
    """Return every row that is written before the first trial.

    Args:
        models: what each model of the matrix turned out to be, by the name it was asked for.
        planned: the trials that will run; skipped pairs are added, once each, with their reason.
    """
    workloads = {pair.workload.name: pair.workload for pair in matrix.pairs}
    skipped = [_skipped_row(run.run_id, pair, models) for pair in matrix.skipped]
    return RunPlan(
        run=run,
        models=tuple(models.values()),
        workloads=tuple(map(workload_row, workloads.values())),
        cells=tuple(map(cell_row, matrix.cells)),
        trials=(*(item.row for item in planned), *skipped),
    )


def plan_trials(matrix: Matrix, run_id: str, models: Mapping[str, ModelRow]) -> list[Planned]:
    """Return the trials of a new run with fresh rows, in the order in which they run."""
    return [
        Planned(
            trial,
            TrialRow(
                trial_id=new_id(),
                run_id=run_id,
                block=trial.block,
                order_in_block=trial.order,
                model=models[trial.pair.model].key,
                workload=trial.pair.workload.digest,
                cell=trial.pair.cell.digest,
                lane_declared=trial.pair.cell.lane_taken,
            ),
        )
        for trial in matrix.trials()
    ]


def pending_trials(
    matrix: Matrix,
    stored: RunPlan,
    models: Mapping[str, ModelRow],
    wanted: Collection[TrialStatus] = TO_DO,
) -> list[Planned]:
    """Return the trials of a stored run that are still to do, in the order of the plan.

    Those that failed are among them, as another attempt.

    Args:
        wanted: statuses of trials that are to do.

    Raises:
        SettingError: the matrix is not the one that the run was planned with.
    """
    rows = {_key_of(row): row for row in stored.trials}
    found = [(trial, rows.get(_key(trial, models))) for trial in matrix.trials()]
    if any(row is None for _, row in found) or matrix.digest != stored.run.plan_hash:
        raise SettingError(
            f"run {stored.run.run_id} was planned with other cells, workloads or models than there "
            "are now; start a new run"
        )
    return [
        Planned(trial, _next_attempt(row))
        for trial, row in found
        if row is not None and row.status in wanted
    ]


def going_on(
    planned: Sequence[Planned], turns: Sequence[TurnRow], whereabouts: str
) -> list[Planned]:
    """Return trials with the turns that they are through with, each as far as none is missing.

    Args:
        turns: of any trials of the run.
        whereabouts: of this life of the run; a trial is of one machine and one code.
    """
    kept = {
        (row.trial_id, row.attempt, row.turn): row
        for row in turns
        if row.whereabouts == whereabouts
    }
    found = []
    for item in planned:
        row, told = item.row, []
        # The last turn is kept as its trial alone.
        for turn in range(item.num_turns - 1):
            if (known := kept.get((row.trial_id, row.attempt, turn))) is None:
                break
            told.append(record_from(known.record))
        found.append(replace(item, told=tuple(told)))
    return found


def keeps_failures(data: RunData) -> bool:
    """True for a run in which a correctness gate has failed.

    What speaks against a run is not run again until it speaks no more.
    """
    return any(gate.status == "fail" for gate in gates.evaluate(data))


def _next_attempt(row: TrialRow) -> TrialRow:
    """Return a trial as it is planned: of one that failed, only why it did is kept."""
    if row.status != "failed":
        return row
    return TrialRow(
        trial_id=row.trial_id,
        run_id=row.run_id,
        block=row.block,
        order_in_block=row.order_in_block,
        model=row.model,
        workload=row.workload,
        cell=row.cell,
        lane_declared=row.lane_declared,
        failed_before=(*row.failed_before, row.reason),
    )


def skipping_as_planned(matrix: Matrix, stored: RunPlan) -> Matrix:
    """Return the matrix without the pairs that a stored run left out when it began.

    What stood in their way, such as a model out of reach, may be gone; the run goes on as planned.
    """
    names = {row.key: row.name for row in stored.models}
    reasons = {
        (names[row.model], row.workload, row.cell): row.reason
        for row in stored.trials
        if row.status == "skipped"
    }
    pairs = (
        replace(pair, skip_reason=pair.skip_reason or reasons.get(_names(pair), ""))
        for pair in matrix.pairs
    )
    return replace(matrix, pairs=tuple(pairs))


def _names(pair: Pair) -> tuple[str, str, str]:
    return (pair.model, pair.workload.digest, pair.cell.digest)


def finished_trials(
    matrix: Matrix, stored: RunPlan, models: Mapping[str, ModelRow]
) -> list[Finished]:
    """Return the trials of a stored run that were done."""
    rows = {_key_of(row): row for row in stored.trials if row.status == "done"}
    return [
        Finished(trial.pair, row)
        for trial in matrix.trials()
        if (row := rows.get(_key(trial, models))) is not None
    ]


def choices_of(run: RunRow) -> Choices:
    """Return the choices a stored run was started with.

    Raises:
        SettingError: it was stored by hand, or by an fm that kept other ones.
    """
    try:
        return _choices_from(run)
    except (KeyError, TypeError) as error:
        raise SettingError(
            f"run {run.run_id} does not say what was chosen for it ({error}); start a new run"
        ) from error


def _choices_from(run: RunRow) -> Choices:
    chosen = run.settings
    return Choices(
        cells=tuple(chosen["cells"]),
        models=tuple(chosen["models"]),
        workloads=tuple(chosen["workloads"]),
        preset=chosen["preset"],
        target=chosen.get("target", run.target),
        blocks=chosen["blocks"],
        prompts=chosen["prompts"],
        max_tokens=chosen["max_tokens"],
        temperature=chosen.get("temperature", 0.0),
        seed=chosen["seed"],
        base=chosen.get("base", ""),
        tag=chosen.get("tag", ""),
    )


def settings_of(choices: Choices) -> dict[str, object]:
    """Return what choices_of needs, as the run's row keeps it."""
    return asdict(choices)


def cell_row(cell: Cell) -> CellRow:
    """Return the database row of a cell."""
    key, baseline, reference = cell.key, ratio_baseline(cell), identity_reference(cell)
    return CellRow(
        content_hash=cell.digest,
        name=cell.name,
        lane=key.lane,
        max_rows=cell.rows,
        features=key.features,
        kind=cell.kind.value,
        settings=asdict(cell.config),
        expected_lane="" if key.is_peer or cell.is_remote else cell.lane_taken,
        baseline=None if baseline is None else str(baseline),
        reference=None if reference is None else str(reference),
        bare=None if key.is_bare and key.bare_lane() == key else str(key.bare_lane()),
    )


def workload_row(workload: Workload) -> WorkloadRow:
    """Return the database row of a workload."""
    return WorkloadRow(
        content_hash=workload.digest,
        name=workload.name,
        num_prompts=len(workload.prompts),
        max_tokens=workload.max_tokens,
        is_constrained=workload.is_constrained,
        allows_truncation=workload.allow_truncation,
    )


def _skipped_row(run_id: str, pair: Pair, models: Mapping[str, ModelRow]) -> TrialRow:
    return TrialRow(
        trial_id=new_id(),
        run_id=run_id,
        block=0,
        order_in_block=0,
        model=models[pair.model].key,
        workload=pair.workload.digest,
        cell=pair.cell.digest,
        status="skipped",
        reason=pair.skip_reason,
    )


def _key(trial: PlannedTrial, models: Mapping[str, ModelRow]) -> Key:
    pair = trial.pair
    return (
        models[pair.model].key,
        pair.workload.digest,
        pair.cell.digest,
        trial.block,
    )


def _key_of(row: TrialRow) -> Key:
    return (row.model, row.workload, row.cell, row.block)
