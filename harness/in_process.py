"""The local target: our engine in this process, and mlx-lm in children beside it.

One model is open at a time. Cells with equal settings share an engine, since a grammar belongs to
the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import mlx.core as mx

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.errors import SchemaError, SettingError
from engine.grammar.compile import GrammarCompiler
from engine.loop import Engine
from engine.models.load import LoadedModel, load_model
from engine.models.registry import pull
from engine.oracle import NEAR_TIE, Oracle
from engine.request import Constraint, ConstraintKind, Request, SamplingParams
from harness.cell import Cell, CellKind
from harness.clock import RssSampler, monotonic
from harness.drive import Drive, Served, drive
from harness.law import law_row
from harness.peer import PeerModel, Peers, PeerWork
from harness.record import accept_rows, filled_trial, graded, request_row
from harness.replay import measure_overhead
from harness.sampling import params_of
from harness.store.rows import (
    DivergenceRow,
    LawRow,
    ModelRow,
    Phase,
    RequestRow,
    TrialRecord,
    TrialRow,
)
from harness.target import OnTokens, Parting, SampledReply, TrialJob
from harness.workload import Prompt, Workload

WARM_UP_TOKENS = 8
"""Enough for every shape of a decode step to have been seen once."""

EPSILONS = {"float32": NEAR_TIE, "bfloat16": 0.26, "float16": 0.02}
"""Gaps below these are near-ties: two units in the last place of a score of 16 to 32 in the half
precisions, where one unit (0.125 in bfloat16) was seen on an H200."""


@dataclass(slots=True)
class InProcess:
    """Target made of our engine and of peers.

    Args:
        load: makes a model of a name.
        folder_of: the folder from which mlx-lm loads a draft model.
    """

    load: Callable[[str], LoadedModel]
    folder_of: Callable[[str], Path]
    model: LoadedModel | None = None
    engines: dict[EngineConfig, Engine] = field(default_factory=dict)
    draft_models: dict[str, LoadedModel] = field(default_factory=dict)
    warm: set[tuple[str, str]] = field(default_factory=set)
    peers: Peers = field(default_factory=Peers)

    def open(self, model: str) -> ModelRow:
        """Load a model; another one that was open is dropped first."""
        if self.model is None or self.model.name != model:
            self.close()
            self.model = self.load(model)
        loaded = self.model
        return ModelRow(
            name=model,
            digest=loaded.digest,
            source=loaded.source,
            dtype=loaded.dtype,
            vocab_size=loaded.vocab_size,
            num_layers=loaded.num_layers,
        )

    def check(self, cell: Cell, workload: Workload) -> None:
        """Build what the cell needs and compile the workload's schemas."""
        if cell.key.is_peer:
            self._peer_model(cell)
            return
        self._engine(cell)
        if cell.key.has("grammar"):
            self._compile_all(workload)

    def run(self, job: TrialJob, on_tokens: OnTokens) -> TrialRecord:
        """Run a trial; an engine that failed in it is thrown away with all its rows."""
        if job.cell.key.is_peer:
            return self._run_peer(job, on_tokens)
        try:
            return self._run(job, on_tokens)
        except BaseException:
            self.engines.pop(job.cell.config, None)
            raise

    def judge(self, parting: Parting) -> Sequence[DivergenceRow]:
        """Follow the reply, and the reply it should have been, with the oracle.

        A place where either departs from the oracle explains the parting; the reply's own places
        count first.
        """
        oracle = Oracle(self._opened())
        request = self._request(
            parting.cell, parting.workload, parting.prompt, parting.max_tokens, parting.sampling
        )
        found = oracle.follow(request, parting.reply, parting.reply_ended) or oracle.follow(
            request, parting.expected, parting.expected_ended
        )
        mx.clear_cache()
        return [
            DivergenceRow(
                trial_id=parting.trial_id,
                prompt_id=parting.prompt.id,
                reference=parting.reference,
                position=divergence.position,
                gap=divergence.gap,
                epsilon=EPSILONS[self._opened().dtype],
            )
            for divergence in found
        ]

    def weigh(self, reply: SampledReply) -> LawRow:
        """Let the oracle say which law each token was due to."""
        row, ids = reply.row, reply.row.token_ids or ()
        request = self._request(
            reply.cell, reply.workload, reply.prompt, reply.max_tokens, params_of(row)
        )
        ended = row.finish_reason == "stop" and reply.draws > len(ids)
        found = law_row(row, Oracle(self._opened()).draws(request, ids[: reply.draws], ended))
        mx.clear_cache()
        return found

    def close(self) -> None:
        """Drop the model, every engine on it and every child."""
        self.peers.close()
        self.engines.clear()
        self.draft_models.clear()
        self.warm.clear()
        self.model = None
        mx.clear_cache()

    # -- one trial of ours ---------------------------------------------------------------------

    def _run(self, job: TrialJob, on_tokens: OnTokens) -> TrialRecord:
        engine = self._engine(job.cell)
        warm_up = self._warm_up(engine, job)
        requests = self._requests(job, job.prompts, job.max_tokens)
        mx.clear_cache()
        mx.reset_peak_memory()
        with RssSampler() as rss:
            done = drive(engine, requests, job.cell.rows, monotonic, on_tokens)
        peak_bytes = mx.get_peak_memory()
        rows = _rows(job, job.prompts, done, "measured", start=len(warm_up))
        trial = replace(
            filled_trial(job.trial, rows, done.tally, done.wall_s),
            peak_mlx_bytes=peak_bytes,
            peak_rss_bytes=rss.peak_bytes,
        )
        return TrialRecord(
            trial=self._with_overhead(engine, job, requests, done, trial),
            requests=(*warm_up, *rows),
            accepts=accept_rows(trial, [served.completion for served in done.served]),
        )

    def _compile_all(self, workload: Workload) -> None:
        """Raise SettingError when a schema of the workload cannot be enforced.

        The workload's must_compile says how many there are, so that none goes missing unseen.
        """
        model = self._opened()
        grammars = GrammarCompiler.of(model)
        for name, schema in workload.schemas.items():
            try:
                grammars.compile(Constraint(kind=ConstraintKind.JSON_SCHEMA, value=schema))
            except SchemaError as error:
                raise SettingError(f"workload {workload.name}, schema {name}: {error}") from error

    def _warm_up(self, engine: Engine, job: TrialJob) -> list[RequestRow]:
        key = (job.cell.name, job.workload.name)
        if key in self.warm:
            return []
        prompts = warm_up_prompts(job)
        requests = self._requests(job, prompts, WARM_UP_TOKENS)
        done = drive(engine, requests, job.cell.rows, monotonic, _ignore_tokens)
        self.warm.add(key)
        return _rows(job, prompts, done, "warmup", start=0)

    def _with_overhead(
        self,
        engine: Engine,
        job: TrialJob,
        requests: Sequence[Request],
        done: Drive,
        trial: TrialRow,
    ) -> TrialRow:
        """Add the replay of the first reply that is long enough, where a grammar is on."""
        if not job.cell.key.has("grammar") or job.cell.kind is not CellKind.PERF:
            return trial
        for request, served in zip(requests, done.served, strict=True):
            if len(served.completion.token_ids) > 1:
                ids = served.completion.token_ids
                overhead = measure_overhead(engine, request, ids, trial.block)
                return replace(
                    trial,
                    replay_tokens=overhead.tokens,
                    replay_plain_s=overhead.plain_s,
                    replay_masked_s=overhead.masked_s,
                    replay_mask_s=overhead.mask_s,
                )
        return trial

    def _requests(self, job: TrialJob, prompts: Sequence[Prompt], max_tokens: int) -> list[Request]:
        return [
            self._request(
                job.cell,
                job.workload,
                prompt,
                max_tokens,
                job.sampling.params(job.trial.block, prompt.id),
            )
            for prompt in prompts
        ]

    def _request(
        self,
        cell: Cell,
        workload: Workload,
        prompt: Prompt,
        max_tokens: int,
        sampling: SamplingParams,
    ) -> Request:
        return Request(
            prompt_ids=self._prompt_ids(workload, prompt),
            max_tokens=max_tokens,
            constraint=prompt.constraint if cell.key.has("grammar") else None,
            sampling=sampling,
        )

    def _prompt_ids(self, workload: Workload, prompt: Prompt) -> tuple[int, ...]:
        """Return the chat as ids; a schema wants the document at once, so no reasoning first."""
        tokenizer = self._opened().tokenizer
        options = {"enable_thinking": False} if workload.is_constrained else {}
        return tuple(tokenizer.apply_chat_template(list(prompt.messages), options=options))

    # -- a trial of a peer ---------------------------------------------------------------------

    def _run_peer(self, job: TrialJob, on_tokens: OnTokens) -> TrialRecord:
        work = PeerWork(
            model=self._peer_model(job.cell),
            prompts=tuple(self._prompt_ids(job.workload, prompt) for prompt in job.prompts),
            warm_up=tuple(
                self._prompt_ids(job.workload, prompt) for prompt in warm_up_prompts(job)
            ),
        )
        return self.peers.run(job, work, on_tokens)

    def _peer_model(self, cell: Cell) -> PeerModel:
        model = self._opened()
        if model.path is None:
            raise SettingError(f"model {model.name!r} lies in no folder that mlx-lm could load")
        drafter = cell.config.draft_model
        return PeerModel(
            folder=str(model.path),
            dtype=model.dtype,
            draft_folder=None if drafter is None else str(self.folder_of(drafter)),
            with_blas=cell.key.variant == "blas",
        )

    # -- what is open --------------------------------------------------------------------------

    def _opened(self) -> LoadedModel:
        assert self.model is not None, "open() comes first"
        return self.model

    def _engine(self, cell: Cell) -> Engine:
        config = cell.config
        if config not in self.engines:
            drafter = build_drafter(config, self._draft_model(config.draft_model))
            self.engines[config] = Engine(self._opened(), config, drafter)
        return self.engines[config]

    def _draft_model(self, name: str | None) -> LoadedModel | None:
        if name is None:
            return None
        if name == self._opened().name:
            return self._opened()
        if name not in self.draft_models:
            self.draft_models[name] = self.load(name)
        return self.draft_models[name]


def local_target() -> InProcess:
    """Return the target that loads models from the registry."""
    return InProcess(load=load_model, folder_of=pull)


def warm_up_prompts(job: TrialJob) -> tuple[Prompt, ...]:
    """Return one wave of prompts that are never measured."""
    prompts = job.workload.warmup
    return tuple(prompts[place % len(prompts)] for place in range(job.cell.rows))


def _ignore_tokens(count: int) -> None:
    """Show no progress of a warm-up."""


def _rows(
    job: TrialJob, prompts: Sequence[Prompt], done: Drive, phase: Phase, start: int
) -> list[RequestRow]:
    return [
        _row(job, prompt, served, phase, position)
        for position, (prompt, served) in enumerate(
            zip(prompts, done.served, strict=True), start=start
        )
    ]


def _row(job: TrialJob, prompt: Prompt, served: Served, phase: Phase, position: int) -> RequestRow:
    completion = served.completion
    row = request_row(
        job.trial,
        position,
        prompt,
        completion,
        served.times,
        speculates=job.cell.key.has("spec"),
        sampling=job.sampling.params(job.trial.block, prompt.id),
        phase=phase,
    )
    if phase == "warmup":
        return row
    conformance = completion.conformance
    accepted = None if conformance is None else conformance != "failed"
    return graded(row, prompt, is_accepting=accepted)
