"""The server as a process: a socket, signals, and the engine thread from start to end."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from engine.errors import FmError, SettingError
from engine.loop import Engine
from engine.server.app import Server, build_app
from engine.server.connection import protocol_with
from engine.server.settings import ServerConfig
from engine.server.worker import EngineWorker

IDLE_S = 5
"""Seconds a connection without a request is kept."""

GOODBYE_S = 2
"""Seconds that those get to read what they are told whose replies the end of the drain cuts."""


class Listener(uvicorn.Server):
    """uvicorn's loop, with the first signal draining and any second one ending at once.

    Attributes:
        has_begun: set when requests and signals are taken, or are no more.
    """

    def __init__(
        self, server: Server, worker: EngineWorker, on_drain: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(uvicorn_config(server))
        self.has_begun = threading.Event()
        self._worker = worker
        self._lag = server.lag
        self._drain_s = server.config.drain_s
        self._on_drain = on_drain

    async def main_loop(self) -> None:
        """Run until the end is asked for, with the loop's lag measured meanwhile."""
        self._lag.start()
        self.has_begun.set()
        try:
            await super().main_loop()
        finally:
            self._lag.stop()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let live replies end; those that the drain cuts are told that the server has stopped."""
        giving_up = asyncio.get_running_loop().call_later(self._drain_s, self._worker.give_up)
        try:
            await super().shutdown(sockets)
        finally:
            giving_up.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal."""
        self._worker.drain()
        if self.should_exit:
            self.force_exit = True
            self._drop_connections()
        else:
            self._on_drain()
        self.should_exit = True

    def end(self) -> None:
        """Leave the loop; from any thread."""
        self.should_exit = True

    def _drop_connections(self) -> None:
        """From Python 3.12 on, a listening socket is closed only after its connections."""
        for connection in list(self.server_state.connections):
            transport = connection.transport
            if transport is not None:
                transport.abort()


def serve(
    config: ServerConfig,
    name: str,
    open_engine: Callable[[], Engine],
    tell: Callable[[str], None],
) -> None:
    """Serve until a signal comes; must be called from the main thread.

    Args:
        name: the model's id.
        open_engine: makes the engine; called in the engine's thread while the server answers that
            it is starting.
        tell: takes lines for people.

    Raises:
        SettingError: the address cannot be listened on.
        FmError: the engine could not be opened, or its thread ended.
    """
    with listening_socket(config) as bound:
        url = url_of(bound)
        tell(f"listening on {url}, opening {name}")

        def begin(_engine: Engine) -> None:
            _set_aside()
            listener.has_begun.wait()
            if not listener.should_exit:
                tell(f"serving {name} on {url}/v1")

        worker = EngineWorker(
            open_engine,
            max_waiting=config.max_waiting,
            stuck_after_s=config.stuck_after_s,
            on_open=begin,
        )
        server = Server(config, name, worker)

        def tell_of_rest() -> None:
            if worker.num_rows:
                tell(
                    f"{worker.num_rows} live replies get {config.drain_s:g} s to end; "
                    "a second signal does not wait"
                )

        listener = Listener(server, worker, tell_of_rest)
        worker.start(listener.end)
        try:
            listener.run(sockets=[bound])
        finally:
            listener.has_begun.set()
            server.close()
            worker.stop()
    if isinstance(worker.failure, FmError):
        raise worker.failure
    if worker.failure is not None:
        raise FmError(f"the engine thread ended: {type(worker.failure).__name__}")


def _set_aside() -> None:
    """Keep garbage collections off what is there before the first request.

    Modules, the model and tokenizers are a quarter of a million objects that live as long as the
    process. Looking through them time and again held every thread for 0.04 to 0.2 s.
    """
    gc.collect()
    gc.freeze()


def uvicorn_config(server: Server) -> uvicorn.Config:
    """Return how uvicorn runs the application: quiet, plain HTTP, nothing else."""
    config = server.config
    return uvicorn.Config(
        build_app(server),
        loop="asyncio",
        http=protocol_with(config.client_timeout_s),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=config.log_level,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=math.ceil(config.drain_s) + GOODBYE_S,
    )


def listening_socket(config: ServerConfig) -> socket.socket:
    """Return a bound socket; raises SettingError when the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise SettingError(
            f"cannot listen on {config.host}:{config.port} ({error.strerror}); choose another "
            "--host or --port"
        ) from None
    return bound


def url_of(bound: socket.socket) -> str:
    """Return the address of a socket as a URL."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def log_to_stderr(level: str) -> None:
    """Send the process's log lines to standard error."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
