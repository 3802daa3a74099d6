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


def test_what_is_there_before_the_first_request_is_not_searched_for_garbage() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVES], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    set_aside, searched = map(int, done.stdout.split())
    assert set_aside > 50_000
    assert searched < set_aside / 50
