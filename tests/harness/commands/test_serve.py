"""`fm serve` and `fm generate` as a person uses them: real processes, a tiny model."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx2
import pytest

from engine.config import EngineConfig
from engine.errors import SettingError
from engine.server.settings import ServerConfig
from harness import serve_flags
from harness.commands import serve as commands
from harness.flags import chosen_settings
from harness.opening import engine_config
from tests.harness.command import FM, ROOT, Fm, environment, fm
from tests.waiting import WAIT_S, wait_for

SLOW = """
import sys, time
from engine.loop import Engine
from harness.cli import main

step = Engine.step

def slow_step(engine):
    time.sleep(0.05)
    return step(engine)

Engine.step = slow_step
main(sys.argv[1:])
"""
SLOW_FM = (sys.executable, "-c", SLOW)
"""The command `fm`, whose replies of some thousand tokens last minutes on any machine."""


@contextmanager
def serve(
    *arguments: str, program: tuple[str, ...] = FM, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that is ready, and its address."""
    command = [*program, "serve", "--model", "tiny-thinking", "--port", "0", *arguments]
    process = subprocess.Popen(
        command, env=environment(**variables), stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        seen = ""
        for line in process.stderr:
            seen += line
            if found := re.search(r"fm: serving tiny-thinking on (http://\S+)/v1", line):
                yield process, found[1]
                break
        else:
            pytest.fail(f"the server did not become ready: {seen}")
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "secret words"}]
    return {"model": "tiny-thinking", "messages": messages, "temperature": 0, **fields}


DRAFTING = ("--num-draft-tokens", "3", "--batch", "2")


def test_a_server_serves_says_nothing_of_what_it_served_and_drains_on_a_signal() -> None:
    key = {"authorization": "Bearer k3y"}
    with serve(*DRAFTING, "--drain", "600", FM_API_KEY="k3y") as (process, url):
        long = body(stream=True, max_tokens=1500, ignore_eos=True)
        with httpx2.Client(base_url=url, headers=key, timeout=WAIT_S) as client:
            assert client.get("/health").json() == {"status": "ok"}
            assert client.get("/stats").json()["speculation"]["num_draft_tokens"] == 3
            with client.stream("POST", "/v1/chat/completions", json=long) as answer:
                lines = answer.iter_lines()
                next(lines)
                process.send_signal(signal.SIGTERM)
                assert "data: [DONE]" in list(lines)
        assert process.wait(WAIT_S) == 0
        assert process.stderr is not None
        rest = process.stderr.read()
        assert not any(word in rest for word in ("secret", "k3y", "Traceback", str(ROOT)))


def test_a_second_signal_does_not_wait_for_replies() -> None:
    patient = ("--request-timeout", "3600", "--drain", "3600")
    with serve(*patient, program=SLOW_FM) as (process, url):
        first, heard = threading.Event(), list[bytes]()

        def ask() -> None:
            long = body(stream=True, max_tokens=8000, ignore_eos=True)
            with (
                httpx2.Client(base_url=url, timeout=WAIT_S) as client,
                client.stream("POST", "/v1/chat/completions", json=long) as answer,
            ):
                try:
                    for part in answer.iter_bytes():
                        heard.append(part)
                        first.set()
                except httpx2.HTTPError:
                    pass

        asking = threading.Thread(target=ask)
        asking.start()
        assert first.wait(WAIT_S)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        while "1 live replies get 3600 s to end" not in (line := process.stderr.readline()):
            assert line, "it ended without a word on its live reply"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        asking.join()
        assert b"[DONE]" not in b"".join(heard)
        assert "Traceback" not in process.stderr.read()


def test_what_the_end_of_the_drain_cuts_is_told_so() -> None:
    heard: dict[bool, tuple[int, str]] = {}
    with serve("--drain", "1", program=SLOW_FM) as (process, url):

        def ask(stream: bool) -> None:
            long = body(stream=stream, max_tokens=8000, ignore_eos=True)
            with httpx2.Client(base_url=url, timeout=WAIT_S) as client:
                answer = client.post("/v1/chat/completions", json=long)
                heard[stream] = answer.status_code, answer.text

        asking = [threading.Thread(target=ask, args=(stream,)) for stream in (True, False)]
        for thread in asking:
            thread.start()
        with httpx2.Client(base_url=url, timeout=WAIT_S) as client:
            wait_for(lambda: client.get("/stats").json()["rows"]["live"] == 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        for thread in asking:
            thread.join()
    assert {stream: status for stream, (status, _) in heard.items()} == {True: 200, False: 503}
    events = heard[True][1].split("\n\n")
    for last in (events[-2].removeprefix("data: "), heard[False][1]):
        assert json.loads(last)["error"]["code"] == "engine_stopped"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "no-such"), "unknown model"),
        (("--host", "0.0.0.0"), "--api-key"),
        (("--port", "70000"), "port is 70000"),
        (("--kv-bits", "3"), "kv_bits"),
        (("--draft-kind", "ngram"), "--num-draft-tokens"),
        (("--batch", "0"), "max_rows"),
    ],
    ids=str,
)
def test_a_server_that_cannot_start_says_why_in_one_line(
    fm_here: Fm, arguments: tuple[str, ...], words: str
) -> None:
    done = fm_here("serve", *arguments)
    assert done.code == 2
    assert words in done.err.splitlines()[-1]
    assert "Traceback" not in done.err


def test_a_model_that_cannot_be_opened_ends_the_server_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    done = fm(tmp_path, "serve", "--port", "0", "--model", "broken")
    assert done.code == 2
    assert all(line.startswith("fm: ") for line in done.err.splitlines())
    assert "Traceback" not in done.err


def test_every_setting_is_a_flag() -> None:
    assert set(serve_flags.ENGINE_FLAGS.values()) == {item.name for item in fields(EngineConfig)}
    assert set(serve_flags.SERVER_FLAGS.values()) == {item.name for item in fields(ServerConfig)}


def test_flags_are_the_settings_they_name() -> None:
    given = ["--no-pipelined", "--adapter", "a=x", "--adapter", "b=y", "--prefill-chunk", "64"]
    context = commands.serve.make_context("serve", [*given, "--batch", "3", "--allow-overrides"])
    settings = chosen_settings(context, EngineConfig)
    assert EngineConfig(**settings) == EngineConfig(
        pipelined=False, adapters=("a=x", "b=y"), prefill_chunk=64, max_rows=3
    )
    assert ServerConfig(**chosen_settings(context, ServerConfig)).allow_overrides
    plain = commands.serve.make_context("serve", [])
    assert EngineConfig(**chosen_settings(plain, EngineConfig)).pipelined


def test_a_draft_model_drafts_unless_another_kind_is_named() -> None:
    config = engine_config({"draft_model": "smollm2-135m-first8", "num_draft_tokens": 3})
    assert config.drafter == "two_model"
    with pytest.raises(SettingError, match="loads no model"):
        engine_config({"draft_model": "x", "drafter": "ngram", "num_draft_tokens": 3})


def test_a_prompt_is_answered_from_the_shell(tmp_path: Path, fm_here: Fm) -> None:
    asked = ("generate", "hello", "--model", "tiny-thinking", "--max-tokens", "12")
    plain = fm_here(*asked, "--no-reasoning")
    assert plain.code == 0, plain.err
    assert plain.out.strip()
    assert "tokens in" in plain.err
    again = fm_here(*asked, "--no-reasoning", "--draft-kind", "ngram", "--num-draft-tokens", "3")
    assert again.out == plain.out
    thinking = fm_here(*asked)
    before, *_ = thinking.err.partition("\nfm: reply\n")
    assert before.partition("fm: reasoning\n")[2].strip()
    assert (thinking.out, "12 of them reasoning" in thinking.err) == ("\n", True)
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"enum": ["yes", "no"]}))
    bound = fm_here("generate", "hello", "--model", "tiny-thinking", "--schema", str(schema))
    assert json.loads(bound.out) in ("yes", "no")
    assert (bound.code, "schema enforced" in bound.err) == (0, True)
    cut = fm_here(*asked[:4], "--schema", str(schema), "--max-tokens", "1")
    assert (cut.code, "schema failed" in cut.err) == (1, True), cut.err
    gone = fm_here(*asked, "--schema", str(tmp_path / "gone.json"))
    assert gone.err.count("\n") == 1
    assert "gone.json: No such file or directory; name a file" in gone.err
    schema.write_text("{")
    refused = fm_here("generate", "hello", "--model", "tiny-thinking", "--schema", str(schema))
    assert (refused.code, refused.out) == (2, "")
