"""The parent of a server's process: it ends the server when whoever asked for it is gone.

Run as `python -m harness.http.keeper COMMAND...`. Standard input is held open by fm and carries
nothing: its end, which also a killed fm leaves behind, means that the server is to end. Imports
nothing but the standard library, so that it is there at once and costs little.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

STOP_TIMEOUT_S = 5.0
"""What a server gets for ending by itself."""

GONE_TIMEOUT_S = 2.0
"""What processes get for being gone that were killed: they have to be let run once more for it.

Where nobody asks how orphans have ended they are never gone, as in a container without an init.
"""


def main(command: list[str]) -> int:
    """Run the command in a process group of its own until it ends or has to; return its status."""
    # Of all signals that end a process, those that can be caught end the server too.
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: ending.set())
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        return 127
    watchers = (
        threading.Thread(target=_until_parent_is_gone, args=(ending,), daemon=True),
        threading.Thread(target=_until_server_ends, args=(server, ending), daemon=True),
    )
    for watcher in watchers:
        watcher.start()
    while not ending.wait(1.0):
        pass
    _end(server)
    # A reader that still waits for input would be waited for by the interpreter's end.
    sys.stderr.flush()
    os._exit(server.returncode if server.returncode >= 0 else 128 - server.returncode)


def _until_parent_is_gone(ending: threading.Event) -> None:
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    ending.set()


def _until_server_ends(server: subprocess.Popen[bytes], ending: threading.Event) -> None:
    server.wait()
    ending.set()


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server, politely first, and whatever it has started."""
    if server.poll() is None:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(STOP_TIMEOUT_S)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    deadline_s = time.monotonic() + GONE_TIMEOUT_S
    # macOS answers "not permitted" of a group of which only the dead are left.
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline_s:
            os.killpg(server.pid, 0)
            time.sleep(0.005)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
