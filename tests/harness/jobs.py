"""Trials of the tiny model: prompts, workloads and jobs that tests of targets share."""

from __future__ import annotations

from pathlib import Path

from harness.cells.cell import Cell, load_cells
from harness.planning.matrix import with_drafter
from harness.sampling import Sampling
from harness.store import RequestRow, TrialRecord, TrialRow, new_id
from harness.trials.target import Target, TrialJob
from harness.workloads.workload import Prompt, Workload

CATALOGUE = load_cells(Path(__file__).parents[2] / "cells")
SCHEMA = {
    "type": "object",
    "properties": {
        "sex": {"enum": ["f", "m"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["sex", "age"],
    "additionalProperties": False,
}
GREEDY = Sampling()


def workload(is_constrained: bool = False, num_prompts: int = 6) -> Workload:
    def prompt(name: str) -> Prompt:
        return Prompt(
            id=name,
            messages=({"role": "user", "content": f"Tell me about {name}, please."},),
            schema_name="person" if is_constrained else None,
            schema=SCHEMA if is_constrained else None,
            expected={"sex": "f"} if is_constrained else None,
        )

    return Workload(
        name="people" if is_constrained else "chat",
        kind="json" if is_constrained else "text",
        description="people",
        max_tokens=40,
        prompts=tuple(prompt(f"person {number}") for number in range(num_prompts)),
        warmup=(prompt("somebody else"),),
        schemas={"person": SCHEMA} if is_constrained else {},
        must_compile=1 if is_constrained else 0,
        allow_truncation=not is_constrained,
        digest="d",
    )


CHAT, PEOPLE = workload(), workload(is_constrained=True)


def cell_of(name: str) -> Cell:
    """The cell of a name; the tiny model drafts for itself."""
    return with_drafter(CATALOGUE.get(name), "tiny-thinking", lambda model: model)


def job_of(
    cell: Cell,
    chosen: Workload = CHAT,
    count: int = 4,
    max_tokens: int = 24,
    block: int = 0,
    sampling: Sampling = GREEDY,
) -> TrialJob:
    return TrialJob(
        trial=TrialRow(
            trial_id=new_id(),
            run_id="r",
            block=block,
            order_in_block=0,
            model="m",
            workload="w",
            cell="c",
        ),
        cell=cell,
        workload=chosen,
        prompts=chosen.prompts[:count],
        max_tokens=max_tokens,
        sampling=sampling,
    )


def run(
    target: Target,
    cell: str,
    chosen: Workload = CHAT,
    count: int = 4,
    max_tokens: int = 24,
    block: int = 0,
    sampling: Sampling = GREEDY,
) -> TrialRecord:
    job = job_of(cell_of(cell), chosen, count, max_tokens, block, sampling)
    return target.run(job, lambda tokens: None)


def measured(record: TrialRecord) -> list[RequestRow]:
    return [row for row in record.requests if row.phase == "measured"]


def ids(record: TrialRecord) -> dict[str, tuple[int, ...] | None]:
    return {row.prompt_id: row.token_ids for row in measured(record)}
