"""What the server answers, as JSON Schemas for the document at /openapi.json.

Replies may gain members, so these schemas say what is there and leave room for more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from engine.grammar.report import SchemaReport
from engine.server.readers import Json, or_null
from engine.server.standing import Endpoint

TEXT: Json = {"type": "string"}
COUNT: Json = {"type": "integer", "minimum": 0}
COUNTS: Json = {"type": "array", "items": COUNT}
NUMBER: Json = {"type": "number"}
DONE = "[DONE]"
MAP_OF_COUNTS: Json = {"type": "object", "additionalProperties": COUNT}


def _object(**members: Json) -> Json:
    """Return the schema of an object that has all of these members."""
    return {"type": "object", "properties": members, "required": list(members)}


def _list(item: Json) -> Json:
    return {"type": "array", "items": item}


def _with(schema: Json, **members: Json) -> Json:
    """Return the schema of an object that may have these members too."""
    return {**schema, "properties": {**schema["properties"], **members}}


ERROR = _object(
    error=_object(message=TEXT, type=TEXT, param=or_null(TEXT), code=or_null(TEXT)),
)

CACHED = _object(cached_tokens=COUNT)
REASONED = _object(reasoning_tokens=COUNT)
COST = _object(
    total_tokens=COUNT,
    speculation=_object(
        drafted=COUNT,
        accepted=COUNT,
        target_calls=COUNT,
        drafted_by_position=COUNTS,
        accepted_by_position=COUNTS,
    ),
    lane=TEXT,
    lane_reason=TEXT,
    conformance={"enum": ["enforced", "checked", "failed", None]},
    schema_report=or_null(
        _object(**{item.name: _list(TEXT) for item in fields(SchemaReport)}),
    ),
)

USAGE = _object(
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    prompt_tokens_details=CACHED,
    completion_tokens_details=REASONED,
    **COST["properties"],
)
RESPONSE_USAGE = _object(
    input_tokens=COUNT,
    output_tokens=COUNT,
    input_tokens_details=CACHED,
    output_tokens_details=REASONED,
    **COST["properties"],
)

_SCORED = _object(token=TEXT, logprob=NUMBER, bytes=_list(COUNT))
CHAT_LOGPROBS = or_null(
    _object(
        content=_list(
            {
                **_SCORED,
                "properties": {**_SCORED["properties"], "top_logprobs": _list(_SCORED)},
                "required": [*_SCORED["required"], "top_logprobs"],
            }
        )
    )
)
COMPLETION_LOGPROBS = or_null(
    _object(
        tokens=_list(TEXT),
        token_logprobs=_list(NUMBER),
        top_logprobs=_list({"type": "object", "additionalProperties": NUMBER}),
        text_offset=COUNTS,
    )
)
FINISH = {"type": "string", "minLength": 1}
IDS: Json = {"anyOf": [COUNTS, _list(COUNTS)]}


def _envelope(kind: str, choice: Json) -> Json:
    return _with(
        _object(
            id=TEXT,
            object={"const": kind},
            created=COUNT,
            model=TEXT,
            system_fingerprint=TEXT,
            choices=_list(_with(choice, token_ids=COUNTS)),
        ),
        prompt_token_ids=IDS,
    )


def _whole(kind: str, choice: Json) -> Json:
    found = _with(_envelope(kind, choice), usage=USAGE)
    return {**found, "required": [*found["required"], "usage"]}


def _event(kind: str, choice: Json) -> Json:
    """Return the schema of one event; an error, or else [DONE], ends a stream."""
    chunk = _with(_envelope(kind, choice), usage=or_null(USAGE))
    return {"anyOf": [_object(data={"const": DONE}), _event_of({"anyOf": [chunk, ERROR]})]}


def _event_of(document: Json, **more: Json) -> Json:
    """Return the schema of an event whose data is a JSON document."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": document}
    return _object(data=data, **more)


RESPONSE = _with(
    _object(
        id=TEXT,
        object={"const": "response"},
        created_at=COUNT,
        status={"enum": ["in_progress", "completed", "incomplete", "failed"]},
        error=or_null({"type": "object"}),
        incomplete_details=or_null(_object(reason=TEXT)),
        model=TEXT,
        system_fingerprint=TEXT,
        output=_list(_object(id=TEXT, type=TEXT)),
        temperature=NUMBER,
        top_p=NUMBER,
        usage=or_null(RESPONSE_USAGE),
    ),
    token_ids=COUNTS,
    prompt_token_ids=IDS,
)

REPLIES: Mapping[Endpoint, Json] = {
    Endpoint.CHAT: _whole(
        "chat.completion",
        _object(
            index=COUNT,
            message=_object(role={"const": "assistant"}, content=or_null(TEXT)),
            logprobs=CHAT_LOGPROBS,
            finish_reason=FINISH,
        ),
    ),
    Endpoint.COMPLETIONS: _whole(
        "text_completion",
        _object(index=COUNT, text=TEXT, logprobs=COMPLETION_LOGPROBS, finish_reason=FINISH),
    ),
    Endpoint.RESPONSES: RESPONSE,
}
"""Whole replies."""

EVENTS: Mapping[Endpoint, Json] = {
    Endpoint.CHAT: _event(
        "chat.completion.chunk",
        _object(
            index=COUNT,
            delta={"type": "object"},
            logprobs=CHAT_LOGPROBS,
            finish_reason=or_null(FINISH),
        ),
    ),
    Endpoint.COMPLETIONS: _event(
        "text_completion",
        _object(
            index=COUNT, text=TEXT, logprobs=COMPLETION_LOGPROBS, finish_reason=or_null(FINISH)
        ),
    ),
    Endpoint.RESPONSES: _event_of(
        _with(_object(type=TEXT, sequence_number=COUNT), response=RESPONSE), event=TEXT
    ),
}
"""The events of a stream."""

MODEL = _with(
    _object(id=TEXT, object={"const": "model"}, created=COUNT, owned_by=TEXT, state=TEXT),
    context_length=or_null(COUNT),
)
MODELS = _object(object={"const": "list"}, data=_list(MODEL))
HEALTH = _object(status=TEXT)
STATS = _object(
    model=TEXT,
    state=TEXT,
    rows=_object(live=COUNT, ended=MAP_OF_COUNTS, lanes=MAP_OF_COUNTS),
    tokens=_object(prompt=COUNT, cached=COUNT, completion=COUNT),
    speculation=_object(
        drafted=COUNT, accepted=COUNT, acceptance=or_null(NUMBER), target_calls=COUNT
    ),
    failed_steps=COUNT,
    event_loop=_object(lag_p50_ms=or_null(NUMBER), lag_p99_ms=or_null(NUMBER), lag_max_ms=NUMBER),
)
