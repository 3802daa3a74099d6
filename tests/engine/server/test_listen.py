"""The server as a process of its own."""

from __future__ import annotations

import subprocess
import sys

from tests.waiting import WAIT_S

SERVES = """
import gc, os, signal
from engine.server.listen import serve
from engine.server.settings import ServerConfig
from tests.engine.server.live import tiny_engine

def tell(line):
    if line.startswith("serving"):
        print(gc.get_freeze_count(), len(gc.get_objects()), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

serve(ServerConfig(port=0), "tiny", tiny_engine, tell)
"""


TOLD_EARLY = """
import asyncio, os, signal
from http.client import HTTPConnection
import uvicorn
from engine.server.listen import serve
from engine.server.settings import ServerConfig
from tests.engine.server.live import tiny_engine

startup = uvicorn.Server.startup

async def late(self, sockets=None):
    while self._worker.opened is None:
        await asyncio.sleep(0.01)
    await asyncio.sleep(1)  # who does not wait for this is ahead
    await startup(self, sockets)

def tell(line):
    if line.startswith("serving"):
        asking = HTTPConnection(line.split()[-1].removeprefix("http://").removesuffix("/v1"))
        asking.request("GET", "/health")
        print(asking.getresponse().read().decode(), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

uvicorn.Server.startup = late
serve(ServerConfig(port=0), "tiny", tiny_engine, tell)
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    return done.stdout


def test_a_server_says_that_it_serves_when_it_answers_and_takes_signals() -> None:
    """Also where the engine is open before the address is listened on."""
    assert run(TOLD_EARLY) == '{"status":"ok"}\n'


def test_what_is_there_before_the_first_request_is_not_searched_for_garbage() -> None:
    set_aside, searched = map(int, run(SERVES).split())
    assert set_aside > 50_000
    assert searched < set_aside / 50
