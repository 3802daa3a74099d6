"""Two thousand hostile requests over plain sockets: nothing breaks, good ones go on as before."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.server.fuzz import Hostile, hostile
from tests.engine.server.live import Live, serving
from tests.waiting import WAIT_S

SEEDS, PER_SEED = range(8), 250
BETWEEN_GOOD = 25

GOOD: dict[str, Any] = {"content": "say it again", "max_tokens": 12, "return_token_ids": True}
BOUND: dict[str, Any] = {
    "guided_json": {"enum": ["one", "two"]},
    "max_tokens": 24,
    "reasoning_effort": "none",
}


@pytest.fixture(scope="module")
def besieged() -> Iterator[Live]:
    """A server whose replies are short where a body no longer says how long they are to be."""
    with serving(default_max_tokens=4) as live:
        yield live


def said(live: Live) -> list[Any]:
    answers = [live.chat(**GOOD), live.chat(**BOUND)]
    assert [answer.status_code for answer in answers] == [200, 200]
    choices = [answer.json()["choices"] for answer in answers]
    assert choices[1][0]["message"]["content"] in ('"one"', '"two"')
    return choices


def statuses(live: Live, case: Hostile) -> list[int]:
    """Send it and read all that comes back until the server closes."""
    host, port = live.url.removeprefix("http://").split(":")
    found = b""
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        try:
            connection.sendall(case.sent)
            if not case.is_whole:
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65_536):
                found += part
        except OSError:  # the server had read enough of it
            assert not case.is_whole, case
    heads = re.findall(rb"^HTTP/1\.1 (\d{3}) ", found, re.MULTILINE)
    if case.is_whole and found.startswith(b"HTTP/1.1 4"):
        assert "error" in json.loads(found.partition(b"\r\n\r\n")[2])
    assert b"internal_error" not in found, (case, "behind the head of a stream too")
    return [int(status) for status in heads]


@pytest.mark.parametrize("seed", SEEDS)
def test_hostile_requests_leave_a_server_that_says_what_it_said_before(
    besieged: Live, seed: int
) -> None:
    expected = said(besieged)
    for index, case in enumerate(hostile(seed, PER_SEED)):
        found = statuses(besieged, case)
        assert all(status < 500 for status in found), (case, found)
        assert found or not case.is_whole, case
        if index % BETWEEN_GOOD == 0:
            assert said(besieged) == expected, case
    besieged.wait_until_idle()
    assert said(besieged) == expected
    assert besieged.client.get("/health").json() == {"status": "ok"}
    assert besieged.client.get("/stats").json()["failed_steps"] == 0


def test_the_seeds_reach_what_they_are_for() -> None:
    cases = [case for seed in SEEDS for case in hostile(seed, PER_SEED)]
    assert len(cases) == 2000
    assert len({case.sent for case in cases}) > 1200
    assert [case.sent for case in hostile(3, 50)] == [case.sent for case in hostile(3, 50)]
