"""Peer cells that are servers: one that a cell's file starts, or one that runs already."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.models.load import LoadedModel
from harness.cells.cell import Cell
from harness.http.chat_reply import ChatReply
from harness.http.client import LoadClient
from harness.http.probe import enforces_schema, model_of, probe, target_key
from harness.http.process import Launch, ServerProcess, free_port
from harness.http.trial import HttpServer
from harness.store.rows import TrialRecord
from harness.trials.target import CannotRunError, OnTokens, Tell, TrialJob

V1 = "/v1"
CHAT = "/chat/completions"

Words = tuple[str, ...]


@dataclass(slots=True)
class ServerPeers:
    """The servers of a run's peer cells, started or looked at when first needed.

    Cells whose commands come to the same share a server.

    Args:
        tell: takes a line when a server is started.
        folder_of: the folder of a draft model.
    """

    tell: Tell
    folder_of: Callable[[str], Path]
    processes: dict[Words, ServerProcess] = field(default_factory=dict)
    servers: dict[tuple[Words, int], HttpServer] = field(default_factory=dict)

    def check(self, cell: Cell, model: LoadedModel | None) -> None:
        """See that a cell can be run.

        Args:
            model: that lies on this machine; None where the run's target is elsewhere.

        Raises:
            CannotRunError: its command needs the model's folder, and there is none.
            FmError: a running server cannot be asked.
        """
        if cell.key.url:
            server = self._running(cell, "" if model is None else model.name)
            if cell.key.has("grammar") and not server.enforces_schema():
                raise CannotRunError(f"{cell.key.url} does not enforce a json_schema")
        else:
            self._command(cell, model)

    def run(self, job: TrialJob, model: LoadedModel | None, on_tokens: OnTokens) -> TrialRecord:
        """Run a trial; a server that was lost is started again by the next one."""
        cell = job.cell
        if cell.key.url:
            server = self._running(cell, "" if model is None else model.name)
        else:
            server = self._started(cell, self._command(cell, model))
        return server.run(job, on_tokens)

    def close(self) -> None:
        """End every server that was started here."""
        for server in self.servers.values():
            server.client.close()
        for process in self.processes.values():
            process.close()
        self.servers.clear()
        self.processes.clear()

    def _running(self, cell: Cell, wanted: str) -> HttpServer:
        key = ((cell.key.url, wanted), cell.rows)
        if key not in self.servers:
            base = cell.key.url.rstrip("/")
            client = LoadClient(base, cell.rows, reply=ChatReply, key=target_key())
            self.servers[key] = remote_server(client, wanted=wanted)
        return self.servers[key]

    def _started(self, cell: Cell, command: Words) -> HttpServer:
        process = self.processes.get(command)
        if process is not None and not process.is_alive:
            self._drop(command)
            process = None
        if process is None:
            process = self._start(cell, command)
            self.processes[command] = process
        key = (command, cell.rows)
        if key not in self.servers:
            assert cell.server is not None
            client = LoadClient(process.url, cell.rows, reply=ChatReply)
            self.servers[key] = replace(
                remote_server(client, V1, model=cell.server.model),
                pids=lambda: process.pids,
                lost=process.loss,
                counts_end=cell.server.counts_end,
            )
        return self.servers[key]

    def _start(self, cell: Cell, command: Words) -> ServerProcess:
        assert cell.server is not None
        port = str(free_port())
        launch = Launch(
            name=f"the server of {cell.name}",
            command=tuple(word.replace("{port}", port) for word in command),
            url=f"http://127.0.0.1:{port}",
            health=cell.server.health,
        )
        return ServerProcess(launch, self.tell)

    def _drop(self, command: Words) -> None:
        self.processes.pop(command).close()
        for key in [key for key in self.servers if key[0] == command]:
            self.servers.pop(key).client.close()

    def _command(self, cell: Cell, model: LoadedModel | None) -> Words:
        """Return a cell's command with all in place but the port."""
        assert cell.server is not None
        drafter = cell.config.draft_model
        places: dict[str, Callable[[], str]] = {
            "python": lambda: sys.executable,
            "port": lambda: "{port}",
            "rows": lambda: str(cell.rows),
            "num_draft_tokens": lambda: str(cell.config.num_draft_tokens),
            "folder": lambda: _folder_of(model),
            "draft_folder": lambda: str(self.folder_of(drafter or "")),
        }
        return tuple(
            re.sub(r"\{(\w+)\}", lambda found: places[found[1]](), word)
            for word in cell.server.command
        )


def remote_server(
    client: LoadClient[ChatReply], base: str = "", *, wanted: str = "", model: str = ""
) -> HttpServer:
    """Return a server of others as trials are run against it, once it was asked what it takes.

    Args:
        base: path that all others of the API begin with, behind the client's URL.
        wanted: the model that is asked for where the server lists it.
        model: what the server calls its model, where that is known.

    Raises:
        FmError: it does not answer as it should; the client is closed.
    """
    try:
        name = model or model_of(client, base, wanted)
        takes = probe(client, base + CHAT, name)
    except BaseException:
        client.close()
        raise
    return HttpServer(
        client=client,
        model=name,
        path=base + CHAT,
        takes=takes,
        schema_check=lambda: enforces_schema(client, base + CHAT, name, takes),
    )


def _folder_of(model: LoadedModel | None) -> str:
    if model is None or model.path is None:
        raise CannotRunError("the model lies in no folder that a server could load")
    return str(model.path)
