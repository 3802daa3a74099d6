"""What goes wrong stays with whom it concerns, and health tells the truth."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any

import httpx2
import mlx.core as mx
import numpy as np
import openai
import pytest
from openai import OpenAI

from engine.config import EngineConfig
from engine.errors import ModelError, SettingError
from engine.grammar.build import Builder
from engine.grammar.deep_pool import NUM_THREADS
from engine.loop import Engine
from engine.sequence import Sequence
from engine.server import worker
from engine.server.settings import ServerConfig
from engine.server.token_texts import TokenTexts
from engine.server.worker import State
from engine.testing import ScriptedDrafter, TableModel, tiny_model
from tests.engine.server.live import (
    CHAT,
    COMPLETIONS,
    MODEL,
    Live,
    chat_body,
    engine_of,
    events_of,
    held_after,
    serving,
    tiny_engine,
)
from tests.engine.server.response_stream import events_of_response
from tests.waiting import WAIT_S, wait_for

LONG: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True}
LONG_RESPONSE: dict[str, Any] = {
    "max_output_tokens": 4000,
    "ignore_eos": True,
    "chat_template_kwargs": {"enable_thinking": False},
}


def engine_with(drafter: ScriptedDrafter) -> Engine:
    config = EngineConfig(
        max_rows=4, num_draft_tokens=2, draft_budgets="fixed", spec_batching="batched"
    )
    return Engine(tiny_model(), config, drafter)


class Trap:
    """A drafter's script that springs when a row has emitted three tokens and the trap is set."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.is_set = self.has_ended = False
        self.sprung, self.release = threading.Event(), threading.Event()

    def __call__(self, row: Sequence) -> list[int]:
        if self.is_set and row.num_emitted >= 3:
            self.sprung.set()
            if self.error is not None:
                raise self.error
            self.release.wait(WAIT_S)
            self.has_ended = True
        return []


@contextmanager
def trapped(trap: Trap, **settings: Any) -> Iterator[Live]:
    with serving(lambda: engine_with(ScriptedDrafter(trap)), **settings) as live:
        trap.is_set = True
        try:
            yield live
        finally:
            trap.release.set()


def time_out(live: Live, trap: Trap) -> None:
    """Let the time of all requests be up when the trap has sprung."""
    assert trap.sprung.wait(WAIT_S)
    live.pass_time(live.server.config.request_timeout_s)


def parts_of(live: Live, path: str) -> list[Any]:
    """The events of a long stream that fails."""
    body = chat_body(stream=True, **LONG)
    if path == COMPLETIONS:
        body = {"model": MODEL, "prompt": "hi", "stream": True, "temperature": 0, **LONG}
    text = ""
    with live.client.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200
        for part in answer.iter_text():
            text += part
    return [json.loads(item) for item in events_of(text)]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("broken"), "row_failed"),
        (KeyboardInterrupt(), "engine_dead"),
        (None, "timeout"),
    ],
    ids=["a row", "the thread", "a step that hangs"],
)
def test_an_error_in_mid_stream_is_an_event_and_then_the_end(
    error: BaseException | None, code: str, path: str
) -> None:
    trap = Trap(error)
    with trapped(trap) as live:
        if code == "timeout":
            threading.Thread(target=time_out, args=(live, trap)).start()
        *chunks, last = parts_of(live, path)
        assert last["error"]["code"] == code
        assert last["error"]["type"] == "server_error"
        assert not trap.has_ended, "the end waits for no step"
        texts = [part for chunk in chunks for part in chunk["choices"]]
        assert len(texts) >= 3
        assert all(part["finish_reason"] is None for part in texts)
        if code == "row_failed":
            whole = live.chat(**LONG)
            assert whole.status_code == 503
            assert whole.json()["error"]["code"] == code
            assert live.client.get("/health").status_code == 200
            trap.is_set = False
            assert live.chat().status_code == 200


def test_an_error_in_the_midst_of_a_response_fails_it_and_is_the_last_event() -> None:
    with trapped(Trap(RuntimeError("broken"))) as live:
        events = events_of_response(live.respond(stream=True, **LONG_RESPONSE).text)
        *_, failed, last = events
        assert failed["type"] == "response.failed"
        assert failed["response"]["status"] == "failed"
        assert failed["response"]["error"]["code"] == "server_error"
        assert failed["response"]["usage"] is None
        (item,) = failed["response"]["output"]
        deltas = [found["delta"] for found in events if found["type"].endswith("text.delta")]
        assert (item["status"], item["content"][0]["text"]) == ("incomplete", "".join(deltas))
        assert (last["type"], last["code"]) == ("error", "row_failed")
        assert last["error"]["message"] == last["message"]
        assert [found["sequence_number"] for found in events] == list(range(len(events)))
        assert live.respond(**LONG_RESPONSE).status_code == 503


def test_an_error_in_mid_stream_is_the_official_clients_own() -> None:
    with (
        trapped(Trap(RuntimeError("broken"))) as live,
        OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client,
    ):
        messages: Any = [{"role": "user", "content": "hi"}]
        stream = client.chat.completions.create(
            model=MODEL, messages=messages, stream=True, temperature=0, extra_body=LONG
        )
        assert len([next(stream) for _ in range(3)]) == 3
        with pytest.raises(openai.APIError, match="broken"):
            list(stream)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_error_nobody_foresaw_is_told_by_its_class(
    live: Live, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(TokenTexts, "name", fail)
    answer = live.chat(stream=stream, logprobs=True)
    monkeypatch.undo()
    document = json.loads(events_of(answer.text)[-1]) if stream else answer.json()
    assert document["error"]["code"] == "internal_error"
    assert "ZeroDivisionError" in document["error"]["message"]
    assert "secret" not in answer.text
    assert stream or answer.status_code == 500


class Hungry(TableModel):
    """Gets no memory for prompts of some length, as MLX says it on a GPU."""

    def __call__(self, ids: mx.array, cache: list[Any] | None = None) -> mx.array:
        """Return logits [rows, width, vocab]."""
        if ids.shape[1] >= 64:
            raise RuntimeError("[malloc] Unable to allocate 4398046511104 bytes.")
        return super().__call__(ids, cache)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_prompt_there_is_no_memory_for_fails_alone(stream: bool) -> None:
    size = tiny_model().vocab_size
    table = np.zeros((size, size), dtype=np.float32)
    model = replace(tiny_model(), name="hungry", model=Hungry(table), num_layers=1, path=None)
    with serving(lambda: Engine(model, EngineConfig(max_rows=2))) as live:
        answer = live.complete([65] * 200, stream=stream)
        last = json.loads(events_of(answer.text)[-1]) if stream else answer.json()
        assert stream or answer.status_code == 503
        assert last["error"]["code"] == "row_failed"
        assert "Unable to allocate" in last["error"]["message"]
        assert live.client.get("/health").status_code == 200
        assert live.complete([65]).status_code == 200


def test_a_dead_engine_thread_is_told_by_health_and_to_whoever_waits() -> None:
    with trapped(Trap(KeyboardInterrupt())) as live:
        assert live.client.get("/health").json() == {"status": "ok"}
        answer = live.chat(**LONG)
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_dead"
        health = live.client.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "dead"})
        assert live.chat().status_code == 503
        assert live.client.get("/v1/models").json()["data"][0]["state"] == "dead"


def test_a_stuck_step_is_told_by_health_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    trap, stuck_after_s, passed_s = Trap(), 600.0, [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(passed_s))
    monkeypatch.setattr(worker, "time", clock)
    with trapped(trap, stuck_after_s=stuck_after_s) as live:
        waiting = threading.Thread(target=live.chat, kwargs={"max_tokens": 20, "ignore_eos": True})
        waiting.start()
        assert trap.sprung.wait(WAIT_S)
        assert live.client.get("/health").json() == {"status": "ok"}
        passed_s.append(stuck_after_s)
        assert live.client.get("/health").json() == {"status": "stuck"}
        assert live.chat().status_code == 503
        trap.is_set = False
        trap.release.set()
        waiting.join()
        wait_for(lambda: live.client.get("/health").status_code == 200)
        assert live.chat().status_code == 200


def test_before_the_engine_is_open_requests_get_a_503_and_not_a_wait() -> None:
    opening = threading.Event()

    def open_late() -> Engine:
        opening.wait(WAIT_S)
        return tiny_engine()

    with serving(open_late, waits=False) as live:
        assert live.client.get("/health").json() == {"status": "starting"}
        for stream in (False, True):
            answer = live.chat(stream=stream)
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "engine_starting"
            assert answer.headers["retry-after"]
        assert live.client.get("/v1/models").json()["data"][0]["state"] == "starting"
        assert live.client.get("/stats").json()["state"] == "starting"
        opening.set()
        wait_for(lambda: live.client.get("/health").status_code == 200)
        assert live.chat().status_code == 200


def test_an_engine_that_cannot_be_opened_leaves_its_error() -> None:
    def refuse() -> Engine:
        raise ModelError("no such model")

    with serving(refuse, waits=False) as live:
        wait_for(lambda: live.worker.state is State.DEAD)
        assert isinstance(live.worker.failure, ModelError)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_rows_end_when_their_client_leaves(live: Live, stream: bool) -> None:
    ended = engine_of(live).stats().finished
    leaver = HTTPConnection(live.url.removeprefix("http://"), timeout=WAIT_S)
    body = json.dumps(chat_body(stream=stream, n=3, **LONG))
    with held_after(live, num_steps=20):
        leaver.request("POST", CHAT, body, {"content-type": "application/json"})
        if stream:
            leaver.getresponse().read(1)
        wait_for(lambda: live.worker.num_rows == 3)
        leaver.close()
        wait_for(lambda: live.worker.num_rows == 0)
    live.wait_until_idle()
    stats = engine_of(live).stats()
    assert (stats.active, stats.pending, stats.projected_bytes) == (0, 0, 0)
    assert stats.finished == ended + 3
    assert live.worker.totals.rows["cancelled"] >= 3


def test_neighbours_go_on_when_clients_leave(live: Live) -> None:
    expected = live.chat("stay", max_tokens=200, ignore_eos=True).json()["choices"]
    found: list[Any] = []

    def stay() -> None:
        with httpx2.Client(base_url=live.url, timeout=WAIT_S) as client:
            body = chat_body("stay", max_tokens=200, ignore_eos=True)
            found.append(client.post(CHAT, json=body).json()["choices"])

    staying = threading.Thread(target=stay)
    staying.start()
    for _ in range(10):
        with (
            httpx2.Client(base_url=live.url, timeout=WAIT_S) as leaver,
            leaver.stream("POST", CHAT, json=chat_body(stream=True, **LONG)) as answer,
        ):
            next(answer.iter_bytes())
    staying.join()
    assert found == [expected]


def test_requests_beyond_what_may_wait_get_a_429() -> None:
    config = EngineConfig(max_rows=1)
    with serving(lambda: tiny_engine(config), max_waiting=1) as live:
        too_many = live.chat(n=3)
        assert (too_many.status_code, too_many.json()["error"]["param"]) == (400, "n")
        body = chat_body(stream=True, n=2, **LONG)
        with (
            held_after(live, num_steps=20),
            live.client.stream("POST", CHAT, json=body) as answer,
        ):
            parts = answer.iter_bytes()
            next(parts)
            with httpx2.Client(base_url=live.url, timeout=WAIT_S) as other:
                refused = other.post(CHAT, json=chat_body())
        assert refused.status_code == 429
        assert refused.headers["retry-after"]
        live.wait_until_idle()
        assert live.chat().status_code == 200


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_reply_that_takes_too_long_ends_with_an_error(stream: bool) -> None:
    with serving(request_timeout_s=0.5) as live:
        answer = live.chat(stream=stream, max_tokens=8000, ignore_eos=True)
        if stream:
            error = json.loads(events_of(answer.text)[-1])["error"]
        else:
            assert answer.status_code == 504
            error = answer.json()["error"]
        assert error["code"] == "timeout"
        live.wait_until_idle()


def test_a_key_is_asked_for_everywhere_but_at_health() -> None:
    with (
        serving(api_key="s3cret") as live,
        httpx2.Client(base_url=live.url, timeout=WAIT_S) as stranger,
    ):
        assert stranger.get("/health").status_code == 200
        for path in ("/v1/models", "/stats", "/metrics", "/nowhere"):
            assert stranger.get(path).status_code == 401
        for key in ("", "Bearer", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "Bearer é"):
            answer = stranger.post(
                CHAT, json=chat_body(), headers={"authorization": key.encode("latin-1")}
            )
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        assert live.chat().status_code == 200
        assert "s3cret" not in repr(live.server.config)


def test_another_host_needs_a_key_or_an_explicit_word() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.com"):
        with pytest.raises(SettingError, match="--api-key"):
            ServerConfig(host=host)
        ServerConfig(host=host, api_key="k")
        ServerConfig(host=host, insecure=True)
    for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        ServerConfig(host=host)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
def test_a_name_that_was_made_local_does_not_reach_a_server_without_a_key(
    live: Live, host: str
) -> None:
    answer = live.client.get("/v1/models", headers={"host": host})
    assert answer.status_code == 403
    assert host in answer.json()["error"]["message"]
    assert "--api-key" in answer.json()["error"]["message"]
    for own in ("localhost", "localhost:1", "[::1]:80", "[::1]"):
        assert live.client.get("/v1/models", headers={"host": own}).status_code == 200


def test_a_server_that_drains_ends_what_it_began_and_takes_no_more() -> None:
    with (
        serving() as own,
        own.client.stream(
            "POST", CHAT, json=chat_body(stream=True, max_tokens=300, ignore_eos=True)
        ) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        own.worker.drain()
        with httpx2.Client(base_url=own.url, timeout=WAIT_S) as other:
            assert other.post(CHAT, json=chat_body()).status_code == 503
            assert other.get("/health").json() == {"status": "draining"}
        assert "data: [DONE]" in list(lines)


def test_what_is_told_of_the_server_is_true(live: Live) -> None:
    live.chat(max_tokens=30, response_format={"type": "json_object"})
    (listed,) = live.client.get("/v1/models").json()["data"]
    assert (listed["id"], listed["state"]) == ("tiny", "serving")
    assert listed == live.client.get("/v1/models/tiny").json()
    stats = live.client.get("/stats").json()
    assert stats["rows"]["live"] == 0
    assert stats["rows"]["max"] == 4
    assert stats["tokens"]["completion"] > 0
    assert stats["speculation"]["draft_kind"] == "ngram"
    assert stats["speculation"]["num_draft_tokens"] == 3
    assert stats["grammar_cache"]["compiles"] >= 1
    assert stats["kv"]["bytes"] > 0
    text = live.client.get("/metrics").text
    assert 'fm_requests_total{path="/v1/chat/completions",status="200"}' in text
    for name in ("fm_completion_tokens_total", "fm_rows_active", "fm_first_text_seconds_bucket"):
        assert name in text


def test_replies_go_on_while_schemas_compile(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while as many compile as there are threads for it: the compiler is held meanwhile."""
    matcher, may_end = Builder.matcher, threading.Event()
    held, answers = threading.Semaphore(0), list[int]()

    def held_matcher(self: Builder, grammar: str) -> Any:
        held.release()
        assert may_end.wait(WAIT_S)
        return matcher(self, grammar)

    def ask(number: int) -> None:
        schema = {"type": "json_schema", "json_schema": {"schema": {"const": f"held {number}"}}}
        with httpx2.Client(base_url=live.url, timeout=WAIT_S) as client:
            answer = client.post(CHAT, json=chat_body(max_tokens=1, response_format=schema))
        answers.append(answer.status_code)

    def compiles() -> int:
        return int(live.client.get("/stats").json()["grammar_cache"]["compiles"])

    before = compiles()
    asking = [threading.Thread(target=ask, args=(number,)) for number in range(NUM_THREADS)]
    with monkeypatch.context() as patch:
        patch.setattr(Builder, "matcher", held_matcher)
        for thread in asking:
            thread.start()
        for _ in asking:
            assert held.acquire(timeout=WAIT_S)
        for _ in range(3):
            assert live.chat(max_tokens=1).status_code == 200
        assert (answers, compiles()) == ([], before)
        may_end.set()
        for thread in asking:
            thread.join()
    assert answers == [200] * NUM_THREADS
    ask(0)
    assert compiles() == before + NUM_THREADS, "the second use of a schema compiles nothing"
