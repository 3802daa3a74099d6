"""The target `http`: what `fm serve` makes of the cells, measured as its clients see it.

Cells whose settings differ in nothing but rows, drafts and where drafts run share a server, and
say in each request which of them they are (body field `fm`). Servers are started when a trial first
needs them, with as many rows and drafts as any cell will ask for. This process holds no weights
unless a reply has to be judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.models.load import LoadedModel, load_model, outline_model
from engine.models.registry import pull
from engine.step_time import PARTS
from harness.cells.cell import Cell
from harness.http.chat_reply import ChatReply
from harness.http.client import LoadClient
from harness.http.process import ServerProcess, fm_serve
from harness.http.trial import HttpServer
from harness.opening import served_name
from harness.peers.cells import PeerCells
from harness.serve_flags import engine_flags
from harness.store.rows import DivergenceRow, LawRow, ModelRow, TrialRecord
from harness.trials.clock import StepTally
from harness.trials.oracle import Judge
from harness.trials.prompting import compile_schemas, model_row
from harness.trials.target import OnTokens, Parting, SampledReply, Tell, TrialJob
from harness.workloads.workload import Workload

CHAT = "/v1/chat/completions"

SERVE_FLAGS = ("--allow-overrides", "--request-timeout", "86400", "--drain", "0")
"""How long a reply may take is the client's business here."""


class ServeStats:
    """What a `fm serve` tells of its steps and memory, as differences over a turn."""

    def __init__(self, client: LoadClient[ChatReply]) -> None:
        self._client = client
        self._before: Mapping[str, Any] = {}
        self._after: Mapping[str, Any] = {}

    def begin(self) -> None:
        """Begin the peak of memory anew, and keep the totals."""
        self._client.fetch("POST", "/stats/reset-peak")
        self._before = self._client.fetch("GET", "/stats")

    def sums(self, rows: int) -> StepTally:
        """Return what was added to the totals."""
        self._after = self._client.fetch("GET", "/stats")
        full_tokens, full_s = self._added_at(rows, "tokens"), self._added_at(rows, "seconds")
        return StepTally(
            full_tokens=int(full_tokens),
            full_s=full_s,
            steps=int(self._added("steps")),
            seconds=self._added("seconds"),
            masked=int(self._added("mask_positions")),
            parts_s={part: self._added(f"{part}_s") for part in PARTS},
        )

    @property
    def peak_mlx_bytes(self) -> int | None:
        """The peak, as the last `sums` found it."""
        peak: int | None = self._after["memory"]["mlx_peak_bytes"]
        return peak

    @property
    def step_bytes(self) -> Mapping[str, int | None]:
        """What a step reads, as the last `sums` found it."""
        told: Mapping[str, int | None] = self._after["step_bytes"]
        return told

    def _added(self, name: str) -> float:
        return float(self._after["decode"][name] - self._before["decode"][name])

    def _added_at(self, rows: int, name: str) -> float:
        """Return what the steps with so many rows added; there may have been none before."""
        before, after = (
            stats["decode"]["by_rows"].get(str(rows), {}) for stats in (self._before, self._after)
        )
        return float(after.get(name, 0) - before.get(name, 0))


@dataclass(slots=True)
class FmServer:
    """One `fm serve` and the client that measures it.

    Args:
        config: with the most rows and drafts it can be asked for.
    """

    config: EngineConfig
    process: ServerProcess
    server: HttpServer

    @classmethod
    def start(cls, model: str, config: EngineConfig, tell: Tell) -> FmServer:
        """Start one; raises ServerError with its last words when it does not serve."""
        launch = fm_serve(model, (*SERVE_FLAGS, *engine_flags(config)))
        process = ServerProcess(launch, tell)
        client = LoadClient(process.url, config.max_rows, reply=ChatReply)
        server = HttpServer(
            client=client,
            model=served_name(model),
            path=CHAT,
            extras=_lane_of,
            telemetry=ServeStats(client),
            pids=lambda: process.pids,
            lost=process.loss,
            tells_ids=True,
        )
        return cls(config, process, server)

    def carries(self, config: EngineConfig) -> bool:
        """Return whether a cell with these settings can be asked of it."""
        return (
            self.process.is_alive
            and self.config.max_rows >= config.max_rows
            and self.config.num_draft_tokens >= config.num_draft_tokens
        )

    def close(self) -> None:
        """End both."""
        self.server.client.close()
        self.process.close()


@dataclass(slots=True)
class HttpTarget:
    """Target made of `fm serve` children, and of the peers that there are in process too.

    Args:
        tell: takes a line when a server is started.
    """

    tell: Tell
    outline: Callable[[str], LoadedModel] = outline_model
    load: Callable[[str], LoadedModel] = load_model
    folder_of: Callable[[str], Path] = pull
    model: LoadedModel | None = None
    judge_model: LoadedModel | None = None
    wanted: dict[tuple[str, EngineConfig], EngineConfig] = field(default_factory=dict)
    servers: dict[EngineConfig, FmServer] = field(default_factory=dict)
    peers: PeerCells = field(init=False)

    def __post_init__(self) -> None:
        self.peers = PeerCells(self.tell, self.folder_of)

    def open(self, model: str) -> ModelRow:
        """Look at a model; the servers of another one that was open are ended first."""
        if self.model is None or self.model.name != model:
            wanted = self.wanted  # what each model's cells ask for outlives its servers
            self.close()
            self.wanted = wanted
            self.model = self.outline(model)
        return model_row(self.model)

    def check(self, cell: Cell, workload: Workload) -> None:
        """Note what the cell will ask of its server, and compile the workload's schemas."""
        if cell.key.is_peer:
            self.peers.check(cell, self._opened())
            return
        engine_flags(self._want(cell.config))
        if cell.key.has("grammar"):
            compile_schemas(self._opened(), workload)

    def run(self, job: TrialJob, on_tokens: OnTokens) -> TrialRecord:
        """Run a turn of a trial; a server that was lost is started again by the next one."""
        if job.cell.key.is_peer:
            return self.peers.run(job, self._opened(), on_tokens)
        return self._server(job.cell.config).server.run(job, on_tokens)

    def judge(self, parting: Parting) -> Sequence[DivergenceRow]:
        """Ask the oracle."""
        return Judge(self._judging()).judge(parting)

    def weigh(self, reply: SampledReply) -> LawRow:
        """Ask the oracle."""
        return Judge(self._judging()).weigh(reply)

    def close(self) -> None:
        """End every server and every child."""
        self.peers.close()
        for server in self.servers.values():
            server.close()
        self.servers.clear()
        self.wanted = {}
        self.model = self.judge_model = None

    def _opened(self) -> LoadedModel:
        assert self.model is not None, "open() comes first"
        return self.model

    def _judging(self) -> LoadedModel:
        if self.judge_model is None:
            self.judge_model = self.load(self._opened().name)
        return self.judge_model

    def _want(self, config: EngineConfig) -> EngineConfig:
        """Return the settings of a cell's server: the most of what its cells ask for."""
        group = (self._opened().name, _group_of(config))
        known = self.wanted.get(group, config)
        self.wanted[group] = replace(
            config,
            max_rows=max(config.max_rows, known.max_rows),
            num_draft_tokens=max(config.num_draft_tokens, known.num_draft_tokens),
            spec_batching=EngineConfig().spec_batching,
        )
        return self.wanted[group]

    def _server(self, config: EngineConfig) -> FmServer:
        group, wanted = _group_of(config), self._want(config)
        running = self.servers.get(group)
        if running is not None and not running.carries(wanted):
            self.servers.pop(group).close()
            running = None
        if running is None:
            running = FmServer.start(self._opened().name, wanted, self.tell)
            self.servers[group] = running
        return running


def _group_of(config: EngineConfig) -> EngineConfig:
    """Return what cells of one server have in common; who drafts matters where something does."""
    usual = EngineConfig()
    common = replace(config, max_rows=1, num_draft_tokens=0, spec_batching=usual.spec_batching)
    if config.num_draft_tokens:
        return common
    return replace(common, drafter=usual.drafter, draft_model=None)


def _lane_of(job: TrialJob) -> dict[str, Any]:
    """Return what tells a request of one cell from those of others on the same server.

    A cell of several rows names no lane: which one it gets is what its routing is about.
    """
    config = job.cell.config
    chosen = {"draft": config.num_draft_tokens, "spec_batching": config.spec_batching}
    alone = {"lane": "serial"} if config.max_rows == 1 else {}
    return {"return_token_ids": True, "fm": {**chosen, **alone}}
