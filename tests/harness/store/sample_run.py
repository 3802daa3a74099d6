"""Runs made of hand-written observations, stored and loaded through the real store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.store import (
    AcceptRow,
    CellRow,
    ConditionRow,
    DivergenceRow,
    EvalStore,
    LawRow,
    ModelRow,
    RequestRow,
    RunData,
    RunPlan,
    RunRow,
    TrialRecord,
    TrialRow,
    WorkloadRow,
)

MODEL = ModelRow(name="tiny", digest="d" * 64, source="pypi:x", dtype="float32")
CHAT = WorkloadRow(content_hash="w-chat", name="short-chat", num_prompts=32, max_tokens=128)
EXTRACT = WorkloadRow(
    content_hash="w-json", name="json-extract", num_prompts=32, max_tokens=256, is_constrained=True
)


def cell(name: str, **changes: Any) -> CellRow:
    """Return a cell row whose lane and features are read from its name."""
    words = name.partition("@")[0].split("+")
    rows = next((int(word[5:]) for word in words if word.startswith("batch")), 1)
    features = tuple(word for word in ("spec", "fill", "grammar") if word in words)
    is_peer = words[0] == "mlx-lm"
    row = CellRow(
        content_hash=f"c-{name}",
        name=name,
        lane="batch" if rows > 1 else "serial",
        max_rows=rows,
        features=features,
        kind="peer" if is_peer else "perf",
        settings={"drafter": "ngram", "num_draft_tokens": 4 if "spec" in features else 0},
        expected_lane="" if is_peer else "batch" if rows > 1 else "serial",
        baseline=None,
        reference=None,
    )
    return replace(row, **changes)


CELLS = {
    row.name: row
    for row in (
        cell("serial"),
        cell("serial@aa", kind="aa", baseline="serial", reference="serial"),
        cell("serial+grammar", baseline="serial", bare="serial"),
        cell("serial+spec", baseline="serial", reference="serial", bare="serial"),
        cell(
            "serial+spec+grammar",
            baseline="serial+grammar",
            reference="serial+grammar",
            bare="serial",
        ),
        cell("batch4", baseline="serial", reference="serial"),
        cell("batch4+grammar", baseline="batch4", reference="serial+grammar", bare="batch4"),
        cell("batch4+spec@routed", kind="routing", expected_lane="serial", reference="serial"),
        cell(
            "serial+spec@two-model",
            baseline="serial",
            reference="serial",
            settings={"drafter": "two_model", "draft_model": "tiny", "num_draft_tokens": 3},
        ),
        cell(
            "serial+spec@rejection",
            baseline="serial",
            reference="serial",
            settings={"acceptance": "rejection"},
        ),
        cell("mlx-lm"),
        cell("mlx-lm+batch4"),
    )
}


def reply(prompt_id: str = "p1", ids: Sequence[int] = (5, 6, 7), **changes: Any) -> RequestRow:
    """Return a measured request that went well; its first token came after 0.1 s."""
    count = len(ids)
    row = RequestRow(
        trial_id="",
        position=0,
        prompt_id=prompt_id,
        finish_reason="stop",
        prompt_tokens=9,
        completion_tokens=count,
        cached_tokens=0,
        ttft_s=0.1 if count else None,
        ttft_visible_s=0.1 if count else None,
        last_token_s=0.1 + 0.05 * (count - 1) if count else None,
        e2e_s=0.1 + 0.05 * count,
        text=" ".join(map(str, ids)),
        token_ids=tuple(ids),
        lane_taken="serial",
        sampling={"temperature": 0.0},
    )
    return replace(row, **changes)


@dataclass
class Sample:
    """A run under construction: plan and observations are written together by `load`."""

    run_id: str = "01M8R0000000000000000000A1"
    run: Mapping[str, Any] = field(default_factory=dict)
    records: list[TrialRecord] = field(default_factory=list)
    planned: list[TrialRow] = field(default_factory=list)
    divergences: list[DivergenceRow] = field(default_factory=list)
    laws: list[LawRow] = field(default_factory=list)
    conditions: list[ConditionRow] = field(default_factory=list)
    models: dict[str, ModelRow] = field(default_factory=lambda: {MODEL.key: MODEL})
    cells: dict[str, CellRow] = field(default_factory=lambda: dict(CELLS))
    workloads: tuple[WorkloadRow, ...] = (CHAT, EXTRACT)

    @property
    def row(self) -> RunRow:
        """The run's row."""
        row = RunRow(
            run_id=self.run_id,
            created_at="2026-03-04T05:06:07.000000Z",
            tag="feature-matrix[box]",
            command="fm run --cells serial,spec+grammar",
            preset="quick",
            seed=0,
            blocks=3,
            prompts=2,
            max_tokens=64,
            plan_hash="plan",
            git_sha="abc123",
            environment={"python": "3.11.4", "cpu": {"name": "Toy | CPU", "cores": 2}},
            status="finished",
        )
        return replace(row, **self.run)

    def plan(
        self,
        name: str,
        block: int = 0,
        workload: WorkloadRow = CHAT,
        model: ModelRow = MODEL,
        **changes: Any,
    ) -> TrialRow:
        """Plan a trial and return its row."""
        self.models[model.key] = model
        number = len(self.planned)
        row = TrialRow(
            trial_id=f"{self.run_id}-{number:03d}",
            run_id=self.run_id,
            block=block,
            order_in_block=number,
            model=model.key,
            workload=workload.content_hash,
            cell=self.cells[name].content_hash,
            lane_declared=self.cells[name].expected_lane,
        )
        self.planned.append(replace(row, **changes))
        return self.planned[-1]

    def add(
        self,
        name: str,
        block: int = 0,
        tok_s: float | None = 20.0,
        replies: Sequence[RequestRow] | None = None,
        accepts: Sequence[tuple[int, int]] = (),
        workload: WorkloadRow = CHAT,
        model: ModelRow = MODEL,
        **changes: Any,
    ) -> TrialRow:
        """Plan a trial that ends with these observations; `tok_s` is its aggregate speed."""
        planned = self.plan(name, block, workload, model)
        requests = [reply()] if replies is None else list(replies)
        trial = replace(
            planned,
            status="done",
            wall_s=10.0,
            tokens=sum(item.completion_tokens or 0 for item in requests),
            aggregate_tokens=None if tok_s is None else 100,
            aggregate_s=None if tok_s is None else 100 / tok_s,
            peak_mlx_bytes=600_000_000,
            peak_rss_bytes=1_210_000_000,
            lane_taken="serial",
        )
        self.records.append(
            TrialRecord(
                trial=replace(trial, **changes),
                requests=tuple(
                    replace(item, trial_id=planned.trial_id, position=place)
                    for place, item in enumerate(requests)
                ),
                accepts=tuple(
                    AcceptRow(
                        trial_id=planned.trial_id, position=place, drafted=drafted, accepted=kept
                    )
                    for place, (drafted, kept) in enumerate(accepts)
                ),
            )
        )
        return planned

    def store_in(self, store: EvalStore) -> None:
        """Write the plan and every observation."""
        store.begin_run(
            RunPlan(
                run=self.row,
                models=tuple(self.models.values()),
                workloads=self.workloads,
                cells=tuple(self.cells.values()),
                trials=tuple(self.planned),
            )
        )
        for record in self.records:
            assert store.record_trial(record).saved
        if self.divergences:
            assert store.record_divergences(self.divergences).saved
        for law in self.laws:
            assert store.record_law(law).saved
        if self.conditions:
            assert store.record_conditions(self.conditions).saved

    def load(self, folder: Path) -> RunData:
        """Store the run in a new database and return what is loaded from it."""
        with EvalStore.open(folder / "fm.db") as store:
            self.store_in(store)
            return store.load_run(self.run_id)


def big_sample(run_id: str, count: int) -> Sample:
    """Return a run of `count` trials with three requests and two accept rows each."""
    sample = Sample(run_id=run_id)
    for block in range(count):
        replies = [reply(f"p{place}", ids=range(place, place + 40)) for place in range(3)]
        sample.add("serial+spec", block=block, replies=replies, accepts=[(9, 5), (4, 1)])
    return sample
