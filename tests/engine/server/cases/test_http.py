"""Requests as bytes: broken lengths, bodies that end early, bodies too large."""

from __future__ import annotations

import contextlib
import json
import socket

import psutil
import pytest

from tests.engine.server.live import CHAT, Live, chat_body
from tests.waiting import WAIT_S

GOOD = json.dumps(chat_body(max_tokens=2))
PADDED = GOOD[:-1] + " " * 2**26 + "}"
CROWD = [{"role": "user", "content": "x"}] * 100_000
CHUNK = 2**16


def head(*headers: str) -> str:
    lines = (f"POST {CHAT} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers)
    return "\r\n".join((*lines, "Connection: close", "", ""))


def lengthy(body: str) -> str:
    return head(f"Content-Length: {len(body)}") + body


def chunked(body: str) -> str:
    parts = [body[start : start + CHUNK] for start in range(0, len(body), CHUNK)]
    sent = "".join(f"{len(part):x}\r\n{part}\r\n" for part in parts)
    return f"{head('Transfer-Encoding: chunked')}{sent}0\r\n\r\n"


REQUESTS: dict[str, tuple[str, list[bytes]]] = {
    "as it should be": (lengthy(GOOD), [b"200"]),
    "in chunks": (chunked(GOOD), [b"200"]),
    "no length": (head() + GOOD, [b"400"]),
    "negative length": (head("Content-Length: -1") + GOOD, [b"400"]),
    "a length that is no number": (head("Content-Length: abc") + GOOD, [b"400"]),
    "two lengths": (head("Content-Length: 5", f"Content-Length: {len(GOOD)}") + GOOD, [b"400"]),
    "a chunk of no length": (head("Transfer-Encoding: chunked") + "zz\r\n" + GOOD, [b"400"]),
    "a length beyond all": (head("Content-Length: 9999999999999999"), [b"413"]),
    "64 MiB": (lengthy(PADDED), [b"413", b""]),
    "64 MiB in chunks": (chunked(PADDED), [b"413", b""]),
    "100 000 messages": (lengthy(json.dumps(chat_body() | {"messages": CROWD})), [b"400"]),
    "no HTTP": ("\x00\x01\x02\r\n\r\n", [b"400", b""]),
    "a request line without end": ("GET /" + "x" * 200_000, [b"400", b""]),
}
"""Name -> what is sent, and the statuses it may have; b"" is a connection closed without one."""

CUT = {
    "a body that ends early": (head(f"Content-Length: {len(GOOD) + 10}") + GOOD, [b"400", b""]),
    "no body at all": (head("Content-Length: 10"), [b"400", b""]),
    "a head that ends early": (head()[:60], [b"400", b""]),
}
"""Requests behind which the client sends nothing more, though the server expects it."""


def answered(live: Live, request: bytes, *, is_cut: bool) -> bytes:
    """Send bytes and read to the end; a server need not read what it refuses."""
    host, port = live.url.removeprefix("http://").split(":")
    found = b""
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
            if is_cut:
                connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                found += part
    return found


@pytest.mark.parametrize("name", [*REQUESTS, *CUT])
def test_whatever_is_sent_is_answered_below_500(
    tiny: Live, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    request, statuses = (REQUESTS | CUT)[name]
    answer = answered(tiny, request.encode(), is_cut=name in CUT)
    assert (answer.split(b" ")[1] if answer else b"") in statuses, answer[:200]
    assert b"Traceback" not in answer
    assert tiny.is_serving()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    if answer:
        document = json.loads(answer.partition(b"\r\n\r\n")[2])
        parts = {"message", "type", "param", "code"}
        assert "choices" in document or set(document["error"]) == parts


@pytest.mark.parametrize("name", ["64 MiB", "64 MiB in chunks"])
def test_a_body_over_the_limit_is_not_kept(tiny: Live, name: str) -> None:
    request, _ = REQUESTS[name]
    before = psutil.Process().memory_info().rss
    answered(tiny, request.encode(), is_cut=False)
    assert psutil.Process().memory_info().rss - before < 2**24


def test_garbage_behind_an_answer_closes_the_connection(
    tiny: Live, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = tiny.url.removeprefix("http://").split(":")
    start = head("Transfer-Encoding: chunked").replace("application/json", "text/plain")
    start = start.replace("Connection: close\r\n", "")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        connection.sendall(f"{start}5\r\nfirst\r\n".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 415")
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"no length\r\n")
            while connection.recv(65536):
                pass
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
