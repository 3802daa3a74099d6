"""What a trial is asked with and answers, as JSON values that another version of fm can read.

A side may be older or newer than who asks it: fields that it does not know are left aside, those
that are missing take their defaults, and of a cell only settings that differ from the defaults are
told, so that each version runs a cell as it runs that cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

from engine.config import EngineConfig
from harness.cells.cell import Cell, CellKind, ServerCommand
from harness.cells.name import parse_cell_name
from harness.sampling import Sampling, params_of
from harness.store.codec import clean, decode, encode
from harness.store.rows import RequestRow, TrialRow
from harness.trials.target import Parting, SampledReply, TrialJob
from harness.workloads.workload import Prompt, Workload

T = TypeVar("T")
Form = Mapping[str, Any]


def cell_form(cell: Cell) -> dict[str, Any]:
    """Return a cell without its side: who runs it knows of none."""
    usual = EngineConfig()
    settings = {
        item.name: value
        for item in fields(EngineConfig)
        if (value := getattr(cell.config, item.name)) != getattr(usual, item.name)
    }
    return {
        "name": str(replace(cell.key, side="")),
        "kind": cell.kind.value,
        "lane_taken": cell.lane_taken,
        "settings": clean(settings),
        "server": None if cell.server is None else clean(asdict(cell.server)),
    }


def cell_from(form: Form) -> Cell:
    """Return the cell of a form; FmError names what this version does not know."""
    server = form["server"]
    return Cell(
        key=parse_cell_name(form["name"]),
        kind=CellKind(form["kind"]),
        lane_taken=form["lane_taken"],
        config=EngineConfig.from_mapping(form["settings"]),
        server=None
        if server is None
        else _built(ServerCommand, {**server, "command": tuple(server["command"])}),
    )


def workload_form(workload: Workload) -> dict[str, Any]:
    """Return a workload with all its prompts."""
    values = {item.name: getattr(workload, item.name) for item in fields(Workload)}
    prompts = {
        name: [_prompt_form(item) for item in values[name]] for name in ("prompts", "warmup")
    }
    return {**values, **prompts, "schemas": dict(workload.schemas)}


def workload_from(form: Form) -> Workload:
    """Return the workload of a form."""
    prompts = {name: tuple(map(_prompt_from, form[name])) for name in ("prompts", "warmup")}
    return _built(Workload, {**form, **prompts})


def job_form(job: TrialJob) -> dict[str, Any]:
    """Return a trial; its workload is told by its digest, its prompts by their ids."""
    return {
        "trial": encode(job.trial),
        "cell": cell_form(job.cell),
        "workload": job.workload.digest,
        "prompts": [prompt.id for prompt in job.prompts],
        "max_tokens": job.max_tokens,
        "sampling": asdict(job.sampling),
        "turn": job.turn,
        "num_turns": job.num_turns,
        "wants_replay": job.wants_replay,
    }


def job_from(form: Form, workload: Workload) -> TrialJob:
    """Return the trial of a form."""
    prompts = {prompt.id: prompt for prompt in workload.prompts}
    return TrialJob(
        trial=decode(TrialRow, form["trial"]),
        cell=cell_from(form["cell"]),
        workload=workload,
        prompts=tuple(prompts[name] for name in form["prompts"]),
        max_tokens=form["max_tokens"],
        sampling=_built(Sampling, form["sampling"]),
        turn=form.get("turn", 0),
        num_turns=form.get("num_turns", 1),
        wants_replay=form.get("wants_replay", True),
    )


def parting_form(parting: Parting) -> dict[str, Any]:
    """Return a reply that the oracle is to judge."""
    sampling = parting.sampling
    return {
        "trial_id": parting.trial_id,
        "reference": parting.reference,
        "cell": cell_form(parting.cell),
        "workload": parting.workload.digest,
        "prompt": parting.prompt.id,
        "max_tokens": parting.max_tokens,
        "reply": list(parting.reply),
        "expected": list(parting.expected),
        "reply_ended": parting.reply_ended,
        "expected_ended": parting.expected_ended,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
    }


def parting_from(form: Form, workload: Workload) -> Parting:
    """Return the parting of a form."""
    row = RequestRow(
        trial_id=form["trial_id"],
        position=0,
        prompt_id=form["prompt"],
        seed=form["seed"],
        sampling={"temperature": form["temperature"]},
    )
    return Parting(
        trial_id=form["trial_id"],
        reference=form["reference"],
        cell=cell_from(form["cell"]),
        workload=workload,
        prompt=_prompt_of(workload, form["prompt"]),
        max_tokens=form["max_tokens"],
        reply=tuple(form["reply"]),
        expected=tuple(form["expected"]),
        reply_ended=form["reply_ended"],
        expected_ended=form["expected_ended"],
        sampling=params_of(row),
    )


def sampled_form(reply: SampledReply) -> dict[str, Any]:
    """Return a reply whose draws the oracle is to weigh."""
    return {
        "row": encode(reply.row),
        "cell": cell_form(reply.cell),
        "workload": reply.workload.digest,
        "prompt": reply.prompt.id,
        "max_tokens": reply.max_tokens,
        "draws": reply.draws,
    }


def sampled_from(form: Form, workload: Workload) -> SampledReply:
    """Return the sampled reply of a form."""
    return SampledReply(
        row=decode(RequestRow, form["row"]),
        cell=cell_from(form["cell"]),
        workload=workload,
        prompt=_prompt_of(workload, form["prompt"]),
        max_tokens=form["max_tokens"],
        draws=form["draws"],
    )


def _prompt_form(prompt: Prompt) -> dict[str, Any]:
    values = {item.name: getattr(prompt, item.name) for item in fields(Prompt)}
    return {**values, "messages": list(prompt.messages)}


def _prompt_from(form: Form) -> Prompt:
    return _built(Prompt, {**form, "messages": tuple(form["messages"])})


def _prompt_of(workload: Workload, name: str) -> Prompt:
    return next(prompt for prompt in workload.prompts if prompt.id == name)


def _built(kind: type[T], values: Form) -> T:
    """Return a dataclass of the values it knows."""
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]  # callers give dataclasses
    return kind(**{name: value for name, value in values.items() if name in known})
