"""One `fm run`, from a person's choices to an exit code: prepare, begin or resume, run, conclude.

Everything that can be wrong with the choices, the files or the database is found before the first
trial and raised as FmError; after that nothing raises, and what happened is in the exit code.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from engine.errors import DownloadError, FmError, SettingError
from engine.models.registry import find_entry, pull
from engine.switches import switched_off
from harness import exit_codes
from harness.cells.cell import load_cells
from harness.conditions.processes import measured_roots
from harness.conditions.verdict import preflight_reasons
from harness.conditions.watch import Watch
from harness.downloads import Fetching
from harness.machine import blas_problem, git_state, read_machine, whereabouts
from harness.planning.choices import Choices
from harness.planning.drafters import draft_model_of
from harness.planning.matrix import Matrix, plan_matrix, skip_model, skip_pair
from harness.resources import cells_dir
from harness.revision import SHORT
from harness.roofline import memory_bandwidth_gb_s
from harness.running.claim import claimed
from harness.running.conclusion import Concluded, Places, conclude, interrupted, resume_hint
from harness.running.interrupts import interruptible, last_words, uninterrupted
from harness.running.partings import Finished
from harness.running.plan_rows import (
    PENDING,
    TO_DO,
    choices_of,
    finished_trials,
    going_on,
    keeps_failures,
    pending_trials,
    plan_trials,
    run_plan,
    settings_of,
    skipping_as_planned,
)
from harness.running.progress import Progress
from harness.running.run import Outcome, Planned, RunLoop
from harness.store import (
    ConditionRow,
    EvalStore,
    ModelRow,
    RunPlan,
    RunRow,
    StoreError,
    content_hash,
    new_id,
    utc_now,
)
from harness.store.rows import TrialStatus
from harness.trials.target import CannotRunError, Target
from harness.workloads.workload import load_workload

NO_VERDICT = "timing gets no verdict; --force gives one and marks the run"
FORCED = "verdicts are forced, the run is marked"
KEPT = "trials that failed are not run again, since a correctness gate has failed"


@dataclass(frozen=True, slots=True)
class Watched:
    """A watch over the machine, and what it saw before the first trial."""

    watch: Watch
    before: ConditionRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What every run needs.

    Args:
        progress: shows the run.
        fetching: makes the callback that shows a download.
        is_forced: give verdicts on a machine that is not clean, and mark the run.
    """

    target: Target
    places: Places
    progress: Progress
    fetching: Fetching
    is_forced: bool = False

    def start(self, matrix: Matrix) -> Concluded:
        """Run a new run.

        Raises:
            FmError: a model, a file or the database is wrong; nothing has been measured.
        """
        self.places.check()
        with (
            interruptible(),
            self._store(EvalStore.open) as store,
            watch_of(matrix.choices.target) as watch,
        ):
            matrix, models = self._prepared(matrix)
            watched = Watched(watch, watch.preflight())
            run = new_run(matrix, watched.before, is_forced=self.is_forced)
            planned = plan_trials(matrix, run.run_id, models)
            plan = run_plan(matrix, run, models, planned)
            with claimed(store.path, run.run_id):
                return self._through(
                    store, run.run_id, lambda: self._begun(store, plan, planned, watched)
                )

    def resume(self, reference: str) -> Concluded:
        """Go on with a run that was interrupted, killed or spooled, or has failed trials.

        Raises:
            FmError: there is no such run, it was planned with other files, or as for `start`.
        """
        self.places.check()
        with interruptible(), self._store(EvalStore.open_existing) as store:
            run = store.find_run(reference)
            check_switches(run)
            choices = choices_of(run)
            with claimed(store.path, run.run_id), watch_of(choices.target) as watch:
                check_unfinished(store.find_run(run.run_id))
                stored = store.load_plan(run.run_id)
                matrix, models = self._prepared(skipping_as_planned(matrix_of(choices), stored))
                pending_trials(matrix, stored, models)
                watched = Watched(watch, watch.preflight())
                store.resume_run(run.run_id)
                stored = store.load_plan(run.run_id)
                planned = pending_trials(matrix, stored, models, self._wanted(store, stored))
                earlier = finished_trials(matrix, stored, models)
                return self._through(
                    store, run.run_id, lambda: self._looped(store, run, planned, earlier, watched)
                )

    def _wanted(self, store: EvalStore, stored: RunPlan) -> Collection[TrialStatus]:
        """Return the statuses of trials that are run, and say it where failed ones are not."""
        has_failures = any(row.status == "failed" for row in stored.trials)
        if has_failures and keeps_failures(store.load_report(stored.run.run_id)):
            self.progress.note(KEPT)
            return PENDING
        return TO_DO

    @contextmanager
    def _store(self, open_store: Callable[..., EvalStore]) -> Iterator[EvalStore]:
        """Open the database; the target is freed however the block ends."""
        with open_store(self.places.db, lock_wait_s=self.places.lock_wait_s) as store:
            try:
                yield store
            finally:
                self.target.close()

    def _begun(
        self, store: EvalStore, plan: RunPlan, planned: list[Planned], watched: Watched
    ) -> Outcome:
        with uninterrupted():
            store.begin_run(plan)
        return self._looped(store, plan.run, planned, [], watched)

    def _through(self, store: EvalStore, run_id: str, work: Callable[[], Outcome]) -> Concluded:
        """Do a run's work and conclude it; an interrupt at any moment leaves it resumable."""
        try:
            return conclude(store, run_id, work(), self.places)
        except KeyboardInterrupt:
            with last_words():
                if not _is_begun(store, run_id):
                    raise
                return interrupted(store, run_id, self.places)
        except StoreError as error:
            if not _is_begun(store, run_id):
                raise
            notes = (str(error), resume_hint(run_id, self.places))
            code = exit_codes.INCOMPLETE
            return Concluded(run_id=run_id, exit_code=code, report=None, notes=notes)

    def _prepared(self, matrix: Matrix) -> tuple[Matrix, dict[str, ModelRow]]:
        """Fetch and open every model once; those that cannot be reached are skipped."""
        models: dict[str, ModelRow] = {}
        running = {pair.model for pair in matrix.pairs if not pair.skip_reason}
        for model in dict.fromkeys(pair.model for pair in matrix.pairs):
            models[model] = ModelRow(name=model, source=source_of(matrix, model))
            if model not in running:
                continue
            try:
                self._fetch(matrix, model)
                self.progress.note(f"opening {model}")
                models[model] = self.target.open(model)
            except DownloadError as error:
                matrix = skip_model(matrix, model, str(error))
                continue
            matrix = checked(matrix, model, self.target)
        return matrix, models

    def _fetch(self, matrix: Matrix, model: str) -> None:
        """Get a model and its drafters onto this machine, with progress."""
        if matrix.choices.is_remote:
            return
        drafts = {pair.cell.config.draft_model for pair in matrix.pairs if pair.model == model}
        for name in (model, *sorted(filter(None, drafts))):
            pull(name, self.fetching(name))

    def _looped(
        self,
        store: EvalStore,
        run: RunRow,
        planned: list[Planned],
        earlier: list[Finished],
        watched: Watched,
    ) -> Outcome:
        watch = watched.watch
        self._tell(run, watched.before)
        here = whereabouts(run.target)
        planned = going_on(planned, store.turns(run.run_id), content_hash(here))
        standing = {**watched.before.standing, **here}
        store.record_conditions([replace(watched.before, run_id=run.run_id, standing=standing)])
        watch.start(run.run_id)
        loop = RunLoop(
            store=store,
            target=self.target,
            progress=self.progress,
            observe=lambda trial: watch.after(trial.trial_id),
            sampled=watch.take,
            whereabouts=content_hash(here),
        )
        try:
            outcome = loop.run(planned, earlier)
        finally:
            self.target.close()
        with uninterrupted():
            *kept, last = watch.close()
            last = replace(last, standing={**last.standing, **whereabouts(run.target)})
            save = store.record_conditions([*kept, last])
        if not save.saved and outcome.ending == "finished":
            return Outcome("spooled", save)
        return outcome

    def _tell(self, run: RunRow, before: ConditionRow) -> None:
        """Say before the first trial why its timing gets no verdict, or who wanted one."""
        reasons = (*blas_problem(), *preflight_reasons([before]))
        for reason in reasons:
            self.progress.note(f"machine: {reason}")
        if reasons:
            self.progress.note(f"machine: {FORCED if run.is_forced else NO_VERDICT}")


def watch_of(target: str) -> Watch:
    """Return a watch over this machine for a run of a target."""
    return Watch(measured_roots(target))


def matrix_of(choices: Choices) -> Matrix:
    """Return the matrix of a person's choices, from the cells and workloads that exist.

    Raises:
        FmError: an unknown name, or a file that is wrong.
    """
    workloads = {name: load_workload(name) for name in dict.fromkeys(choices.workloads)}
    cells = load_cells(cells_dir())
    if choices.is_remote:
        return plan_matrix(choices, cells, workloads, lambda _model: None)
    for model in choices.models:
        find_entry(model)
    return plan_matrix(choices, cells, workloads, draft_model_of)


def source_of(matrix: Matrix, model: str) -> str:
    """Return where the weights of a model come from, "" where a server keeps them."""
    return "" if matrix.choices.is_remote else find_entry(model).source


def checked(matrix: Matrix, model: str, target: Target) -> Matrix:
    """Return the matrix with the pairs of an open model skipped that the target cannot run.

    Raises:
        FmError: something is wrong with a pair, whichever target runs it.
    """
    for pair in matrix.pairs:
        if pair.model == model and not pair.skip_reason:
            try:
                target.check(pair.cell, pair.workload)
            except CannotRunError as error:
                matrix = skip_pair(matrix, pair, str(error))
    return matrix


def stored_target(db: Path, reference: str) -> str:
    """Return the target of a stored run, which goes on with no other; FmError: no such run."""
    with EvalStore.open_existing(db) as store:
        run = store.find_run(reference)
    choices = choices_of(run)
    if choices.base:
        raise SettingError(
            f"run {run.run_id} compares with {choices.base[:SHORT]}; go on with: fm gate --resume "
            f"{run.run_id}"
        )
    return choices.target


def new_run(matrix: Matrix, before: ConditionRow, *, is_forced: bool = False) -> RunRow:
    """Return the row of a run that is about to begin on this machine.

    Args:
        before: the sample of the machine before it.
        is_forced: the run gives verdicts although the machine is not clean.
    """
    machine, git, choices = read_machine(), git_state(), matrix.choices
    amounts = choices.amounts()
    return RunRow(
        run_id=new_id(),
        created_at=utc_now(),
        tag=f"feature-matrix[{machine.host}] {choices.tag}".strip(),
        command=command_of(choices) + " --force" * is_forced,
        preset=choices.preset,
        seed=choices.seed,
        blocks=amounts.blocks,
        prompts=amounts.prompts,
        max_tokens=amounts.max_tokens,
        target=choices.target,
        settings={**settings_of(choices), **({"forced": True} if is_forced else {})},
        status="running",
        plan_hash=matrix.digest,
        git_sha=git.sha,
        git_dirty=git.is_dirty,
        environment={
            **machine.as_dict(),
            "switches_off": list(switched_off()),
            "target": choices.target,
            "memory_bandwidth_gb_s": None if choices.is_remote else memory_bandwidth_gb_s(),
        },
        machine_refusals=(*blas_problem(), *preflight_reasons([before])),
    )


def check_unfinished(run: RunRow) -> None:
    """Raise SettingError for a run with nothing left to do: going on would only spoil its record.

    One that finished incomplete may have trials that failed, or replies that wait to be judged.
    """
    if run.status == "finished" and run.exit_code != exit_codes.INCOMPLETE:
        raise SettingError(
            f"run {run.run_id} is finished; see it with: fm report {run.run_id}, or start a new run"
        )


def check_switches(run: RunRow) -> None:
    """Raise SettingError when other kill switches are off now than when the run began."""
    kept = run.environment.get("switches_off")
    if kept is None:
        return
    now = switched_off()
    gone = [name for name in kept if name not in now]
    new = [name for name in now if name not in kept]
    began = [f"with {name}=0" for name in gone] + [f"without {name}=0" for name in new]
    remedy = [f"set {name}=0" for name in gone] + [f"unset {name}" for name in new]
    if began:
        raise SettingError(
            f"run {run.run_id} began {' and '.join(began)}; {' and '.join(remedy)} to go on with "
            "it, or start a new run"
        )


def command_of(choices: Choices) -> str:
    """Return the command line that repeats a run, every choice spelled out."""
    values = {
        "--base": choices.base or None,
        "--cells": ",".join(choices.cells),
        "--models": ",".join(choices.models),
        "--workloads": ",".join(choices.workloads),
        "--preset": choices.preset,
        "--target": None if choices.target == Choices().target else choices.target,
        "--blocks": choices.blocks,
        "--prompts": choices.prompts,
        "--max-tokens": choices.max_tokens,
        "--temperature": choices.temperature or None,
        "--tag": choices.tag or None,
        "--seed": choices.seed,
    }
    words = ["fm", "gate" if choices.base else "run"]
    for flag, value in values.items():
        words += [] if value is None else [flag, str(value)]
    return shlex.join(words)


def _is_begun(store: EvalStore, run_id: str) -> bool:
    try:
        return bool(store.find_run(run_id))
    except FmError:
        return False
