"""The published document: it says of every path what is taken and what is answered."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator
from starlette.routing import Route

from engine.server.app import build_app
from engine.server.fields import (
    BY_ENDPOINT,
    FIELDS,
    body_schema,
    read_fields,
)
from engine.server.openapi import PATHS, openapi
from engine.server.overrides import FIELD
from engine.server.problem import HttpError
from engine.server.settings import ServerConfig
from engine.server.standing import Endpoint, Field, Standing
from tests.engine.server.live import (
    CHAT,
    COMPLETIONS,
    MODEL,
    Live,
    chat_body,
    events_of,
    serving,
)
from tests.engine.server.schema_values import near
from tests.waiting import wait_for

ROUNDS = settings(derandomize=True, max_examples=80, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def document(shared: Live) -> dict[str, Any]:
    found: dict[str, Any] = shared.client.get("/openapi.json").json()
    return found


def test_every_route_of_the_app_is_in_the_document(shared: Live, document: dict[str, Any]) -> None:
    routes = [route for route in build_app(shared.server).routes if isinstance(route, Route)]
    expected = {
        (route.path_format, method.lower())
        for route in routes
        for method in (route.methods or set()) - {"HEAD"}
    }
    found = {(path, method) for path, item in document["paths"].items() for method in item}
    assert found == expected
    assert {path for path, _ in PATHS.values()} <= set(document["paths"])
    assert set(PATHS) == set(Endpoint)


def test_a_route_nobody_described_is_an_error() -> None:
    with pytest.raises(KeyError):
        openapi([Route("/other", lambda _: None)], [MODEL], ServerConfig())


def schemas(node: Any) -> list[Any]:
    if isinstance(node, list):
        return [found for item in node for found in schemas(item)]
    if not isinstance(node, dict):
        return []
    own = [node[name] for name in ("schema", "itemSchema") if name in node]
    return own + [found for name, item in node.items() for found in schemas(item)]


def test_every_schema_is_one(document: dict[str, Any]) -> None:
    found = schemas(document["paths"])
    assert len(found) > 10
    for schema in found:
        Draft202012Validator.check_schema(schema)


def test_a_body_is_what_the_table_of_fields_says(document: dict[str, Any]) -> None:
    for endpoint, (path, _) in PATHS.items():
        content = document["paths"][path]["post"]["requestBody"]["content"]
        schema = content["application/json"]["schema"]
        assert set(schema["properties"]) == set(BY_ENDPOINT[endpoint]) - {FIELD}
        assert schema["additionalProperties"] is False
        assert schema["properties"]["model"]["enum"] == [MODEL]
        for name, said in schema["properties"].items():
            field = BY_ENDPOINT[endpoint][name]
            assert said["description"] == field.help
            if field.standing is Standing.REFUSED:
                assert said["enum"] == [*field.asks_nothing, None]


def test_a_key_is_named_where_one_is_asked_for(document: dict[str, Any]) -> None:
    assert document["security"] == []
    with serving(api_key="k3y") as live:
        live.client.headers.pop("authorization")
        assert live.client.get("/openapi.json").status_code == 401
        key = {"authorization": "Bearer k3y"}
        found = live.client.get("/openapi.json", headers=key).json()
    assert found["security"] == [{"key": []}]
    assert found["paths"]["/health"]["get"]["security"] == []
    assert "security" not in found["paths"]["/stats"]["get"]


def test_what_only_measuring_needs_is_told_where_it_is_there() -> None:
    with serving(allow_overrides=True) as live:
        paths = live.client.get("/openapi.json").json()["paths"]
        content = paths[CHAT]["post"]["requestBody"]["content"]
        assert FIELD in content["application/json"]["schema"]["properties"]
        assert "204" in paths["/stats/reset-peak"]["post"]["responses"]
        assert live.client.post("/stats/reset-peak").status_code == 204


def takes(field: Field, value: Any) -> bool:
    """Whether a body with this value of the field is taken, all other required fields apart."""
    endpoint = next(iter(field.where))
    required = {
        name: GOOD[name]
        for name, known in BY_ENDPOINT[endpoint].items()
        if known.is_required and name != field.name
    }
    try:
        read_fields(endpoint, {**required, field.name: value})
    except HttpError:
        return False
    return True


GOOD: dict[str, Any] = {
    "model": MODEL,
    "messages": chat_body()["messages"],
    "prompt": "x",
    "input": "x",
}


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: f"{field.name}-{min(field.where)}")
def test_a_schema_accepts_what_its_reader_takes_and_no_more(field: Field) -> None:
    validator = jsonschema_rs.validator_for(field.schema)
    is_loose = field.read is not None and field.read.is_loose
    seen = set()

    @ROUNDS
    @given(near(field.schema))
    def agree(value: Any) -> None:
        accepted, taken = validator.is_valid(value), takes(field, value)
        seen.add(taken)
        assert accepted or not taken, "the reader takes more"
        assert taken or not accepted or is_loose, "the schema accepts more"

    agree()
    assert False in seen or field.standing is Standing.HARMLESS
    assert True in seen or is_loose


@pytest.mark.parametrize("endpoint", Endpoint)
def test_unknown_and_missing_fields_are_refused_by_both(endpoint: Endpoint) -> None:
    validator = jsonschema_rs.validator_for(body_schema(endpoint))
    known = BY_ENDPOINT[endpoint]
    body = {
        name: value for name, value in GOOD.items() if name in known and known[name].is_required
    }
    assert validator.is_valid(body)
    read_fields(endpoint, body)
    for bad in ({**body, "other": 1}, {**body, "model": None}, *({} for _ in body)):
        assert not validator.is_valid(bad)
        with pytest.raises(HttpError):
            read_fields(endpoint, bad)


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
OPTIONS = {"stream": True, "stream_options": {"include_usage": True}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
CALLED = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 60}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, chat_body()),
    (CHAT, chat_body(n=2, logprobs=True, top_logprobs=2, return_token_ids=True)),
    (CHAT, chat_body(guided_choice=["a"], max_tokens=40, reasoning_effort="none")),
    (CHAT, chat_body(**CALLED)),
    (COMPLETIONS, {"model": MODEL, "prompt": "x"}),
    (COMPLETIONS, {"model": MODEL, "prompt": [[1, 2], "x"], "logprobs": 1, "n": 2}),
    (COMPLETIONS, {"model": MODEL, "prompt": [1.0, 2], "return_token_ids": True}),
]


@pytest.mark.parametrize(("path", "body"), BODIES, ids=str)
def test_replies_and_events_are_as_published(
    live: Live, document: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    operation = document["paths"][path]["post"]
    content = operation["responses"]["200"]["content"]
    assert jsonschema_rs.is_valid(
        operation["requestBody"]["content"]["application/json"]["schema"], body
    )
    whole = live.client.post(path, json=body)
    assert whole.status_code == 200, whole.text
    jsonschema_rs.validate(content["application/json"]["schema"], whole.json())
    stream = live.client.post(path, json={**body, **OPTIONS})
    assert stream.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events_of(stream.text)
    assert done == "[DONE]"
    ending, event = content["text/event-stream"]["itemSchema"]["anyOf"]
    assert ending["properties"]["data"] == {"const": done}
    data = event["properties"]["data"]
    assert data["contentMediaType"] == "application/json"
    for chunk in chunks:
        jsonschema_rs.validate(data["contentSchema"], json.loads(chunk))


RESPONSES: list[dict[str, Any]] = [
    {"return_token_ids": True},
    {"include": ["message.output_text.logprobs"], "top_logprobs": 1},
    {
        "tools": [{"type": "function", "name": "look", "parameters": SCHEMA}],
        "max_output_tokens": 60,
    },
]


@pytest.mark.parametrize("fields", RESPONSES, ids=str)
def test_responses_and_their_events_are_as_published(
    live: Live, document: dict[str, Any], fields: dict[str, Any]
) -> None:
    path, _ = PATHS[Endpoint.RESPONSES]
    body = {"model": MODEL, "input": "hi", "temperature": 0, "max_output_tokens": 8, **fields}
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    whole = live.client.post(path, json=body)
    assert whole.status_code == 200, whole.text
    jsonschema_rs.validate(content["application/json"]["schema"], whole.json())
    stream = live.client.post(path, json={**body, "stream": True})
    event = content["text/event-stream"]["itemSchema"]
    for block in stream.text.removesuffix("\n\n").split("\n\n"):
        told = dict(line.split(": ", 1) for line in block.split("\n"))
        jsonschema_rs.validate(event, told)
        data = json.loads(told["data"])
        jsonschema_rs.validate(event["properties"]["data"]["contentSchema"], data)
        assert data["type"] == told["event"]


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}", "/health", "/stats"])
def test_pages_are_as_published(live: Live, document: dict[str, Any], path: str) -> None:
    known = document["paths"][path.replace(MODEL, "{name}")]["get"]["responses"]["200"]
    answer = live.client.get(path)
    assert answer.status_code == 200
    jsonschema_rs.validate(known["content"]["application/json"]["schema"], answer.json())


def test_the_lag_of_the_loop_is_told(live: Live) -> None:
    wait_for(lambda: sum(live.server.lag.counts) > 3)
    found = live.client.get("/stats").json()["event_loop"]
    assert 0 <= found["lag_p50_ms"] <= found["lag_p99_ms"] <= found["lag_max_ms"]
    assert 'fm_event_loop_lag_seconds_bucket{le="0.05"}' in live.client.get("/metrics").text
