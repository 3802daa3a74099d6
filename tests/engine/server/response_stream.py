"""Streams of responses, checked against the order and the shapes of the API as they are read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.engine.server.live import Live

Json = dict[str, Any]
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
DELTAS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}
"""Type of an item -> the beginning of the names of its own events."""


@dataclass
class Replay:
    """What the events of one stream add up to."""

    output: list[Json] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    response: Json = field(default_factory=dict)


def events_of_response(text: str) -> list[Json]:
    """The documents of a stream's events; each is named by its own type."""
    blocks = text.split("\n\n")
    assert blocks[-1] == "", "the stream ends inside an event"
    found = []
    for block in blocks[:-1]:
        name, data = block.split("\n")
        document: Json = json.loads(data.removeprefix("data: "))
        assert name == f"event: {document['type']}"
        found.append(document)
    return found


def streamed(live: Live, content: Any = "hi", **fields: Any) -> Json:
    """The response in the last event of a stream whose events add up to it."""
    answer = live.respond(content, stream=True, **fields)
    assert answer.status_code == 200, answer.text
    return replay(events_of_response(answer.text)).response


def reply_of(live: Live, is_stream: bool, content: Any = "hi", **fields: Any) -> Json:
    if is_stream:
        return streamed(live, content, **fields)
    answer = live.respond(content, **fields)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    check_shape(found)
    return found


def check_shape(response: Json) -> None:
    """Validate by the official client's types."""
    copy = json.loads(json.dumps(response))
    if copy["usage"]:  # the one number that is not told
        copy["usage"]["input_tokens_details"]["cache_write_tokens"] = 0
    Response.model_validate(copy)


def replay(events: list[Json]) -> Replay:
    """Check a stream that came to its end."""
    found = Replay()
    assert [item["sequence_number"] for item in events] == list(range(len(events)))
    created, in_progress, *inner, last = events
    assert created["type"] == "response.created"
    assert in_progress["type"] == "response.in_progress"
    for item in (created, in_progress):
        assert (item["response"]["status"], item["response"]["output"]) == ("in_progress", [])
        check_shape(item["response"])
    while inner:
        inner = _replay_item(inner, found)
    found.response = last["response"]
    check_shape(found.response)
    assert last["type"] == f"response.{found.response['status']}"
    assert found.response["status"] in ("completed", "incomplete")
    assert found.response["output"] == found.output
    assert {item["response"]["id"] for item in (created, in_progress, last)} == {
        found.response["id"]
    }
    assert found.response.get("token_ids", []) == found.token_ids
    return found


def _replay_item(events: list[Json], found: Replay) -> list[Json]:
    """Check the events of the next item; returns those behind it."""
    added, *rest = events
    assert added["type"] == "response.output_item.added"
    item = added["item"]
    assert item["status"] == "in_progress"
    name, has_parts = DELTAS[item["type"]], item["type"] != "function_call"
    if has_parts:
        part, *rest = rest
        assert part["type"] == "response.content_part.added"
        assert (item["content"], part["part"]["text"]) == ([], "")
    text, entries = "", []
    while rest[0]["type"] == f"{name}.delta":
        delta, *rest = rest
        text += delta["delta"]
        entries += delta.get("logprobs", [])
        found.token_ids += delta.get("token_ids", [])
        EVENT.validate_python(delta)
    done, *rest = rest
    assert done["type"] == f"{name}.done"
    assert done["text" if has_parts else "arguments"] == text
    placed = [done]
    if has_parts:
        part, *rest = rest
        assert part["type"] == "response.content_part.done"
        assert part["part"]["text"] == text
        assert part["part"].get("logprobs", []) == done.get("logprobs", []) == entries
        placed.append(part)
    last, *rest = rest
    assert last["type"] == "response.output_item.done"
    whole = last["item"]
    assert whole["id"] == item["id"]
    assert whole["content"] == [part["part"]] if has_parts else whole["arguments"] == text
    assert {(event["item_id"], event["output_index"]) for event in placed} == {
        (item["id"], len(found.output))
    }
    for event in (added, *placed, last):
        EVENT.validate_python(event)
    found.output.append(whole)
    return rest
