"""From a workload's prompts to requests: the same ones whichever target they are sent to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.errors import SchemaError, SettingError
from engine.grammar.compile import GrammarCompiler
from engine.models.load import LoadedModel
from engine.request import Constraint, ConstraintKind, Request, SamplingParams
from harness.cells.cell import Cell
from harness.store.rows import ModelRow, Phase
from harness.trials.target import TrialJob
from harness.workloads.workload import Prompt, Workload

WARM_UP_TOKENS = 8
"""Enough for every shape of a decode step to have been seen once."""


UNREASONED = {"enable_thinking": False}
"""Variables of chat templates that let a reply begin at once."""


def warm_up_prompts(job: TrialJob) -> tuple[Prompt, ...]:
    """Return prompts that are never measured: a wave for each size of prompt the workload has.

    A size is a power of two, and its wave as long as the longest prompt of it: what a server
    prepares once for a length is not paid in a measured request.
    """
    sizes: dict[int, int] = {}
    for prompt in job.workload.prompts:
        length = prompt.num_characters
        size = max(length - 1, 0).bit_length()
        sizes[size] = max(length, sizes.get(size, 0))
    waves: list[list[Prompt]] = []
    prompts, rows = job.workload.warmup, job.cell.rows
    for length in sorted(sizes.values()):
        wave = [_stretched(prompts[place % len(prompts)], length) for place in range(rows)]
        # Prompts that are longer than asked for already would make the same wave again.
        if wave not in waves:
            waves.append(wave)
    return tuple(prompt for wave in waves for prompt in wave)


def _stretched(prompt: Prompt, length: int) -> Prompt:
    """Return a prompt whose last message repeats itself until the chat has so many characters."""
    missing = length - prompt.num_characters
    if missing <= 0:
        return prompt
    *earlier, last = prompt.messages
    content = last["content"]
    more = f" {content}" * (1 + missing // (1 + len(content)))
    return replace(prompt, messages=(*earlier, {**last, "content": content + more[:missing]}))


def template_options(workload: Workload) -> dict[str, Any]:
    """Return variables of the chat template; a schema wants its document at once, unreasoned."""
    return dict(UNREASONED) if workload.is_constrained else {}


def constraint_of(cell: Cell, prompt: Prompt) -> Constraint | None:
    """Return what a cell holds the reply to a prompt to."""
    return prompt.constraint if cell.key.has("grammar") else None


def sampling_of(job: TrialJob, prompt: Prompt) -> SamplingParams:
    """Return how the reply to a prompt is sampled."""
    return job.sampling.params(job.trial.block, prompt.id)


def prompt_ids(model: LoadedModel, workload: Workload, prompt: Prompt) -> tuple[int, ...]:
    """Return a chat as token ids."""
    options = template_options(workload)
    return tuple(model.tokenizer.apply_chat_template(list(prompt.messages), options=options))


def cache_salt_of(job: TrialJob, phase: Phase) -> str:
    """Return what keeps the prefixes of a trial its own: it finds only what it computed itself.

    An engine outlives its trials, and its prefix cache with it.
    """
    return f"{job.trial.trial_id}/{phase}" if job.cell.config.prefix_cache_bytes else ""


def request_of(
    model: LoadedModel,
    cell: Cell,
    workload: Workload,
    prompt: Prompt,
    max_tokens: int,
    sampling: SamplingParams,
) -> Request:
    """Return what an engine of the model is asked: as a server reads the same chat."""
    ids = prompt_ids(model, workload, prompt)
    return Request(
        prompt_ids=ids,
        reasoning=model.tokenizer.reasoning_of(ids),
        max_tokens=max_tokens,
        constraint=constraint_of(cell, prompt),
        sampling=sampling,
    )


def requests_of(
    model: LoadedModel,
    job: TrialJob,
    prompts: Sequence[Prompt],
    max_tokens: int,
    phase: Phase = "measured",
) -> list[Request]:
    """Return what an engine is asked in a trial."""
    cell, salt = job.cell, cache_salt_of(job, phase)
    requests = [
        request_of(model, cell, job.workload, prompt, max_tokens, sampling_of(job, prompt))
        for prompt in prompts
    ]
    return [replace(request, cache_salt=salt) for request in requests]


def compile_schemas(model: LoadedModel, workload: Workload) -> None:
    """Raise SettingError when a schema of the workload cannot be enforced.

    The workload's must_compile says how many there are, so that none goes missing unseen.
    """
    grammars = GrammarCompiler.of(model)
    for name, schema in workload.schemas.items():
        try:
            grammars.compile(Constraint(kind=ConstraintKind.JSON_SCHEMA, value=schema))
        except SchemaError as error:
            raise SettingError(f"workload {workload.name}, schema {name}: {error}") from error


def model_row(model: LoadedModel) -> ModelRow:
    """Return what a run keeps of a model."""
    return ModelRow(
        name=model.name,
        digest=model.digest,
        source=model.source,
        dtype=model.dtype,
        vocab_size=model.vocab_size,
        num_layers=model.num_layers,
    )
