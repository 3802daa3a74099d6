"""A server as a child process: started, waited for, and ended whatever happens."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx2
import psutil

from engine.errors import FmError
from harness.opening import served_name
from harness.report.visible import in_one_line
from harness.trials.target import Tell

START_TIMEOUT_S = 600.0
POLL_S = 0.05
ASK_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 15.0
"""More than the keeper gives its server."""

LOSS_S = 2.0
LAST_WORDS_BYTES = 8192


class ServerError(FmError):
    """A server could not be started, is gone, or does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a server is started.

    Args:
        name: what people call it.
        command: program and arguments.
        url: where it will listen; None where it chooses a port and says so.
        listening: pattern of the line in which it says so; its group is the address.
        health: path that answers 200 as soon as requests are served.
    """

    name: str
    command: tuple[str, ...]
    url: str | None = None
    listening: str = ""
    health: str = "/health"


class ServerProcess:
    """One server; a context that ends it. What it prints is kept for its last words.

    Raises:
        ServerError: it ended, or did not serve in time.
    """

    def __init__(self, launch: Launch, tell: Tell, timeout_s: float = START_TIMEOUT_S) -> None:
        self.name = launch.name
        # Open as long as the server lives: close() ends both.
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # close() does
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "harness.http.keeper", *launch.command],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            env=_environment(),
            # A Ctrl-C on the terminal is for fm, which then ends the server in order.
            start_new_session=True,
        )
        try:
            self.url = self._wait(launch, tell, timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of the server itself."""
        with suppress(psutil.Error):
            children = psutil.Process(self._process.pid).children(recursive=True)
            return tuple(child.pid for child in children)
        return ()

    @property
    def is_alive(self) -> bool:
        """True while it has not ended."""
        return self._process.poll() is None

    def loss(self, wait_s: float = LOSS_S) -> str:
        """Return why it is gone, "" while it is there.

        Args:
            wait_s: its connections break before its end can be seen; so long is that waited for.
        """
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        return "" if self.is_alive else f"{self.name} ended: {self.last_words}"

    @property
    def last_words(self) -> str:
        """The last line it printed, or the status it ended with."""
        lines = self._printed().splitlines()
        line = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return in_one_line(line[-300:]) or f"status {self._process.returncode}"

    def close(self) -> None:
        """End it; safe to call twice."""
        if self._output.closed:
            return
        pids = self.pids
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            for pid in (self._process.pid, *pids):
                with suppress(psutil.Error):
                    psutil.Process(pid).kill()
            self._process.wait()
        self._output.close()

    def _wait(self, launch: Launch, tell: Tell, timeout_s: float) -> str:
        """Return the address when requests are served."""
        deadline_s = time.monotonic() + timeout_s
        url, told = launch.url, ""
        while time.monotonic() < deadline_s:
            if reason := self.loss(POLL_S):
                raise ServerError(reason)
            if url is None and (found := re.search(launch.listening, self._printed())):
                url = found[1]
            if url is not None and _serves(url + launch.health):
                return url
            if not told:
                tell(told := f"starting {self.name}")
        raise ServerError(
            f"{self.name} did not serve within {timeout_s:.0f} s; it last said: {self.last_words}"
        )

    def _printed(self) -> str:
        """Return the end of what it printed; the file's place is shared with it, and stays."""
        if self._output.closed:
            return ""
        size = os.fstat(self._output.fileno()).st_size
        start = max(0, size - LAST_WORDS_BYTES)
        return os.pread(self._output.fileno(), size - start, start).decode("utf-8", "replace")


def free_port() -> int:
    """Return a port of this machine that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def fm_serve(model: str, flags: Sequence[str]) -> Launch:
    """Return how `fm serve` is started on a free port; the working folder's modules are not taken.

    Raises:
        FmError: no such model.
    """
    command = (sys.executable, "-P", "-m", "harness.cli", "serve", "--model", model, "--port", "0")
    return Launch(
        name=f"fm serve --model {served_name(model)}",
        command=(*command, *flags),
        listening=r"listening on (http://\S+),",
    )


def _serves(url: str) -> bool:
    """Return whether a server answers 200; what it says beside that is not read."""
    return asyncio.run(_answers(url))


async def _answers(url: str) -> bool:
    try:
        async with (
            asyncio.timeout(ASK_TIMEOUT_S),
            httpx2.AsyncClient(trust_env=False, timeout=None) as client,
            client.stream("GET", url) as answer,
        ):
            return answer.status_code == 200
    except (TimeoutError, httpx2.HTTPError, httpx2.InvalidURL):
        return False


def _environment() -> dict[str, str]:
    """Return the environment of a server: with our code first, and without the key of `fm serve`.

    A server that only this machine reaches, for as long as a run takes, asks for none.
    """
    ours = str(Path(__file__).resolve().parents[2])
    rest = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    places = [ours, *(place for place in rest if place != ours)]
    kept = {name: value for name, value in os.environ.items() if name != "FM_API_KEY"}
    return {**kept, "PYTHONPATH": os.pathsep.join(places)}
