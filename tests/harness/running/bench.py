"""A store, a matrix and a run in it, for tests that drive the run loop by hand."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path

from harness.cells.cell import load_cells
from harness.judging import gates
from harness.planning.choices import Choices
from harness.planning.matrix import Matrix, plan_matrix
from harness.running.plan_rows import (
    finished_trials,
    going_on,
    pending_trials,
    plan_trials,
    run_plan,
    settings_of,
)
from harness.running.progress import LineProgress
from harness.running.run import Outcome, RunLoop
from harness.store import (
    ConditionRow,
    EvalStore,
    GateRow,
    ModelRow,
    RunData,
    RunRow,
    TrialRow,
    new_id,
    utc_now,
)
from harness.workloads.workload import Prompt, Workload
from tests.harness.scripted import Scripted

ROOT = Path(__file__).parents[3]
CATALOGUE = load_cells(ROOT / "cells")
CHOICES = Choices(cells=("batch2", "spec"), models=("m",), workloads=("chat",), blocks=3, prompts=2)


def workload(name: str = "chat") -> Workload:
    prompts = tuple(
        Prompt(id=f"{name}-{place}", messages=({"role": "user", "content": "?"},))
        for place in range(7)
    )
    return Workload(
        name=name,
        kind="text",
        description="questions",
        max_tokens=20,
        prompts=prompts[1:],
        warmup=prompts[:1],
        schemas={},
        must_compile=0,
        allow_truncation=True,
        digest=f"digest of {name}",
    )


def matrix_of(choices: Choices) -> Matrix:
    workloads = {name: workload(name) for name in choices.workloads}
    return plan_matrix(choices, CATALOGUE, workloads, lambda model: None)


def condition(trial: TrialRow) -> ConditionRow:
    return ConditionRow(
        run_id=trial.run_id, sampled_at=utc_now(), phase="trial", trial_id=trial.trial_id
    )


@dataclass
class Bench:
    """A store, a matrix and a run in it, driven by hand."""

    store: EvalStore
    matrix: Matrix
    models: dict[str, ModelRow]
    run_id: str

    def go(
        self, target: Scripted, stream: io.StringIO | None = None, whereabouts: str = "here"
    ) -> Outcome:
        stored = self.store.load_plan(self.run_id)
        loop = RunLoop(
            store=self.store,
            target=target,
            progress=LineProgress(stream or io.StringIO()),
            observe=condition,
            clock=target.clock,
            whereabouts=whereabouts,
        )
        planned = pending_trials(self.matrix, stored, self.models)
        return loop.run(
            going_on(planned, self.store.turns(self.run_id), whereabouts),
            finished_trials(self.matrix, stored, self.models),
        )

    @property
    def data(self) -> RunData:
        return self.store.load_run(self.run_id)

    def gate(self, name: str) -> list[GateRow]:
        """The gate as a run that has come to its end is judged."""
        ended = replace(self.data, run=replace(self.data.run, status="finished"))
        return [row for row in gates.evaluate(ended) if row.name == name]


def begin(folder: Path, choices: Choices = CHOICES) -> Bench:
    matrix = matrix_of(choices)
    models = {name: Scripted().open(name) for name in choices.models}
    store = EvalStore.open(folder / "fm.db")
    run = RunRow(
        run_id=new_id(),
        created_at=utc_now(),
        tag="feature-matrix[test]",
        command="fm run",
        preset=choices.preset,
        seed=choices.seed,
        blocks=choices.amounts().blocks,
        prompts=choices.amounts().prompts,
        settings=settings_of(choices),
        plan_hash=matrix.digest,
    )
    store.begin_run(run_plan(matrix, run, models, plan_trials(matrix, run.run_id, models)))
    return Bench(store, matrix, models, run.run_id)
