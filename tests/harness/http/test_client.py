"""The load client: what is sent when, what a failure is, and how late the client itself is."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from engine.errors import FmError
from harness.http.chat_reply import ChatReply, StreamError
from harness.http.client import Ask, Exchange, Load, LoadClient, Patience
from harness.http.delay import ClientDelay
from harness.running.run import interruptible
from tests.harness.foreign_server import DONE, WORDS, Foreign, chunk, event, foreign, usage
from tests.waiting import WAIT_S, wait_for

CHAT = "/chat/completions"
PATIENT = Patience(first_event_s=WAIT_S, event_s=WAIT_S, total_s=WAIT_S)


@pytest.fixture
def server() -> Iterator[Foreign]:
    with foreign() as made:
        yield made


def client_of(server: Foreign, connections: int = 8, **options: Any) -> LoadClient[ChatReply]:
    options = {"patience": PATIENT, **options}
    return LoadClient(server.url, connections, reply=ChatReply, **options)


def asks(count: int) -> list[Ask]:
    return [
        Ask.of(CHAT, {"model": "words", "number": number, "stream": True})
        for number in range(count)
    ]


def one(server: Foreign, **options: Any) -> Exchange[ChatReply]:
    with client_of(server, **options) as client:
        (found,) = client.waves(asks(1), 1).exchanges
        return found


def choice(**fields: Any) -> bytes:
    return event({"choices": [{"index": 0, **fields}]})


def told(**fields: Any) -> bytes:
    return event({"choices": [], "usage": fields})


GZIPPED = {"content-encoding": "gzip", "content-type": "text/event-stream"}


class Noted(ChatReply):
    """A reply that notes when it was given each document."""

    seen_s: list[float]

    def see(self, document: Any, now_s: float) -> int:
        self.seen_s = [*getattr(self, "seen_s", []), now_s]
        return super().see(document, now_s)


def test_a_reply_is_put_together_and_each_instant_has_its_place(server: Foreign) -> None:
    """By a clock of which each reading is the next number."""
    server.script = lambda _body: (
        chunk(""),
        chunk("", reasoning_content="hm"),
        chunk("one"),
        chunk(" two"),
        chunk(finish="stop"),
        usage(3),
        DONE,
    )
    ticks = itertools.count(1.0)
    with LoadClient(server.url, 1, reply=Noted, patience=PATIENT, clock=ticks.__next__) as client:
        (found,) = client.waves(asks(1), 1).exchanges
    reply = found.reply
    assert found.error is None
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("one two", "hm", "stop")
    assert reply.token_ids is None
    assert reply.usage == {"prompt_tokens": 5, "completion_tokens": 3}
    # The role is no token, reasoning is one, and text comes later.
    _, thought_s, one_s, two_s, *_ = reply.seen_s
    assert (reply.first_token_s, reply.first_text_s, reply.last_token_s) == (
        thought_s,
        one_s,
        two_s,
    )
    assert [found.due_s, *reply.seen_s, found.ended_s] == sorted(
        {found.due_s, *reply.seen_s, found.ended_s}
    )


def test_several_tokens_in_one_chunk_are_all_counted() -> None:
    reply = ChatReply()
    document = {"choices": [{"index": 0, "delta": {"content": "ab"}, "token_ids": [7, 8, 9]}]}
    assert reply.see(document, 1.0) == 3
    assert reply.see({"choices": [{"index": 0, "delta": {}, "token_ids": []}]}, 2.0) == 0
    assert reply.token_ids == [7, 8, 9]
    assert reply.last_token_s == 1.0


NO_CHUNKS = [
    *([], "x", {"choices": "x"}, {"choices": [1]}),
    *({"choices": [{"delta": delta}]} for delta in ("x", {"content": ["x"]}, {"reasoning": 5})),
    {"choices": [{"delta": {}, "token_ids": 5}]},
]


@pytest.mark.parametrize("document", NO_CHUNKS, ids=str)
def test_what_is_no_chunk_is_told(document: Any) -> None:
    with pytest.raises(StreamError):
        ChatReply().see(document, 0.0)


def test_waves_are_sent_together_and_the_next_one_waits_for_the_last_reply() -> None:
    def script(body: dict[str, Any]) -> Any:
        together = 3 if body["number"] < 6 else 1
        return (
            chunk("a"),
            lambda: len(server.asked) >= 3 * (body["number"] // 3) + together,
            *WORDS,
        )

    with foreign(script=script) as server:
        with client_of(server) as client:
            load = client.waves(asks(7), 3)
        assert server.most_live == 3
    starts = [item.due_s for item in load.exchanges]
    for wave in ((0, 1, 2), (3, 4, 5)):
        ends = [load.exchanges[place].ended_s for place in wave]
        assert max(ends) <= min(starts[wave[-1] + 1 :])
    assert [body["number"] for body in server.asked[-1:]] == [6]


def test_a_closed_loop_sends_the_next_request_as_soon_as_one_has_ended() -> None:
    def script(body: dict[str, Any]) -> Any:
        return ((lambda: len(server.asked) > 5) if body["number"] == 0 else 0.0, *WORDS)

    with foreign(script=script) as server:
        with client_of(server) as client:
            load = client.closed_loop(asks(9), 2)
        assert server.most_live == 2
    slow, others = load.exchanges[0], load.exchanges[1:]
    assert all(item.error is None for item in load.exchanges)
    assert sum(item.ended_s < slow.ended_s for item in others) > 3


def test_arrivals_by_chance_come_at_their_rate_whatever_is_live_and_repeat_by_seed() -> None:
    def due(seed: int) -> list[float]:
        with client_of(server, 64) as client:
            load = client.poisson(asks(40), 200.0, seed)
        assert all(item.error is None for item in load.exchanges)
        return [item.due_s - load.exchanges[0].due_s for item in load.exchanges]

    with foreign(script=lambda _body: (lambda: server.most_live > 4, *WORDS)) as server:
        first = due(3)
        assert due(3) == pytest.approx(first, abs=1e-9)
        assert due(4) != pytest.approx(first, abs=1e-9)
    assert first == sorted(first)
    assert 39 / first[-1] == pytest.approx(200, rel=0.6)


HASTY = {
    "first event": replace(PATIENT, first_event_s=0.4),
    "next event": replace(PATIENT, event_s=0.4),
    "the reply": replace(PATIENT, total_s=0.4),
}
PACED = tuple(part for _ in range(1000) for part in (chunk("a"), 0.1))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ((chunk("a"), event({"error": {"message": "row\nlost"}})), "broke off: row"),
        ((chunk("a"),), r"without \[DONE\]"),
        ((chunk("a"), DONE), "without a finish_reason"),
        ((b"data: {\n\n",), "no JSON"),
        ((chunk("a"), WAIT_S, *WORDS), "next event did not come within 0.4 s"),
        ((WAIT_S, *WORDS), "first event did not come within 0.4 s"),
        (PACED, "the reply took longer than 0.4 s"),
        (JSONResponse({"error": {"message": "no such model"}}, 404), "HTTP 404: no such model"),
        (Response("Not Found", 404), "HTTP 404: Not Found"),
        (JSONResponse({"choices": []}), "text/event-stream"),
        ((event({"choices": "abc"}),), "choices is 'abc', and no list"),
        ((event({"choices": [5]}),), "a choice is 5, and no object"),
        ((choice(delta=["a"]),), "a delta is .*, and no object"),
        ((choice(delta={"content": 5}),), "content is 5, and no text"),
        ((choice(delta={"content": [{"type": "text"}]}),), "content is .*, and no text"),
        ((choice(delta={"reasoning": {"a": 1}}),), "reasoning is .*, and no text"),
        ((choice(text=5),), "content is 5, and no text"),
        ((choice(token_ids=5),), "token_ids is 5, and no list"),
        ((choice(token_ids=["a"]),), "token_ids is 'a', and no count"),
        ((choice(finish_reason=["stop"]),), "finish_reason is .*, and no text"),
        ((b'data: {"choices":[{"delta":{"content":"\\ud800"}}]}\n\n',), "surrogate"),
        ((told(prompt_tokens="many"),), "prompt_tokens is 'many', and no count"),
        ((told(completion_tokens=-1),), "completion_tokens is -1, and no count"),
        ((told(completion_tokens=2.5),), "no count"),
        ((told(completion_tokens=True),), "no count"),
        ((told(completion_tokens=10**30),), "no count"),
        ((b'data: {"usage": {"completion_tokens": NaN}}\n\n',), "no JSON"),
        ((told(prompt_tokens_details=5),), "prompt_tokens_details is 5, and no object"),
        ((told(prompt_tokens_details={"cached_tokens": "x"}),), "no count"),
        ((told(speculation=[1]),), "speculation is .*, and no object"),
        ((told(speculation={"drafted_by_position": 5}),), "no list"),
        ((told(lane=5),), "lane is 5, and no text"),
        ((event({"choices": [], "usage": [1]}),), "usage is .*, and no object"),
        ((b"data: " + b"[" * 100_000 + b"\n\n",), "no JSON"),
        (Response(b"xx", 200, {"content-type": "text/event-stream; charset=utf-16"}), "UTF-16"),
        (Response(b"not compressed", 200, GZIPPED), "DecodingError"),
        (Response(gzip.compress(b"data: " + b"a" * 20_000_000), 200, GZIPPED), "limit"),
        (Response("\x1b[31mred\x07", 500), "HTTP 500: \u241b.31mred\u2407"),
        (
            (event({"error": {"message": "\x1b]0;owned\x07\u202e"}}),),
            "broke off: \u241b.0;owned\u2407$",
        ),
        (Response(status_code=307, headers={"location": "/v1/models"}), "HTTP 307"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_fails_is_a_failure_with_its_reason_in_one_line(
    server: Foreign, script: Any, words: str
) -> None:
    server.script = lambda _body: script
    patience = next((HASTY[what] for what in HASTY if what in words), PATIENT)
    found = one(server, patience=patience)
    assert found.error is not None
    assert "\n" not in found.error
    assert re.search(words, found.error), found.error
    assert found.ended_s >= found.due_s
    assert found.retries == 0
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (JSONResponse({"choices": [{"text": "one", "finish_reason": "stop"}]}), None),
        (JSONResponse({"choices": [{"text": "one"}]}), "without a finish_reason"),
        (Response("one"), "no JSON"),
        (JSONResponse({"error": {"message": "busy"}}, 503), "HTTP 503: busy"),
    ],
    ids=["whole", "unfinished", "text", "refused"],
)
def test_a_reply_that_is_no_stream_is_one_document(
    server: Foreign, said: Response, error: str | None
) -> None:
    server.script = lambda _body: said
    with client_of(server) as client:
        (found,) = client.closed_loop([Ask.of(CHAT, {"model": "words"})], 1).exchanges
    assert (found.error is None) == (error is None)
    assert error is None or error in str(found.error)
    assert found.ended_s > found.due_s
    assert found.reply.text == ("" if "text" not in str(said.body) else "one")
    assert server.headers[0]["accept"] == "application/json"


def test_what_follows_the_end_is_nothing_however_long_it_goes_on(server: Foreign) -> None:
    """By a clock that stands still until the end is read, and by which that was long ago then."""
    now_s = 1.0
    more = itertools.cycle((chunk("more"), event({"error": "x"}), 0.1))

    def later() -> bool:
        nonlocal now_s
        now_s = 1000.0 if client_has_read.is_set() else now_s
        return client_has_read.is_set()

    client_has_read = threading.Event()
    server.script = lambda _body: itertools.chain((b"".join(WORDS), later), more)
    with client_of(server, clock=lambda: now_s) as client:
        ask = asks(1)[0]
        found = client.run(client.exchange(ask, now_s, lambda *_: client_has_read.set()))
    assert found.error is None
    assert found.reply.text == "one two three"
    assert (found.due_s, found.ended_s, now_s) == (1.0, 1.0, 1000.0)


def test_a_reply_without_end_is_a_failure(server: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.http.client.MAX_REPLY_CHARACTERS", 100_000)
    server.script = lambda _body: (chunk("a" * 1000),) * 1000
    found = one(server)
    assert found.error == "the reply has more than 100000 characters"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((b"[", *(part for _ in range(1000) for part in (b"1,", 0.1))), "did not come within 1 s"),
        ((b"[" * 100_000,), "no JSON"),
        ((b'{"a": NaN}',), "no JSON"),
        ((b"x" * 2**20,) * 17, "more than"),
        (Response("\x1b[31mno", 500), "HTTP 500: \u241b.31mno"),
        (Response(status_code=307, headers={"location": "http://127.0.0.1:9/"}), "HTTP 307"),
    ],
    ids=["drip", "deep", "NaN", "endless", "error", "redirect"],
)
def test_a_small_resource_comes_soon_or_is_an_error(
    server: Foreign, answer: Any, words: str
) -> None:
    server.script = lambda _body: answer
    with client_of(server) as client, pytest.raises(FmError, match=words):
        client.fetch("POST", CHAT, 1.0 if " 1 s" in words else WAIT_S)


def test_nobody_who_listens_is_a_failure() -> None:
    with LoadClient("http://127.0.0.1:9", 1, reply=ChatReply, patience=PATIENT) as client:
        (found,) = client.waves(asks(1), 1).exchanges
        assert found.error is not None
        assert found.error.startswith("ConnectError")
        with pytest.raises(FmError, match="nothing answers there; start the server"):
            client.fetch("GET", "/models")


def busy(times: int, headers: dict[str, str]) -> Any:
    left = [times]

    def script(_body: dict[str, Any]) -> Any:
        left[0] -= 1
        return WORDS if left[0] < 0 else Response("busy", 429, headers)

    return script


def test_a_429_that_names_a_time_is_waited_for_once_and_counted(server: Foreign) -> None:
    server.script = busy(1, {"retry-after": "1"})
    found = one(server)
    assert (found.error, found.retries, len(server.asked)) == (None, 1, 2)
    assert found.ended_s - found.due_s >= 1

    server.script = busy(9, {"retry-after": "0"})
    again = one(server)
    assert again.error is not None
    assert (again.retries, len(server.asked)) == (1, 4)

    server.script = busy(1, {})
    assert one(server).retries == 0


def test_the_key_is_sent_and_a_proxy_of_the_environment_is_not_asked(
    server: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert one(server, key="k3y").error is None
    assert server.headers[0]["authorization"] == "Bearer k3y"


def test_connections_are_kept_from_request_to_request(server: Foreign) -> None:
    with client_of(server, 2) as client:
        client.waves(asks(6), 2)
        pool: Any = client._http._transport._pool
        assert len(pool.connections) == 2


def test_the_delay_of_a_client_that_is_at_work_shows_and_of_an_idle_one_does_not() -> None:
    """A reader that takes 20 ms for each event is late for the ones behind it.

    By a clock that only such a reader moves; every stream comes in one piece.
    """
    now_s = 1.0

    class Slow(ChatReply):
        def see(self, document: Any, now: float) -> int:
            nonlocal now_s
            now_s += 0.02
            return super().see(document, now)

    def delay(reply: type[ChatReply]) -> ClientDelay:
        with LoadClient(
            server.url, 4, reply=reply, patience=PATIENT, clock=lambda: now_s
        ) as client:
            load: Load[ChatReply] = client.waves(asks(4), 4)
            assert all(item.error is None for item in load.exchanges)
            return load.delay

    with foreign(script=lambda _body: (b"".join((*[chunk("a")] * 5, *WORDS)),)) as server:
        quick, slow = delay(ChatReply), delay(Slow)
    assert quick.events == slow.events == 4 * 11
    assert (quick.per_event_s, quick.share) == (0.0, None)
    assert slow.per_event_s is not None
    assert slow.per_event_s > 0.02
    assert slow.share is not None
    assert slow.share > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_signal_ends_what_is_sent_and_the_handlers_are_put_back(number: signal.Signals) -> None:
    def script(_body: dict[str, Any]) -> Any:
        return (lambda: len(server.asked) >= 4, *PACED)

    with foreign(script=script) as server, interruptible():
        before = signal.getsignal(number)
        with client_of(server, 4) as client:
            with pytest.raises(KeyboardInterrupt):
                client.waves(asks(8), 4, lambda _tokens: os.kill(os.getpid(), number))
            assert signal.getsignal(number) is before
            wait_for(lambda: server.live == 0)
            server.script = lambda _body: WORDS
            assert client.waves(asks(1), 1).exchanges[0].error is None
    assert len(server.asked) == 5


def test_a_client_is_closed_twice_without_harm() -> None:
    client = LoadClient("http://127.0.0.1:9", 1, reply=ChatReply)
    client.close()
    client.close()


def test_bodies_are_strict_json() -> None:
    assert json.loads(Ask.of("/", {"a": "ü"}).body) == {"a": "ü"}
    with pytest.raises(ValueError, match="JSON"):
        Ask.of("/", {"a": float("nan")})
