"""A server of the tiny model on a free port of this machine, for as long as a test needs it."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from typing import Any

import httpx2
import pytest

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.loop import Engine
from engine.models.load import LoadedModel
from engine.request import TokenEvent
from engine.server.app import Server
from engine.server.listen import IDLE_S, Listener, listening_socket, url_of
from engine.server.settings import ServerConfig
from engine.server.worker import EngineWorker, State
from engine.testing import tiny_model
from tests.waiting import WAIT_S, wait_for

MODEL = "tiny"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
LANES = EngineConfig(max_rows=4, num_draft_tokens=3, spec_batching="batched", draft_budgets="fixed")
LIMITS = httpx2.Limits(keepalive_expiry=IDLE_S / 2)
"""No connection is used that the server may be about to close, however late the client is."""


@dataclass
class Live:
    """A server that answers."""

    url: str
    server: Server
    worker: EngineWorker
    client: httpx2.Client
    listener: Listener

    @property
    def connections(self) -> set[Any]:
        """What is connected."""
        return set(self.listener.server_state.connections)

    def chat(self, content: str = "hi", **fields: Any) -> httpx2.Response:
        return self.client.post(CHAT, json=chat_body(content, **fields))

    def complete(self, prompt: Any = "hi", **fields: Any) -> httpx2.Response:
        body = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 8, **fields}
        return self.client.post(COMPLETIONS, json=body)

    def respond(self, content: Any = "hi", **fields: Any) -> httpx2.Response:
        return self.client.post(RESPONSES, json=response_body(content, **fields))

    def is_serving(self) -> bool:
        """Ask for a reply on a connection of its own."""
        connection = HTTPConnection(self.url.removeprefix("http://"), timeout=WAIT_S)
        try:
            headers = {"content-type": "application/json"}
            connection.request("POST", CHAT, json.dumps(chat_body()), headers)
            return connection.getresponse().status == 200
        finally:
            connection.close()

    def wait_until_idle(self) -> None:
        wait_for(lambda: self.worker.num_rows == 0 and not engine_of(self).has_work)

    def pass_time(self, seconds: float) -> None:
        """Let the event loop's clock go ahead by so much: what is due until then is due now."""
        loop = self.listener.servers[0].get_loop()
        clock = loop.time
        loop.call_soon_threadsafe(setattr, loop, "time", lambda: clock() + seconds)


def chat_body(content: str = "hi", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 8, **fields}


def response_body(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": content, "temperature": 0, "max_output_tokens": 8, **fields}


def engine_of(live: Live) -> Engine:
    assert live.worker.opened is not None
    return live.worker.opened


def tiny_engine(config: EngineConfig = LANES) -> Engine:
    return Engine(tiny_model(), config, build_drafter(config))


def lanes_of(model: LoadedModel, drafts: int = LANES.num_draft_tokens) -> Engine:
    """An engine of the lanes that tests serve, on another model or with other drafts."""
    config = replace(LANES, num_draft_tokens=drafts)
    return Engine(model, config, build_drafter(config))


@contextmanager
def held_after(live: Live, num_steps: int) -> Iterator[None]:
    """Let the engine take so many steps and no more, until this ends: no row ends meanwhile."""
    engine, left, may_go_on = engine_of(live), itertools.count(num_steps, -1), threading.Event()
    step = engine.step

    def held_step() -> list[TokenEvent]:
        assert next(left) > 0 or may_go_on.wait(WAIT_S)
        return step()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "step", held_step)
        try:
            yield
        finally:
            may_go_on.set()


@contextmanager
def serving(
    open_engine: Callable[[], Engine] = tiny_engine, *, waits: bool = True, **settings: Any
) -> Iterator[Live]:
    config = ServerConfig(port=0, **settings)
    worker = EngineWorker(
        open_engine, max_waiting=config.max_waiting, stuck_after_s=config.stuck_after_s
    )
    server = Server(config, MODEL, worker)
    bound = listening_socket(config)
    listener = Listener(server, worker)
    thread = threading.Thread(target=listener.run, kwargs={"sockets": [bound]})
    worker.start()
    thread.start()
    headers = {} if config.api_key is None else {"authorization": f"Bearer {config.api_key}"}
    try:
        with httpx2.Client(
            base_url=url_of(bound), headers=headers, timeout=WAIT_S, limits=LIMITS
        ) as client:
            wait_for(lambda: listener.started)
            if waits:
                wait_for(lambda: worker.state is not State.STARTING)
                assert worker.failure is None
            yield Live(url_of(bound), server, worker, client, listener)
    finally:
        listener.force_exit = True
        listener.end()
        thread.join(WAIT_S)
        server.close()
        assert worker.stop(WAIT_S), "the engine thread goes on"
        assert not thread.is_alive()
        bound.close()


def events_of(text: str) -> list[str]:
    """The data of a stream's events, each one line."""
    blocks = text.split("\n\n")
    assert blocks[-1] == "", "the stream ends inside an event"
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks[:-1])
    return [block.removeprefix("data: ") for block in blocks[:-1]]
