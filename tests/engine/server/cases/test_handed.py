"""The collected cases that are tables, over HTTP, where the folder that holds them is present."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.grammar.test_cases import CASES, KNOWN_DIFFERENCES
from tests.engine.server.cases.echo import pieces
from tests.engine.server.cases.test_http import answered
from tests.engine.server.cases.test_schemas import is_valid, writings
from tests.engine.server.live import CHAT, MODEL, Live, chat_body, engine_of
from tests.engine.server.reply import (
    LANES,
    MODES,
    ask,
    ask_chat,
    schema_format,
    streamed,
    whole,
)

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the collected cases are not here")

GOOD = chat_body(max_tokens=2)
AT_ONCE = {"reasoning_effort": "none"}
SENT = {"serial": False, "batch+spec": True}
"""Lane -> whether it streams: the two that have least in common; the tests beside take them all."""
REFUSED = (400, 422)


def inputs() -> dict[str, dict[str, Any]]:
    """Number of a case -> its input."""
    found = {}
    for path in sorted(CASES.glob("s[ov]-*.json")) + sorted(CASES.glob("tx-*.json")):
        found[path.stem[:5]] = json.loads(path.read_text(encoding="utf-8"))["input"]
    return found


INPUTS = inputs()


def rows(*cases: str, key: str = "rows") -> list[Any]:
    return [
        pytest.param(row, id=f"{case}-{index}")
        for case in cases
        for index, row in enumerate(INPUTS.get(case, {}).get(key, ()))
    ]


def at_home(value: Any) -> Any:
    """A body of a case, for the model that is served here."""
    return {**value, "model": MODEL} if isinstance(value, dict) and "model" in value else value


# -- requests as bytes ----------------------------------------------------------------------------

BODIES: dict[str, bytes] = {
    "valid": json.dumps(GOOD).encode(),
    "BOM + valid body": b"\xef\xbb\xbf" + json.dumps(GOOD).encode(),
    "valid with \u00e9": json.dumps(chat_body("é"), ensure_ascii=False).encode("latin-1"),
    "valid gzip": gzip.compress(json.dumps(GOOD).encode()),
    "valid padded to 64 MiB": json.dumps(GOOD).encode() + b" " * 2**26,
    "valid with 100 000 messages of one char": json.dumps(
        GOOD | {"messages": [{"role": "user", "content": "x"}] * 100_000}
    ).encode(),
    "duplicate key max_tokens: 1 then 9": json.dumps(GOOD)[:-1].encode() + b', "max_tokens": 9}',
}


def sent(row: dict[str, Any]) -> bytes:
    """The bytes of a row: what it writes out, or describes."""
    headers = {"Content-Type": "application/json", **row.get("headers", {})}
    words = row.get("body", "valid")
    body = bytes.fromhex(row["body_hex"]) if "body_hex" in row else BODIES.get(words)
    if body is None:
        body = words.replace('"local"', f'"{MODEL}"').encode()
    length = headers.pop("Content-Length", None)
    if "chunked" in words:
        body = BODIES["valid"]
        headers["Transfer-Encoding"] = "chunked"
        body = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    elif length is None:
        headers["Content-Length"] = str(len(body))
    elif not length.startswith("absent"):
        headers["Content-Length"] = "1000" if "shorter" in length else length
    lines = [f"{row.get('method', 'POST')} {row.get('path', CHAT)} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


@pytest.mark.parametrize("row", rows("sv-01"))
def test_a_request_as_bytes_has_a_status_of_its_row(
    tiny: Live, row: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    if row.get("body", "").startswith("max_tokens 1e3"):
        for value, status in (
            ("1e1", 200),
            ("5.0", 200),
            ('"5"', 400),
            ("5.5", 400),
            ("true", 400),
        ):
            body = json.dumps(GOOD).replace('"max_tokens": 2', f'"max_tokens": {value}')
            answer = answered(tiny, sent({"body": body}), is_cut=False)
            assert answer.split(b" ")[1] == str(status).encode()
        return
    is_cut = "shorter" in str(row.get("headers", ""))
    answer = answered(tiny, sent(row), is_cut=is_cut)
    assert tiny.is_serving()
    assert b"Traceback" not in answer
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    if is_cut or not answer:
        assert is_cut or "64 MiB" in row["body"]
        return
    status = int(answer.split(b" ")[1])
    assert status in row["expect"]
    if status >= 400:
        document = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert set(document["error"]) == {"message", "type", "param", "code"}


# -- fields ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", rows("sv-03"))
@pytest.mark.parametrize("stream", MODES.values(), ids=MODES)
def test_values_have_a_status_of_their_row(tiny: Live, row: dict[str, Any], stream: bool) -> None:
    given = row["set"]
    body = chat_body(**{"stream": stream, **given})
    if "max_tokens" not in given and "max_completion_tokens" in given:
        del body["max_tokens"]
    answer = tiny.client.post(CHAT, json=body)
    refused = "stream_options" in given and stream
    assert answer.status_code in row["expect"] or refused
    if answer.status_code in REFUSED:
        assert any(name in answer.json()["error"]["param"] for name in given)


@pytest.mark.parametrize("row", rows("sv-06"))
def test_usage_is_sent_where_its_row_asks(tiny: Live, row: dict[str, Any]) -> None:
    answer = tiny.client.post(CHAT, json=chat_body(**row))
    options = row.get("stream_options") or {}
    if not row["stream"] and options:
        assert answer.status_code == 400
    else:
        wanted = 1 if options.get("include_usage") else 0
        assert answer.text.count('"usage":') == answer.text.count('"choices":[]') == wanted


@pytest.mark.parametrize("row", rows("sv-07"))
def test_a_body_takes_the_same_tokens_everywhere(tiny: Live, row: dict[str, Any]) -> None:
    replies = [
        ask(tiny, CHAT, at_home(row) | {"fm": LANES[lane]}, stream=stream)
        for lane, stream in SENT.items()
    ]
    counts = {tuple(reply.usage[f"{name}_tokens"] for name in ("prompt", "completion", "total"))
              for reply in replies}  # fmt: skip
    ((prompt, completion, total),) = counts
    assert total == prompt + completion
    assert completion == len(replies[0].said.ids)
    assert {tuple(reply.said.reasons) for reply in replies} == {tuple(replies[0].said.reasons)}


# -- schemas --------------------------------------------------------------------------------------

WITH_VERDICTS = ("so-03", "so-10", "so-15", "so-18", "so-20")
WITHOUT = ("so-02", "so-05", "so-06", "so-08", "so-18", "so-20")


def verdicts(row: dict[str, Any]) -> tuple[list[str], list[str]]:
    def ones(words: str) -> str:
        count = int(re.findall(r"\d+", words)[0])
        return json.dumps([1] * count, separators=(",", ":"))

    accepted = [text for text in row.get("must_accept", ()) if text not in KNOWN_DIFFERENCES]
    accepted += [ones(row["accept_generated"])] if "accept_generated" in row else []
    rejected = [*row.get("must_reject", ()), *map(ones, row.get("reject_generated", ()))]
    return accepted, rejected


@pytest.mark.parametrize("row", rows(*WITH_VERDICTS))
def test_texts_of_a_schema_can_be_written_as_its_row_says(echo: Live, row: dict[str, Any]) -> None:
    accepted, rejected = verdicts(row)
    if "must_reject_or_warn" in row:
        answer = echo.chat(response_format=schema_format(row["schema"]))
        assert answer.json()["error"]["code"] == "invalid_schema"
    elif accepted or rejected:
        written = writings(echo, row["schema"], [*accepted, *rejected], "batch+spec", stream=True)
        texts = [choice.text for choice in written if choice.reasons == ["stop"]]
        assert [text for text in [*accepted, *rejected] if text in texts] == accepted


@pytest.mark.parametrize("row", [*rows(*WITHOUT), *rows("so-06", key="also")])
def test_a_schema_is_enforced_or_refused_at_once(
    tiny: Live, row: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    form = row.get("response_format") or schema_format(row["schema"])
    for temperature, stream in enumerate(MODES.values()):
        body = chat_body(temperature=temperature, seed=5, max_tokens=64, response_format=form)
        body |= {"stream": stream, "return_token_ids": True, **AT_ONCE}
        body |= {"stream_options": {"include_usage": True}} if stream else {}
        submitted = engine_of(tiny).stats().submitted
        answer = tiny.client.post(CHAT, json=body)
        if answer.status_code == 400:
            assert engine_of(tiny).stats().submitted == submitted
            error = answer.json()["error"]
            assert error["param"].startswith("response_format")
            assert error["code"] in ("invalid_schema", "invalid_value")
        else:
            assert "so-06" not in request.node.name
            reply = streamed(answer) if stream else whole(answer)
            ended = reply.said.reasons == ["stop"]
            assert reply.usage["conformance"] == ("enforced" if ended else "failed")
            assert not ended or is_valid(row["schema"], reply.said.text)


@pytest.mark.parametrize("row", rows("so-22"))
def test_a_mask_comes_before_the_sampler(tiny: Live, row: dict[str, Any]) -> None:
    body = at_home(INPUTS["so-22"]["template"]["body"]) | row | AT_ONCE
    if "logit_bias" in row:
        body["logit_bias"] = {str(ord('"')): bias for bias in row["logit_bias"].values()}
    reply = ask(tiny, CHAT, body, stream=True)
    assert json.loads(reply.said.text) in ("alpha", "beta")
    assert reply.said.reasons == ["stop"]


def bodies() -> Iterator[Any]:
    for case in ("sv-12", "tx-01", "so-13", "so-16"):
        found = INPUTS.get(case, {})
        for index, item in enumerate((found, found.get("http", {}), *found.get("also", ()))):
            if isinstance(item, dict) and "body" in item:
                yield pytest.param(at_home(item["body"]), id=f"{case}-{index}")


@pytest.mark.parametrize("body", list(bodies()))
def test_a_body_gives_the_same_reply_in_every_lane(tiny: Live, body: dict[str, Any]) -> None:
    replies = [
        ask(tiny, CHAT, body | AT_ONCE | {"fm": LANES[lane]}, stream=stream)
        for lane, stream in SENT.items()
    ]
    assert all(reply.said.outcome == replies[0].said.outcome for reply in replies)
    said, form = replies[0].said, body.get("response_format")
    if said.reasons == ["length"]:
        assert len(said.ids) == body["max_tokens"]
    elif form is not None:
        assert is_valid(form["json_schema"]["schema"], said.text)


# -- tokens ---------------------------------------------------------------------------------------


def runs() -> list[Any]:
    found = [
        pytest.param(run, run["pieces"], run["expect"], id=f"{case}-{index}")
        for case in ("tx-04", "tx-08")
        for index, run in enumerate(INPUTS.get(case, {}).get("runs", ()))
        if run.get("end") != "cancel"
    ]
    split = INPUTS.get("tx-06")
    if split is not None:
        cut = [bytes.fromhex(part.replace(" ", "")) for part in split["byte_pieces_hex"]]
        found.append(pytest.param({}, cut, split["text"], id="tx-06"))
    return found


@pytest.mark.parametrize(("run", "tokens", "text"), runs())
@pytest.mark.parametrize(("lane", "stream"), SENT.items())
def test_pieces_become_the_text_of_their_run(
    echo: Live, run: dict[str, Any], tokens: list[Any], text: str, lane: str, stream: bool
) -> None:
    asked = [
        part.decode() if isinstance(part, bytes) and len(part) == 1 and part.isascii() else part
        for part in tokens
        if part != "<EOS>"
    ]
    fields = {name: run[name] for name in ("stop", "max_tokens") if name in run}
    fields = {"max_tokens": 64, "fm": LANES[lane], **fields}
    reply = ask_chat(echo, pieces(*asked), stream=stream, **fields)
    assert reply.said.text == text
    assert reply.usage["completion_tokens"] == len(asked)


@pytest.mark.parametrize("row", rows("tx-02", key="runs"))
@pytest.mark.parametrize(("lane", "stream"), SENT.items())
def test_a_boundary_ends_as_its_run_says(
    echo: Live, row: dict[str, Any], lane: str, stream: bool
) -> None:
    fields = {name: value for name, value in row.items() if name != "expect"}
    reply = ask_chat(echo, "ABCDE", stream=stream, fm=LANES[lane], **fields)
    text, reason, count = row["expect"]
    assert reply.said.text == text
    assert reply.said.reasons[0] in reason
    assert count == reply.usage["completion_tokens"] or isinstance(count, str)
