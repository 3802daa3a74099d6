"""Peer cells that are mlx-lm: children that stay loaded over the run and die with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.errors import FmError, SettingError
from engine.models.load import LoadedModel
from engine.request import Completion, FinishReason, SamplingParams
from harness.cells.cell import Cell
from harness.line_child import ChildGoneError, ChildSilentError, LineChild
from harness.store.rows import RequestRow, TrialRecord
from harness.trials.clock import StepTally, TokenTimes, monotonic
from harness.trials.prompting import WARM_UP_TOKENS, prompt_ids, warm_up_prompts
from harness.trials.record import filled_trial, graded, request_row
from harness.trials.target import OnTokens, TrialJob, timeout_s
from harness.workloads.workload import Prompt

LOAD_TIMEOUT_S = 600.0


class PeerError(FmError):
    """The peer's process failed, or did not answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerModel:
    """What a child loads.

    Args:
        folder: a folder that mlx-lm loads.
        dtype: the float type both sides compute in.
        draft_folder: of the draft model; None without one.
        with_blas: load our BLAS before mlx.
    """

    folder: str
    dtype: str
    draft_folder: str | None
    with_blas: bool


class PeerProcess:
    """One child process with one model; a context that ends it whatever happens.

    Raises:
        PeerError: it could not load the model.
    """

    def __init__(self, model: PeerModel, command: Sequence[str] | None = None) -> None:
        flags = ["--blas"] if model.with_blas else []
        command = command or (sys.executable, "-m", "harness.peers.child")
        self._child = LineChild((*command, *flags), "peer-reader")
        try:
            self.versions = self.ask(
                {
                    "folder": model.folder,
                    "dtype": model.dtype,
                    "draft_folder": model.draft_folder,
                },
                LOAD_TIMEOUT_S,
            )
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def ask(self, command: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        """Send one command and return its answer.

        Raises:
            PeerError: the child is gone, reports an error, or is silent for `timeout_s` seconds;
                in the first and last case it is ended.
        """
        try:
            self._child.send(command)
            answer = self._child.receive(timeout_s)
        except ChildSilentError:
            raise PeerError(
                f"mlx-lm gave no answer in {timeout_s:.0f} s and was stopped; try fewer tokens"
            ) from None
        except ChildGoneError as gone:
            raise PeerError(f"mlx-lm ended: {gone}") from None
        if "error" in answer:
            raise PeerError(f"mlx-lm failed: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the child; safe to call twice."""
        self._child.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerWork:
    """The prompts of one trial as the child gets them.

    Args:
        prompts: token ids in the order of the job's prompts.
        warm_up: token ids of prompts that are run first and not measured.
    """

    model: PeerModel
    prompts: tuple[tuple[int, ...], ...]
    warm_up: tuple[tuple[int, ...], ...]


def peer_model(model: LoadedModel, cell: Cell, folder_of: Callable[[str], Path]) -> PeerModel:
    """Return what a child has to load for a cell.

    Args:
        folder_of: the folder from which mlx-lm loads a draft model.

    Raises:
        SettingError: mlx-lm could load the model from nowhere.
    """
    if model.path is None:
        raise SettingError(f"model {model.name!r} lies in no folder that mlx-lm could load")
    drafter = cell.config.draft_model
    return PeerModel(
        folder=str(model.path),
        dtype=model.dtype,
        draft_folder=None if drafter is None else str(folder_of(drafter)),
        with_blas=cell.key.variant == "blas",
    )


def peer_work(model: LoadedModel, job: TrialJob, folder_of: Callable[[str], Path]) -> PeerWork:
    """Return a turn as a child gets it."""

    def ids(prompts: Sequence[Prompt]) -> tuple[tuple[int, ...], ...]:
        return tuple(prompt_ids(model, job.workload, prompt) for prompt in prompts)

    return PeerWork(
        model=peer_model(model, job.cell, folder_of),
        prompts=ids(job.prompts),
        warm_up=ids(warm_up_prompts(job)),
    )


@dataclass(slots=True)
class Peers:
    """The children of a run, one for each variant and draft model, started when first needed."""

    processes: dict[PeerModel, PeerProcess] = field(default_factory=dict)
    warm: set[tuple[str, str]] = field(default_factory=set)

    def run(self, job: TrialJob, work: PeerWork, on_tokens: OnTokens) -> TrialRecord:
        """Run a turn in a child; a warm-up goes before the first one of a cell on a workload."""
        process = self._started(work.model)
        cell, key = job.cell, (job.cell.name, job.workload.name)
        if key not in self.warm:
            process.ask(_command(cell, work.warm_up, WARM_UP_TOKENS, is_first=True), timeout_s(0))
            self.warm.add(key)
        limit_s = timeout_s(job.max_tokens * len(job.prompts))
        command = _command(cell, work.prompts, job.max_tokens, is_first=not job.turn)
        started_s = monotonic()
        try:
            answer = process.ask(command, limit_s)
        except PeerError:
            self.processes.pop(work.model).close()
            raise
        trial = _trial(job, work, answer, monotonic() - started_s)
        on_tokens(trial.trial.tokens or 0)
        return trial

    def close(self) -> None:
        """End every child."""
        for process in self.processes.values():
            process.close()
        self.processes.clear()
        self.warm.clear()

    def _started(self, model: PeerModel) -> PeerProcess:
        if model not in self.processes:
            self.processes[model] = PeerProcess(model)
            self.warm.clear()
        return self.processes[model]


def _command(
    cell: Cell, prompts: Sequence[Sequence[int]], max_tokens: int, *, is_first: bool
) -> dict[str, Any]:
    return {
        "work": {
            "mode": "spec" if cell.key.has("spec") else cell.key.lane,
            "prompts": [list(ids) for ids in prompts],
            "max_tokens": max_tokens,
            "rows": cell.rows,
            "num_draft_tokens": cell.config.num_draft_tokens,
            "is_first": is_first,
        }
    }


def _trial(job: TrialJob, work: PeerWork, answer: Mapping[str, Any], wall_s: float) -> TrialRecord:
    rows = [
        _row(job, position, len(work.prompts[position]), reply)
        for position, reply in enumerate(answer["replies"])
    ]
    tally = StepTally()
    for rows_live, committed, seconds in answer["steps"]:
        tally.add(is_full=rows_live == job.cell.rows, committed=committed, seconds=seconds)
    trial = replace(
        filled_trial(job.trial, rows, tally, wall_s),
        peak_mlx_bytes=answer["mlx_bytes"],
        peak_rss_bytes=answer["rss_bytes"],
    )
    return TrialRecord(trial=trial, requests=tuple(rows))


def _row(job: TrialJob, position: int, prompt_tokens: int, reply: Mapping[str, Any]) -> RequestRow:
    prompt, speculates = job.prompts[position], job.cell.key.has("spec")
    completion = Completion(
        request_id=prompt.id,
        prompt_tokens=prompt_tokens,
        token_ids=tuple(reply["ids"]),
        text=reply["text"],
        finish_reason=FinishReason(reply["finish"]),
        lane=job.cell.key.lane,
        lane_reason="mlx-lm",
        target_calls=len(reply["ids"]) - reply["from_draft"],
    )
    times = reply["tokens_s"]
    seen = TokenTimes(
        submitted_s=reply["submitted_s"],
        first_token_s=times[0] if times else None,
        first_text_s=reply["first_text_s"],
        last_token_s=times[-1] if times else None,
        ended_s=reply["ended_s"],
    )
    row = request_row(
        job.trial,
        position,
        prompt,
        completion,
        seen,
        speculates=speculates,
        sampling=SamplingParams(),
    )
    if speculates:
        # It tells which tokens came from the draft, not how many were drafted.
        row = replace(row, drafted=None, accepted=reply["from_draft"], illegal_drafts=None)
    return graded(row, prompt, is_accepting=None)
