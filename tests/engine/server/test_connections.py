"""Clients that stall hold nothing for long, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import h11
import pytest
from starlette.types import Message, Receive, Scope, Send

from engine.server.connection import FREE_PIECES, _Pieces
from engine.server.gate import Gate
from engine.server.settings import ServerConfig
from tests.engine.server.live import CHAT, Live, chat_body, serving
from tests.waiting import WAIT_S, wait_for

HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
BODY = json.dumps(chat_body(max_tokens=2)).encode()
LIMIT_S = 1.0
MANY = 100


@contextmanager
def connected(
    live: Live, count: int, data: bytes, buffer: int | None = None
) -> Iterator[list[socket.socket]]:
    """Connections that have sent so much."""
    host, port = live.url.removeprefix("http://").split(":")
    found: list[socket.socket] = []
    try:
        for _ in range(count):
            found.append(socket.socket())
            if buffer is not None:
                found[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            found[-1].settimeout(WAIT_S)
            found[-1].connect((host, int(port)))
            found[-1].sendall(data)
        yield found
    finally:
        for item in found:
            item.close()


def rest_of(connection: socket.socket) -> bytes:
    """All that comes until the other side has ended the connection."""
    parts = []
    with suppress(ConnectionResetError):
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


def with_length(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def are_met(_live: Live) -> bool:
    """Connections are met in their order, so these were before a good one was answered."""
    return True


def are_read(live: Live) -> bool:
    return live.server._num_reading == MANY


def are_answered(live: Live) -> bool:
    """So is the good one."""
    return live.listener.server_state.total_requests == MANY + 1


@pytest.mark.parametrize(
    ("data", "status", "stall"),
    [
        (b"", b"408", are_met),
        (b"POST /v1/chat", b"408", are_met),
        (HEAD + b"X-A: 1\r\n", b"408", are_met),
        (HEAD + b"Content-Length: 1000\r\n\r\n{", b"408", are_read),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", b"408", are_read),
        (with_length(BODY) + b"POST", b"200", are_answered),
        (HEAD + b"Content-Length: 999999999\r\n\r\n{", b"413", are_met),
    ],
    ids=[
        "silent",
        "in the line",
        "in the head",
        "in the body",
        "in a chunk",
        "the second",
        "refused",
    ],
)
def test_a_request_that_never_ends_is_ended_and_good_ones_are_served_meanwhile(
    data: bytes, status: bytes, stall: Callable[[Live], bool]
) -> None:
    with serving() as live, connected(live, MANY, data) as stalled:
        assert live.is_serving()
        wait_for(lambda: stall(live))
        live.pass_time(live.server.config.client_timeout_s)
        for connection in stalled:
            answer = rest_of(connection)
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert b'"error"' in answer or status == b"200"
        assert live.server._num_reading == 0


def ends_crumbs(connection: socket.socket) -> bool:
    """Send a byte now and then; True when the other side had enough of it, however late."""
    deadline_s = time.monotonic() + WAIT_S
    with suppress(OSError):
        while time.monotonic() < deadline_s:
            connection.sendall(b"x")
            time.sleep(0.05)
        return False
    return True


@pytest.mark.parametrize(
    "data", [b"", HEAD + b"Content-Length: 1000\r\n\r\n"], ids=["head", "body"]
)
def test_a_client_that_sends_a_byte_now_and_then_gets_no_more_time(data: bytes) -> None:
    with serving(client_timeout_s=LIMIT_S) as live, connected(live, 1, data) as (slow,):
        assert ends_crumbs(slow)


def test_bodies_under_way_are_waiting_requests_and_leave_room_when_they_are_ended() -> None:
    with (
        serving(max_waiting=6) as live,
        connected(live, 10, HEAD + b"Content-Length: 1000\r\n\r\n{"),
    ):
        wait_for(lambda: live.server._num_reading == 10)
        refused = live.chat()
        assert refused.status_code == 429
        assert refused.headers["retry-after"]
        live.pass_time(live.server.config.client_timeout_s)
        wait_for(lambda: live.server._num_reading == 0)
        assert live.is_serving()


@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_body_in_crumbs_is_refused_before_it_holds_the_others_up(
    live: Live, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the pieces the event loop takes of it: each takes the same time."""
    next_event, events = _Pieces.next_event, list[Any]()

    def noted(self: _Pieces) -> Any:
        events.append(next_event(self))
        return events[-1]

    monkeypatch.setattr(_Pieces, "next_event", noted)
    content = json.dumps(chat_body("x" * 1_000_000)).encode()
    pieces = (content[start : start + size] for start in range(0, len(content), size))
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    with connected(live, 1, head) as (sender,), suppress(ConnectionError):
        sender.sendall(chunks)
    assert live.is_serving()
    assert 0 < sum(isinstance(event, h11.Data) for event in events) < 2 * FREE_PIECES


def test_an_honest_body_may_come_in_pieces(live: Live) -> None:
    for size in (1, 1024):
        pieces = (BODY[start : start + size] for start in range(0, len(BODY), size))
        headers = {"content-type": "application/json"}
        assert live.client.post(CHAT, content=pieces, headers=headers).status_code == 200
    large = json.dumps(chat_body("x " * 3000, max_tokens=1)).encode()
    pieces = (large[start : start + 256] for start in range(0, len(large), 256))
    assert live.client.post(CHAT, content=pieces, headers=headers).status_code == 200


LONG = chat_body(stream=True, n=4, max_tokens=3000, ignore_eos=True, logprobs=True, top_logprobs=20)


def is_cut(live: Live) -> bool:
    """Let the client's time be up whenever it has to take something; True when it is gone."""
    if any(each.flow is not None and each.flow.write_paused for each in live.connections):
        live.pass_time(live.server.config.client_timeout_s)
    return not live.connections


def test_a_client_that_reads_nothing_is_cut_off() -> None:
    with (
        serving(request_timeout_s=86_400) as live,
        connected(live, 1, with_length(json.dumps(LONG).encode()), buffer=4096) as (stalled,),
    ):
        wait_for(lambda: live.connections)
        wait_for(lambda: is_cut(live))
        live.wait_until_idle()
        assert b"[DONE]" not in rest_of(stalled)
        assert live.is_serving()


def timer_of(live: Live) -> object:
    """What runs while a client has to take some of its reply."""
    return next((each._taking for each in live.connections), None)


def has_answered(live: Live) -> bool:
    return live.listener.server_state.total_requests > 0


def test_a_client_that_reads_slowly_gets_all_of_it() -> None:
    """However long all of it takes: time goes by whenever the server waits for the client."""
    body = json.dumps({**LONG, "max_tokens": 1200}).encode()
    request = HEAD + b"Connection: close\r\n" + with_length(body)[len(HEAD) :]
    with serving() as live, connected(live, 1, request, buffer=4096) as (slow,):
        text, timer = b"", None
        for _ in range(3):
            wait_for(lambda last=timer: has_answered(live) or timer_of(live) not in (None, last))
            timer = timer_of(live)
            live.pass_time(0.6 * live.server.config.client_timeout_s)
            while timer_of(live) is timer and (part := slow.recv(65_536)):
                text += part
        assert (text + rest_of(slow)).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def chunks_of(answer: bytes) -> Iterator[bytes]:
    """The chunks of a body: each was sent by itself."""
    _, _, rest = answer.partition(b"\r\n\r\n")
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        chunk, rest = rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        if chunk:
            yield chunk


def test_events_that_come_together_are_sent_together(live: Live) -> None:
    usage = {"include_usage": True}
    fields = chat_body(stream=True, n=3, max_tokens=4, ignore_eos=True, stream_options=usage)
    data = HEAD + b"Connection: close\r\n" + with_length(json.dumps(fields).encode())[len(HEAD) :]
    with connected(live, 1, data) as (client,):
        first, *_, last = chunks_of(rest_of(client))
    assert first.count(b'"role":"assistant"') == 3
    assert b'"usage":{' in last
    assert last.endswith(b"data: [DONE]\n\n")


def test_a_slash_too_many_is_an_unknown_path_and_leads_nowhere(live: Live) -> None:
    answer = live.client.post(f"{CHAT}/", content=BODY)
    assert answer.status_code == 404
    assert "location" not in answer.headers


def test_a_request_that_the_end_of_the_drain_cancels_is_told_in_our_form() -> None:
    async def waiting(_scope: Scope, _receive: Receive, _send: Send) -> None:
        await asyncio.sleep(60)

    async def cancelled() -> list[Message]:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        gate = Gate(waiting, config=ServerConfig(insecure=True), on_answer=lambda *_: None)
        scope = {"type": "http", "path": CHAT, "headers": []}
        task = asyncio.ensure_future(gate(scope, receive, send))
        await asyncio.sleep(0)
        task.cancel()
        await task
        return sent

    start, body = asyncio.run(cancelled())
    assert start["status"] == 503
    assert json.loads(body["body"])["error"]["code"] == "engine_stopped"
