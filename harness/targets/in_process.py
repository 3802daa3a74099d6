"""The local target: our engine in this process, and mlx-lm in children beside it.

One model is open at a time. Cells with equal settings share an engine, since a grammar belongs to
the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import mlx.core as mx

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.loop import Engine
from engine.models.load import LoadedModel, load_model
from engine.models.registry import pull
from engine.request import Request
from harness.cells.cell import Cell, CellKind
from harness.peers.cells import PeerCells
from harness.store.rows import (
    DivergenceRow,
    LawRow,
    ModelRow,
    RequestRow,
    TrialRecord,
    TrialRow,
)
from harness.trials.clock import monotonic
from harness.trials.drive import Drive, drive
from harness.trials.memory import RssSampler
from harness.trials.oracle import Judge
from harness.trials.prompting import (
    WARM_UP_TOKENS,
    compile_schemas,
    model_row,
    requests_of,
    warm_up_prompts,
)
from harness.trials.record import accept_rows, filled_trial, reply_rows, with_step_bytes
from harness.trials.replay import measure_overhead
from harness.trials.target import OnTokens, Parting, SampledReply, Tell, TrialJob, ignore_tokens
from harness.trials.work import WorkMeter
from harness.workloads.workload import Workload


@dataclass(slots=True)
class InProcess:
    """Target made of our engine and of peers.

    Args:
        load: makes a model of a name.
        folder_of: the folder from which mlx-lm loads a draft model.
        tell: takes a line when the server of a peer cell is started.
    """

    load: Callable[[str], LoadedModel]
    folder_of: Callable[[str], Path]
    tell: Tell = lambda _line: None
    model: LoadedModel | None = None
    engines: dict[EngineConfig, Engine] = field(default_factory=dict)
    draft_models: dict[str, LoadedModel] = field(default_factory=dict)
    warm: set[tuple[str, str]] = field(default_factory=set)
    peers: PeerCells = field(init=False)

    def __post_init__(self) -> None:
        self.peers = PeerCells(self.tell, self.folder_of)

    def open(self, model: str) -> ModelRow:
        """Load a model; another one that was open is dropped first."""
        if self.model is None or self.model.name != model:
            self.close()
            self.model = self.load(model)
        return model_row(self.model)

    def check(self, cell: Cell, workload: Workload) -> None:
        """Build what the cell needs and compile the workload's schemas."""
        if cell.key.is_peer:
            self.peers.check(cell, self._opened())
            return
        self._engine(cell)
        if cell.key.has("grammar"):
            compile_schemas(self._opened(), workload)

    def run(self, job: TrialJob, on_tokens: OnTokens) -> TrialRecord:
        """Run a turn; an engine that failed in it is thrown away with all its rows."""
        if job.cell.key.is_peer:
            return self.peers.run(job, self._opened(), on_tokens)
        try:
            return self._run(job, on_tokens)
        except BaseException:
            self.engines.pop(job.cell.config, None)
            raise

    def judge(self, parting: Parting) -> Sequence[DivergenceRow]:
        """Ask the oracle."""
        return Judge(self._opened()).judge(parting)

    def weigh(self, reply: SampledReply) -> LawRow:
        """Ask the oracle."""
        return Judge(self._opened()).weigh(reply)

    def close(self) -> None:
        """Drop the model, every engine on it and every child."""
        self.peers.close()
        self.engines.clear()
        self.draft_models.clear()
        self.warm.clear()
        self.model = None
        mx.clear_cache()

    # -- one turn of ours ----------------------------------------------------------------------

    def _run(self, job: TrialJob, on_tokens: OnTokens) -> TrialRecord:
        engine = self._engine(job.cell)
        warm_up = self._warm_up(engine, job)
        requests = requests_of(self._opened(), job, job.prompts, job.max_tokens)
        if not job.turn:
            # Only here: filling the cache again is in the time of the next first token.
            mx.clear_cache()
        mx.reset_peak_memory()
        work = WorkMeter(engine)
        with RssSampler() as rss:
            done = drive(engine, requests, job.cell.rows, monotonic, on_tokens)
        peak_bytes = mx.get_peak_memory()
        rows = reply_rows(job, job.prompts, done.served, start=len(warm_up))
        filled = filled_trial(job.trial, rows, done.tally, done.wall_s)
        trial = replace(
            with_step_bytes(filled, asdict(engine.step_bytes)),
            peak_mlx_bytes=peak_bytes,
            peak_rss_bytes=rss.peak_bytes,
            counters=work.counters(),
        )
        return TrialRecord(
            trial=self._with_overhead(engine, job, requests, done, trial),
            requests=(*warm_up, *rows),
            accepts=accept_rows(trial, [served.completion for served in done.served]),
        )

    def _warm_up(self, engine: Engine, job: TrialJob) -> list[RequestRow]:
        key = (job.cell.name, job.workload.name)
        if key in self.warm:
            return []
        prompts = warm_up_prompts(job)
        requests = requests_of(self._opened(), job, prompts, WARM_UP_TOKENS, "warmup")
        done = drive(engine, requests, job.cell.rows, monotonic, ignore_tokens)
        self.warm.add(key)
        return reply_rows(job, prompts, done.served, "warmup")

    def _with_overhead(
        self,
        engine: Engine,
        job: TrialJob,
        requests: Sequence[Request],
        done: Drive,
        trial: TrialRow,
    ) -> TrialRow:
        """Add the replay of the first reply that is long enough, where a grammar is on."""
        is_replayed = job.cell.key.has("grammar") and job.cell.kind is CellKind.PERF
        if not (is_replayed and job.wants_replay):
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


def local_target(tell: Tell) -> InProcess:
    """Return the target that loads models from the registry."""
    return InProcess(load=load_model, folder_of=pull, tell=tell)
