"""Targets that are URLs: a server of ours, and one of others that does little."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.responses import JSONResponse

from engine.errors import FmError
from harness.cli import cli
from harness.http.chat_reply import ChatReply
from harness.http.client import LoadClient
from harness.http.probe import MARK, enforces_schema, model_of, probe
from harness.http.trial import Takes
from harness.targets.remote import RemoteTarget, only_model
from harness.trials.target import CannotRunError
from tests.engine.server.live import Live, serving
from tests.harness.foreign_server import DONE, WORDS, Foreign, chunk, foreign, usage
from tests.harness.jobs import CATALOGUE, CHAT, PEOPLE, cell_of, job_of, measured


def takes_everything(body: dict[str, Any]) -> Any:
    """A server that enforces schemas: this one's documents are all of one kind."""
    if "response_format" not in body:
        return WORDS
    schema = body["response_format"]["json_schema"]["schema"]
    is_mark = "mark" in schema["properties"]
    document = {"mark": MARK} if is_mark else {"sex": "f", "age": 7}
    return (chunk(json.dumps(document)), chunk(finish="stop"), usage(4), DONE)


def takes_little(body: dict[str, Any]) -> Any:
    """A server that refuses what it does not know, and tells no usage."""
    known = {"model", "messages", "max_tokens", "temperature", "stream"}
    if unknown := sorted(set(body) - known):
        return JSONResponse({"error": {"message": f"unknown field {unknown[0]}"}}, 400)
    return (chunk("a"), chunk("b"), chunk(finish="length"), DONE)


def takes_and_forgets(_body: dict[str, Any]) -> Any:
    """A server that takes any field and minds none."""
    return WORDS


@pytest.mark.parametrize(
    ("script", "takes", "enforces"),
    [
        (takes_everything, Takes(), True),
        (takes_little, Takes(usage=False, template=False, seed=False), False),
        (takes_and_forgets, Takes(), False),
    ],
    ids=["all", "little", "forgetful"],
)
def test_a_server_is_asked_what_it_takes(script: Any, takes: Takes, enforces: bool) -> None:
    with (
        foreign(script=script) as server,
        LoadClient(server.url, 1, reply=ChatReply) as client,
    ):
        assert probe(client, "/chat/completions", "words") == takes
        assert enforces_schema(client, "/chat/completions", "words", takes) is enforces
        assert all(body["max_tokens"] <= 32 for body in server.asked)


def test_the_model_is_the_wanted_one_or_the_only_one() -> None:
    with foreign(models=("a", "b")) as server, LoadClient(server.url, 1, reply=ChatReply) as client:
        assert model_of(client, "", "b") == "b"
        with pytest.raises(FmError, match=r"2 models \(a, b\); name one with --models"):
            model_of(client, "", "c")
        server.models = ("a",)
        assert model_of(client, "", "c") == "a"
        assert only_model(server.url + "/") == "a"
        server.models = ("a", "b\x1b[31m\n")
        with pytest.raises(FmError, match="whose id is no name"):
            model_of(client, "", "a")


@pytest.fixture
def server() -> Iterator[Foreign]:
    with foreign(script=takes_everything) as made:
        yield made


@contextmanager
def opened(url: str, model: str) -> Iterator[RemoteTarget]:
    target = RemoteTarget(url, lambda line: None)
    try:
        target.open(model)
        yield target
    finally:
        target.close()


def test_cells_run_as_far_as_a_request_can_ask_for_them(server: Foreign) -> None:
    with opened(server.url, "words") as target:
        for name in ("serial", "batch4", "serial@aa", "grammar", "batch4+grammar"):
            target.check(CATALOGUE.get(name), PEOPLE)
        for name in ("spec", "batch4+spec@routed", "spec+grammar"):
            with pytest.raises(CannotRunError, match="drafts as it was started"):
                target.check(CATALOGUE.get(name), PEOPLE)
        with pytest.raises(CannotRunError, match="on this machine"):
            target.check(CATALOGUE.get("mlx-lm"), CHAT)
        with pytest.raises(CannotRunError, match="no folder"):
            target.check(CATALOGUE.get("mlx-lm@server"), CHAT)
    server.script = takes_and_forgets
    with (
        opened(server.url, "words") as target,
        pytest.raises(CannotRunError, match="json_schema"),
    ):
        target.check(CATALOGUE.get("grammar"), PEOPLE)


def test_rows_hold_what_is_told_and_nothing_else(server: Foreign) -> None:
    with opened(server.url, "words") as target:
        server.script = lambda body: (lambda: server.most_live > 1, *takes_everything(body))
        record = target.run(job_of(cell_of("batch4")), lambda tokens: None)
        for row in measured(record):
            assert (row.status, row.text, row.finish_reason) == ("ok", "one two three", "stop")
            assert (row.completion_tokens, row.count_source, row.prompt_tokens) == (3, "usage", 5)
            assert row.token_ids is row.cached_tokens is row.drafted is row.target_calls is None
            assert (row.lane_taken, row.lane_reason) == ("", "")
        trial = record.trial
        assert trial.status == "done"
        assert trial.tokens == 12
        assert trial.aggregate_s is trial.step_s is trial.mask_s is trial.decode_steps is None
        assert trial.peak_mlx_bytes is trial.peak_rss_bytes is None
        assert trial.client_stream_s
        assert server.most_live > 1


def test_grammar_cells_send_the_schema_and_are_graded_here(server: Foreign) -> None:
    with opened(server.url, "words") as target:
        record = target.run(job_of(cell_of("grammar"), PEOPLE, count=1), lambda tokens: None)
        assert [row.conformance for row in measured(record)] == ["ok"]
        sent = server.asked[-1]
        assert sent["response_format"]["json_schema"]["schema"] == PEOPLE.schemas["person"]
        assert sent["chat_template_kwargs"] == {"enable_thinking": False}
        assert "fm" not in sent
        assert "return_token_ids" not in sent


def test_counts_of_chunks_are_estimates() -> None:
    with foreign(script=takes_little) as server, opened(server.url, "words") as target:
        record = target.run(job_of(cell_of("serial"), PEOPLE, count=1), lambda tokens: None)
        (row,) = measured(record)
        assert (row.completion_tokens, row.count_source) == (2, "estimated")
        assert "chat_template_kwargs" not in server.asked[-1]


def test_an_ending_that_is_neither_stop_nor_length_is_a_failure() -> None:
    def script(body: dict[str, Any]) -> Any:
        return WORDS if body["max_tokens"] < 20 else (chunk("a"), chunk(finish="tool_calls"), DONE)

    with foreign(script=script) as server, opened(server.url, "words") as target:
        record = target.run(job_of(cell_of("serial"), count=1), lambda tokens: None)
        (row,) = measured(record)
        assert row.status == "error"
        assert "tool_calls" in (row.error or "")


def test_a_server_that_streams_no_chat_is_told() -> None:
    with (
        foreign(script=lambda _body: JSONResponse({"error": {"message": "no"}}, 500)) as server,
        pytest.raises(FmError, match="streams no chat of 'words': HTTP 500: no"),
        opened(server.url, "words"),
    ):
        pass


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving() as made:
        yield made


def test_a_server_of_ours_is_one_like_any_other(live: Live) -> None:
    with opened(f"{live.url}/v1", "tiny") as target:
        target.check(CATALOGUE.get("batch4+grammar"), PEOPLE)
        record = target.run(job_of(cell_of("batch4+grammar"), PEOPLE), lambda tokens: None)
        for row in measured(record):
            assert (row.status, row.conformance, row.count_source) == ("ok", "ok", "usage")
            assert row.token_ids is None


def fm(folder: Path, *arguments: str, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> str:
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False, standalone_mode=False)
    assert done.return_value == code, done.output
    return str(done.output)


def test_a_run_on_a_url_ends_with_its_gates_and_its_skips(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate that needs what nobody told is absent; the key is nowhere."""
    monkeypatch.setenv("FM_TARGET_API_KEY", "k3y")
    url = f"{live.url}/v1"
    chosen = ("--target", url, "--preset", "smoke", "--workloads", "json-extract")
    cells = ("--cells", "serial,grammar,spec")
    plan = fm(tmp_path, "plan", *chosen, *cells, monkeypatch=monkeypatch)
    assert f"target {url}" in plan
    assert "serial+spec: " in plan
    assert "drafts as it was started" in plan
    out = fm(tmp_path, "run", *chosen, *cells, "--json", "out.json", monkeypatch=monkeypatch)
    assert "drafts as it was started" in out
    report = json.loads((tmp_path / "out.json").read_text())
    assert {gate["name"]: gate["status"] for gate in report["gates"]} == {
        "conformance": "pass",
        "completeness": "pass",
    }
    assert report["environment"]["target"] == url
    assert report["environment"]["client"]["delay_pct"]["tiny json-extract serial"] > 0
    assert report["environment"]["client"]["retries"] == 0
    cells_told = {cell["cell"]: cell for cell in report["cells"]}
    assert set(cells_told) == {"serial", "serial+grammar"}
    for cell in cells_told.values():
        assert cell["model"] == "tiny"
        assert cell["tok_s"]["aggregate"] is None
        assert cell["tok_s"]["e2e"] > 0
    assert cells_told["serial+grammar"]["ratio"]["estimate"] > 0
    assert cells_told["serial+grammar"]["ratio"]["figure"] == "e2e"
    (markdown,) = (tmp_path / "reports").glob("*.md")
    text = markdown.read_text()
    assert "Client delay" in text
    assert "wall time" in text
    assert "k3y" not in text + out + plan
