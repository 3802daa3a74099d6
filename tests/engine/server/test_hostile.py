"""Hostile requests: each is answered below 500, by name, and the next good one works."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.server.fields import BY_ENDPOINT
from engine.server.standing import Endpoint, Standing
from tests.engine.server.live import (
    CHAT,
    COMPLETIONS,
    MODEL,
    RESPONSES,
    Live,
    chat_body,
    serving,
)

JSON = {"content-type": "application/json"}
GOOD = json.dumps(chat_body(max_tokens=2))
DEEP = "[" * 20_000 + "]" * 20_000


def body_with(name: str, value: str) -> str:
    return GOOD[:-1] + f', "{name}": {value}}}'


BODIES: dict[str, bytes] = {
    "empty": b"",
    "open": b"{",
    "list": b"[]",
    "null": b"null",
    "text": b'"x"',
    "no messages": b'{"model":"tiny"}',
    "messages object": b'{"model":"tiny","messages":{"messages":[]}}',
    "messages empty": b'{"model":"tiny","messages":[]}',
    "NaN": body_with("top_p", "NaN").encode(),
    "infinite": body_with("top_p", "1e999").encode(),
    "huge whole number": body_with("seed", "9" * 400).encode(),
    "absurd whole number": body_with("seed", "9" * 5000).encode(),
    "half a pair": body_with("user", '"\\ud800"').encode(),
    "not UTF-8": bytes.fromhex("7b226d6f64656c223a22ff22"),
    "byte order mark": b"\xef\xbb\xbf" + GOOD.encode(),
    "twice": body_with("max_tokens", "9").encode(),
    "deep": body_with("metadata", DEEP).encode(),
    "fairly deep": body_with("metadata", "[" * 200 + "]" * 200).encode(),
    "trailing": GOOD.encode() + b"x",
    "nul": b"\0",
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_a_broken_body_is_a_400_in_the_form_of_an_error(live: Live, path: str, name: str) -> None:
    answer = live.client.post(path, content=BODIES[name], headers=JSON)
    assert answer.status_code == 400, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "application/json; charset=latin-1"}, 415),
        ({"content-type": "application/json", "content-encoding": "gzip"}, 415),
        ({}, 415),
    ],
    ids=str,
)
def test_only_plain_json_is_read(live: Live, headers: dict[str, str], status: int) -> None:
    answer = live.client.post(CHAT, content=GOOD.encode(), headers=headers)
    assert answer.status_code == status
    assert status == 200 or "error" in answer.json()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("OPTIONS", CHAT, 405),
        ("POST", "/v1/nope", 404),
        ("GET", RESPONSES, 405),
        ("GET", f"{RESPONSES}/resp_1", 404),
        ("DELETE", f"{RESPONSES}/resp_1", 404),
        ("POST", f"{RESPONSES}/resp_1/cancel", 404),
        ("GET", f"{RESPONSES}/resp_1/input_items", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", "/", 404),
    ],
)
def test_unknown_paths_and_methods_are_errors_of_the_same_form(
    live: Live, method: str, path: str, status: int
) -> None:
    answer = live.client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "remedy"),
    [("POST", "/chat/completions", "/v1"), ("GET", "/models", "/v1"), ("GET", CHAT, "send POST")],
)
def test_a_wrong_path_or_method_is_told_what_is_right(
    live: Live, method: str, path: str, remedy: str
) -> None:
    message = live.client.request(method, path).json()["error"]["message"]
    assert path in message
    assert remedy in message


def test_notes_of_clients_in_messages_change_nothing(live: Live) -> None:
    part = {"type": "text", "text": "hi"}
    noted = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    own = {"parsed": {"a": 1}, "reasoning": "hm", "provider_specific_fields": None}
    plain, again = (
        live.client.post(CHAT, json={**chat_body(), "messages": said}).json()
        for said in (
            [{"role": "user", "content": [part]}, {"role": "assistant", "content": "yes"}],
            [{"role": "user", "content": [noted]}, {"role": "assistant", "content": "yes", **own}],
        )
    )
    assert plain["choices"] == again["choices"]
    assert plain["usage"]["prompt_tokens"] == again["usage"]["prompt_tokens"]


def test_a_body_over_the_limit_is_a_413() -> None:
    with serving(max_body_bytes=4096) as small:
        for size in (5000, 3_000_000):
            assert small.chat("x" * size).status_code == 413
        pieces = (b"x" * 1000 for _ in range(100))
        chunked = small.client.post(CHAT, content=pieces, headers=JSON)
        assert chunked.status_code == 413
        assert small.chat("x" * 1000).status_code == 200


RANGES: list[tuple[dict[str, Any], int]] = [
    ({"max_tokens": 0}, 400),
    ({"max_tokens": -5}, 400),
    ({"max_tokens": None}, 200),
    ({"max_tokens": 10**12}, 400),
    ({"max_tokens": 1e1}, 200),
    ({"max_tokens": 5.0}, 200),
    ({"max_tokens": 5.5}, 400),
    ({"max_tokens": "5"}, 400),
    ({"max_tokens": True}, 400),
    ({"max_completion_tokens": 9}, 400),
    ({"max_tokens": None, "max_completion_tokens": 3}, 200),
    ({"max_tokens": 3, "max_completion_tokens": 3}, 200),
    ({"temperature": -1}, 400),
    ({"temperature": None}, 200),
    ({"temperature": 1e-9}, 200),
    ({"temperature": 100}, 200),
    ({"temperature": "1"}, 400),
    ({"top_p": 0}, 200),
    ({"top_p": 1e-9}, 200),
    ({"top_p": 1.5}, 400),
    ({"top_k": -1}, 400),
    ({"min_p": 2}, 400),
    ({"n": 0}, 400),
    ({"n": -1}, 400),
    ({"n": 1000}, 400),
    ({"stop": ""}, 400),
    ({"stop": []}, 200),
    ({"stop": None}, 200),
    ({"stop": ["a", "b", "c", "d", "e"]}, 200),
    ({"stop": ["", "x"]}, 400),
    ({"stop": ["x"] * 17}, 400),
    ({"stop": 5}, 400),
    ({"seed": -1}, 400),
    ({"seed": 2**63}, 200),
    ({"seed": 2**64}, 400),
    ({"seed": "x"}, 400),
    ({"logprobs": True, "top_logprobs": 50}, 400),
    ({"top_logprobs": 3}, 400),
    ({"logit_bias": {"999999999": 1}}, 400),
    ({"logit_bias": {"a": 1}}, 400),
    ({"logit_bias": {"65": 101}}, 400),
    ({"logit_bias": {"65": 5}}, 200),
    ({"stream": "yes"}, 400),
    ({"stream": True, "stream_options": {"other": 1}}, 400),
    ({"tools": []}, 200),
    ({"tools": [{"type": "function"}]}, 400),
    ({"tool_choice": "required"}, 400),
    ({"unknown_field": 1}, 400),
    ({"reasoning_effort": "high"}, 400),
    ({"store": True}, 400),
    ({"chat_template_kwargs": {"chat_template": "x"}}, 400),
    ({"chat_template_kwargs": {"tools": "x"}}, 400),
    ({"chat_template_kwargs": {"a": {"b": 1}}}, 400),
    ({"chat_template_kwargs": []}, 400),
    ({"response_format": {"type": "xml"}}, 400),
    ({"response_format": {"type": "json_schema"}}, 400),
    ({"response_format": "json"}, 400),
    ({"guided_json": "{"}, 400),
    ({"guided_choice": []}, 400),
    ({"structured_outputs": {}}, 400),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, 400),
    ({"guided_choice": ["a"], "guided_regex": "a"}, 400),
    ({"guided_choice": ["a"], "ignore_eos": True}, 400),
    (
        {
            "user": "x",
            "metadata": {"a": "b"},
            "store": False,
            "parallel_tool_calls": False,
            "service_tier": "auto",
        },
        200,
    ),
    ({"model": "other"}, 404),
    ({"model": 5}, 400),
    ({"messages": [{"role": "robot", "content": "x"}]}, 400),
    ({"messages": [{"role": "user"}]}, 400),
    ({"messages": [{"role": "user", "content": 5}]}, 400),
    ({"messages": [{"role": "user", "content": "x", "extra": 1}]}, 400),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400),
    ({"messages": ["x"]}, 400),
    ({"messages": [{"role": "user", "content": "x"}] * 5000}, 400),
]


@pytest.mark.parametrize(("fields", "status"), RANGES, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_values_are_taken_or_refused_by_name(
    live: Live, stream: bool, fields: dict[str, Any], status: int
) -> None:
    fields = {"max_tokens": 8, **fields}
    answer = live.chat(**{"stream": stream, **fields})
    assert answer.status_code == status, answer.text
    if status == 200:
        most = fields["max_tokens"] or fields.get("max_completion_tokens", 1024)
        assert answer.text.endswith("data: [DONE]\n\n") == stream
        assert stream or answer.json()["usage"]["completion_tokens"] <= most
    else:
        param = answer.json()["error"]["param"] or ""
        named = [name for name in fields if param.startswith(name)]
        assert named or "exclude each other" in answer.text


SCHEMAS: dict[str, Any] = {
    "no such type": {"type": "strng"},
    "type number": {"type": 5},
    "properties list": {"properties": []},
    "required text": {"type": "object", "required": "a"},
    "missing ref": {"$ref": "#/$defs/missing"},
    "remote ref": {"$ref": "https://example.invalid/s.json"},
    "unique items": {"type": "array", "uniqueItems": True, "items": {"type": "integer"}},
    "not": {"not": {"type": "object"}},
    "bad pattern": {"type": "string", "pattern": "foo**["},
    "look-ahead": {"type": "string", "pattern": "(?!x)y"},
}


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_schema_that_cannot_be_enforced_is_refused(live: Live, name: str, stream: bool) -> None:
    answer = live.chat(
        stream=stream,
        response_format={"type": "json_schema", "json_schema": {"schema": SCHEMAS[name]}},
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_schema")
    assert error["param"] == "response_format"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["auto", "text", "user", "<|im_end|>", "json_schema"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=5) | st.sampled_from(["type", "role"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)
BASES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": chat_body()["messages"], "max_tokens": 2},
    COMPLETIONS: {"prompt": "x", "max_tokens": 2},
    RESPONSES: {"input": "x", "max_output_tokens": 2},
}
NAMES = sorted({name for known in BY_ENDPOINT.values() for name in known})


@settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    path=st.sampled_from(sorted(BASES)),
    fields=st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=1, max_size=3),
)
def test_no_value_of_any_field_is_an_error_of_the_server(
    live: Live, path: str, fields: dict[str, Any]
) -> None:
    answer = live.client.post(path, json={"model": MODEL, **BASES[path], **fields})
    assert answer.status_code < 500, answer.text


@settings(
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_bytes_are_an_error_of_the_server(live: Live, body: bytes) -> None:
    answer = live.client.post(CHAT, content=body, headers=JSON)
    assert 400 <= answer.status_code < 500


REFUSED = [
    (endpoint, name)
    for endpoint, known in BY_ENDPOINT.items()
    for name, field in known.items()
    if field.standing is Standing.REFUSED
]


@pytest.mark.parametrize(("endpoint", "name"), REFUSED)
def test_a_refused_field_is_named_unless_it_asks_for_nothing(
    live: Live, endpoint: Endpoint, name: str
) -> None:
    send = {
        Endpoint.CHAT: live.chat,
        Endpoint.COMPLETIONS: live.complete,
        Endpoint.RESPONSES: live.respond,
    }[endpoint]
    answer = send(**{name: {"some": "thing"}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name
    for value in BY_ENDPOINT[endpoint][name].asks_nothing:
        assert send(**{name: value}).status_code == 200
