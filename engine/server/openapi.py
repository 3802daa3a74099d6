"""The document at /openapi.json: made of the app's routes, the table of fields and the answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from starlette.routing import Route

from engine.server.answers import ERROR, EVENTS, HEALTH, MODEL, MODELS, REPLIES, STATS
from engine.server.fields import body_schema
from engine.server.overrides import FIELD as OVERRIDES
from engine.server.readers import Json
from engine.server.settings import OPEN_PATHS, ServerConfig
from engine.server.standing import Endpoint

ERRORS: Mapping[int, str] = {
    400: "a value cannot be taken, or a field is unknown or refused",
    401: "the key is missing or wrong",
    403: "the Host header names another machine",
    404: "an unknown path or model",
    405: "another method",
    408: "the body does not come to its end",
    413: "the body is too large",
    415: "the body is no plain JSON in UTF-8",
    429: "too many choices wait; Retry-After says when to try again",
    503: "the engine is starting, draining, stuck or dead, or a row failed",
    504: "the reply took too long",
}
"""Statuses of errors -> when."""

ALWAYS = (401, 403, 405)
"""Errors of every path."""

OF_BODIES = (400, 404, 408, 413, 415, 429, 503, 504)
"""Errors of paths that take a body."""

JSON_TYPE, EVENT_TYPE, TEXT_TYPE = "application/json", "text/event-stream", "text/plain"


@dataclass(frozen=True, slots=True)
class Page:
    """A path that takes no body.

    Args:
        content: media type -> schema of what is answered; empty for a 204, None where every answer
            is an error.
        errors: statuses of errors, beside those of every path.
    """

    summary: str
    content: Mapping[str, Json] | None
    errors: tuple[int, ...] = ()


def _json(schema: Json) -> dict[str, Json]:
    return {JSON_TYPE: {"schema": schema}}


PAGES: Mapping[str, Page] = {
    "/v1/responses/{name}": Page("no response is kept", None, (404,)),
    "/v1/models": Page("the one model that is loaded, and whether it is ready", _json(MODELS)),
    "/v1/models/{name}": Page("the same by name", _json(MODEL), (404,)),
    "/health": Page("200 while requests are served", _json(HEALTH)),
    "/stats": Page("what is live, what was done, and what is mounted", _json(STATS)),
    "/metrics": Page("the same for Prometheus", {TEXT_TYPE: {"schema": {"type": "string"}}}),
    "/stats/reset-peak": Page("the peak of memory is counted anew", {}),
    "/openapi.json": Page("this document", _json({"type": "object"})),
}

PATHS: Mapping[Endpoint, tuple[str, str]] = {
    Endpoint.CHAT: ("/v1/chat/completions", "chats: whole or as server-sent events"),
    Endpoint.COMPLETIONS: ("/v1/completions", "plain continuations of texts or token ids"),
    Endpoint.RESPONSES: ("/v1/responses", "chats in the items and events of OpenAI's newer API"),
}
"""Endpoint -> its path, and what it does."""


def openapi(routes: Iterable[Route], models: Sequence[str], config: ServerConfig) -> Json:
    """Return the OpenAPI document of these routes: 3.2, the first that says what events hold.

    Args:
        models: the ids that bodies may name.
    """
    has_key = config.api_key is not None
    endpoints = {path: endpoint for endpoint, (path, _) in PATHS.items()}
    paths: dict[str, dict[str, Json]] = {}
    for route in routes:
        path = route.path_format
        if path in endpoints:
            operation = _operation_of(endpoints[path], models, config)
        else:
            operation = _operation_on(PAGES[path])
        if has_key and path in OPEN_PATHS:
            operation["security"] = []
        operation["parameters"] = [_parameter(name) for name in route.param_convertors]
        methods = sorted((route.methods or set()) - {"HEAD"})
        paths[path] = {method.lower(): operation for method in methods}
    keys = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.2.0",
        "info": {"title": "fm serve", "version": version("feature-matrix")},
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR},
            "responses": {str(status): _error(why) for status, why in ERRORS.items()},
            **({"securitySchemes": keys} if has_key else {}),
        },
        "security": [{"key": []}] if has_key else [],
    }


def _operation_of(endpoint: Endpoint, models: Sequence[str], config: ServerConfig) -> Json:
    """Describe a path that takes a body."""
    body = body_schema(endpoint)
    if not config.allow_overrides:
        body["properties"].pop(OVERRIDES, None)
    body["properties"]["model"] |= {"enum": list(models)}
    content = {**_json(REPLIES[endpoint]), EVENT_TYPE: {"itemSchema": EVENTS[endpoint]}}
    return {
        "summary": PATHS[endpoint][1],
        "operationId": str(endpoint),
        "requestBody": {"required": True, "content": _json(body)},
        "responses": {
            "200": {"description": "the reply; events where stream is true", "content": content},
            **_errors(OF_BODIES),
        },
    }


def _operation_on(page: Page) -> Json:
    """Describe a path that takes none."""
    answers = _errors(page.errors)
    if page.content is not None:
        answer = {"description": page.summary, "content": page.content}
        answers["200" if page.content else "204"] = answer
    if page is PAGES["/health"]:
        answers["503"] = {"description": ERRORS[503], "content": page.content}
    return {"summary": page.summary, "responses": answers}


def _errors(statuses: Iterable[int]) -> dict[str, Json]:
    return {
        str(status): {"$ref": f"#/components/responses/{status}"}
        for status in sorted({*ALWAYS, *statuses})
    }


def _error(description: str) -> Json:
    return {"description": description, "content": _json({"$ref": "#/components/schemas/Error"})}


def _parameter(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
