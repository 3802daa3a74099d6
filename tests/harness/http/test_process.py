"""A server as a child: it is waited for, its last words are kept, and it always ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import httpx2
import psutil
import pytest

from harness.http.process import Launch, ServerError, ServerProcess, free_port
from tests.waiting import WAIT_S, is_gone, wait_for

SERVER = textwrap.dedent(
    """
    import http.server, subprocess, sys, time

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    if "--stubborn" in sys.argv:
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "--family" in sys.argv:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    print(f"listening on http://127.0.0.1:{server.server_port}, opening", flush=True)
    server.serve_forever()
    """
)
LISTENING = r"listening on (http://\S+),"


def launch(*flags: str, script: str = SERVER) -> Launch:
    command = (sys.executable, "-c", script, *flags)
    return Launch(name="the test's", command=command, listening=LISTENING)


def ignore(_line: str) -> None:
    pass


@pytest.mark.parametrize("flags", [(), ("--stubborn",), ("--family",)], ids=str)
def test_a_server_is_there_when_it_answers_and_gone_with_its_children_when_closed(
    flags: tuple[str, ...],
) -> None:
    process = ServerProcess(launch(*flags), ignore)
    pids = process.pids
    assert len(pids) == 1 + ("--family" in flags)
    assert httpx2.get(process.url, timeout=WAIT_S, trust_env=False).status_code == 200
    assert process.loss() == ""
    process.close()
    process.close()
    assert all(map(is_gone, pids))


def test_a_server_that_ends_is_told_with_its_last_words() -> None:
    script = "import sys; sys.exit('no such model')"
    with pytest.raises(ServerError, match="the test's ended: no such model"):
        ServerProcess(launch(script=script), ignore)


def test_a_command_that_is_not_there_is_one_line() -> None:
    with pytest.raises(ServerError, match="cannot be started") as caught:
        ServerProcess(
            Launch(name="x", command=("/no/such/program",), url="http://127.0.0.1:9"), ignore
        )
    assert "\n" not in str(caught.value)


def test_a_server_that_does_not_serve_in_time_is_ended(tmp_path: Path) -> None:
    says = tmp_path / "says"
    script = (
        "import sys, time; from pathlib import Path; print('loading', flush=True); "
        "Path(sys.argv[1]).touch(); time.sleep(600)"
    )
    before = set(psutil.Process().children(recursive=True))
    lines: list[str] = []

    def hear(line: str) -> None:
        lines.append(line)
        wait_for(says.exists)

    with pytest.raises(ServerError, match=r"within 1 s.*loading"):
        ServerProcess(launch(str(says), script=script), hear, timeout_s=1)
    assert lines == ["starting the test's"]
    assert set(psutil.Process().children(recursive=True)) <= before


NEVER = textwrap.dedent(
    """
    import socket, sys, threading, time

    def talk(connection):
        connection.sendall(b"HTTP/1.1 ")
        while True:
            connection.sendall(b"2" if "--line" in sys.argv else b"200 OK\\r\\nX: y\\r\\n")
            time.sleep(0.2)

    server = socket.create_server(("127.0.0.1", 0))
    print(f"\\x1b[31mlistening on http://127.0.0.1:{server.getsockname()[1]}, \\x07", flush=True)
    while True:
        threading.Thread(target=talk, args=server.accept()[:1], daemon=True).start()
    """
)


def test_a_server_whose_answer_never_ends_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.http.process.ASK_TIMEOUT_S", 1.0)
    with pytest.raises(ServerError, match="did not serve within 3 s") as caught:
        ServerProcess(launch("--line", script=NEVER), ignore, timeout_s=3)
    assert "\x1b" not in str(caught.value)
    assert "\x07" not in str(caught.value)


def test_what_a_server_says_of_its_health_is_not_read() -> None:
    endless = SERVER.replace(
        "self.end_headers()",
        "self.end_headers()\n        while True: self.wfile.write(bytes(65536))",
    ).replace("HTTPServer(", "ThreadingHTTPServer(")
    process = ServerProcess(launch(script=endless), ignore, timeout_s=WAIT_S)
    process.close()


def test_a_server_that_was_killed_is_lost() -> None:
    process = ServerProcess(launch(), ignore)
    try:
        os.kill(process.pids[0], signal.SIGKILL)
        wait_for(lambda: not process.is_alive)
        assert "the test's ended: listening on" in process.loss()
    finally:
        process.close()


@pytest.mark.parametrize(
    ("number", "flags"),
    [(signal.SIGKILL, ("--family", "--stubborn")), (signal.SIGTERM, ("--family",))],
    ids=["SIGKILL, stubborn", "SIGTERM"],
)
def test_a_server_ends_with_whoever_started_it(
    number: signal.Signals, flags: tuple[str, ...]
) -> None:
    """Also when that is killed, and cannot end anything any more."""
    parent_script = textwrap.dedent(
        """
        import sys, time
        from harness.http.process import ServerProcess
        from tests.harness.http.test_process import launch

        process = ServerProcess(launch(*sys.argv[1:]), lambda line: None)
        print(*process.pids, flush=True)
        time.sleep(600)
        """
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_script, *flags],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    os.kill(parent.pid, number)
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: all(map(is_gone, pids)))


def test_the_key_of_fm_serve_is_not_handed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FM_API_KEY", "k3y")
    script = "import os; print('key', os.environ.get('FM_API_KEY'), flush=True)"
    with pytest.raises(ServerError, match="key None"):
        ServerProcess(launch(script=script), ignore)


def test_a_free_port_can_be_had() -> None:
    assert 0 < free_port() < 65536
