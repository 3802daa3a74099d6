"""The target that is a URL: a server that speaks OpenAI's API, whoever runs it.

It tells its tokens by usage, and nothing of lanes, ids or steps, so those figures are absent, and
the gates that would need them do not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.config import EngineConfig
from engine.errors import FmError
from engine.models.entry import find_entry
from engine.models.load import LoadedModel, outline_model
from engine.models.registry import pull
from harness.cells.cell import Cell, CellKind
from harness.http.chat_reply import ChatReply
from harness.http.client import LoadClient
from harness.http.probe import model_of, target_key
from harness.http.trial import HttpServer
from harness.peers.cells import PeerCells
from harness.peers.servers import remote_server
from harness.store.rows import DivergenceRow, LawRow, ModelRow, TrialRecord
from harness.trials.target import CannotRunError, OnTokens, Parting, SampledReply, Tell, TrialJob
from harness.workloads.workload import Workload

CONNECTIONS = 128
"""As many as the largest batch lane has rows."""


def only_model(url: str) -> str:
    """Return the id of the one model a server has; FmError when it has another number of them."""
    with _client(url) as client:
        return model_of(client, "")


@dataclass(slots=True)
class RemoteTarget:
    """Target made of one server, and of the peers that there are in process too.

    Args:
        url: what the paths of the API are appended to, such as `http://HOST:PORT/v1`.
    """

    url: str
    tell: Tell
    outline: Callable[[str], LoadedModel] = outline_model
    folder_of: Callable[[str], Path] = pull
    server: HttpServer | None = None
    local: LoadedModel | None = None
    peers: PeerCells = field(init=False)

    def __post_init__(self) -> None:
        self.peers = PeerCells(self.tell, self.folder_of)

    def open(self, model: str) -> ModelRow:
        """Ask the server what it takes with this model."""
        if self.server is None or self.server.model != model:
            self.close()
            self.server = remote_server(_client(self.url), model=model)
        return ModelRow(name=model, source=self.url)

    def check(self, cell: Cell, workload: Workload) -> None:
        """Skip what a request over HTTP cannot ask for."""
        if cell.key.is_peer:
            self.peers.check(cell, self._local())
            return
        if reason := self._why_not(cell):
            raise CannotRunError(reason)

    def run(self, job: TrialJob, on_tokens: OnTokens) -> TrialRecord:
        """Run a turn of a trial."""
        if job.cell.key.is_peer:
            return self.peers.run(job, self._local(), on_tokens)
        return self._opened().run(job, on_tokens)

    def judge(self, parting: Parting) -> Sequence[DivergenceRow]:
        """Never asked for, since ids are not told."""
        raise FmError(f"{self.url} tells no token ids, so nothing can be judged")

    def weigh(self, reply: SampledReply) -> LawRow:
        """Never asked for, since ids are not told."""
        raise FmError(f"{self.url} tells no token ids, so nothing can be judged")

    def close(self) -> None:
        """Let go of the server, and end every child."""
        self.peers.close()
        if self.server is not None:
            self.server.client.close()
        self.server = self.local = None

    def _opened(self) -> HttpServer:
        assert self.server is not None, "open() comes first"
        return self.server

    def _why_not(self, cell: Cell) -> str:
        """Return why a cell of ours cannot be asked of the server, "" when it can."""
        plain = EngineConfig(max_rows=cell.config.max_rows)
        if cell.key.has("spec") or cell.kind is CellKind.ROUTING:
            return f"{self.url} drafts as it was started; a request cannot ask for it"
        if cell.config != plain:
            return f"{self.url} has settings of its own; a request cannot ask for others"
        if cell.key.has("grammar") and not self._opened().enforces_schema():
            return f"{self.url} does not enforce a json_schema response_format"
        return ""

    def _local(self) -> LoadedModel | None:
        """Return the run's model as it lies on this machine, None where it has no such name."""
        name = self._opened().model
        if self.local is None:
            try:
                find_entry(name)
            except FmError:
                return None
            self.folder_of(name)
            self.local = self.outline(name)
        return self.local


def _client(url: str) -> LoadClient[ChatReply]:
    return LoadClient(url.rstrip("/"), CONNECTIONS, reply=ChatReply, key=target_key())
