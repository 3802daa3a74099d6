"""The fields of request bodies, in one table: enforced, refused by name, or harmless.

docs/serving.md shows this table to people (`field_table`), and a test keeps the two in step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from engine.errors import RequestError
from engine.request import MAX_TOP_LOGPROBS, Request, SamplingParams
from engine.server.constraints import guided, response_format, structured_outputs, text_format
from engine.server.effort import HELP as EFFORT
from engine.server.effort import read_effort
from engine.server.messages import messages
from engine.server.overrides import overrides
from engine.server.problem import refusal
from engine.server.readers import (
    FieldError,
    Json,
    Reader,
    below,
    boolean,
    items,
    listed,
    mapping,
    number,
    off,
    reads,
    record,
    setting_of,
    shown,
    text,
    whole,
)
from engine.server.response_fields import NOTED_RESPONSES, REFUSED_RESPONSES, enforced_responses
from engine.server.standing import (
    ALL,
    CHAT,
    COMPLETIONS,
    MAX_NOTE,
    RESPONSES,
    TALKS,
    Endpoint,
    Field,
    Standing,
)
from engine.server.tools import MAX_TOOLS, tool_choice, tools

MAX_CHOICES = 16
MAX_PROMPTS = 16
MAX_PROMPT_IDS = 2**20
MAX_TOKEN_ID = 2**31 - 1
MAX_STOPS = 16
MAX_STOP_LENGTH = 256
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_OPTIONS = 32
MAX_OPTION = 256


STOP = text(MAX_STOP_LENGTH, may_be_empty=False)
STOPS = listed(STOP, MAX_STOPS)


@reads({"anyOf": [STOP.schema, STOPS.schema]})
def _stops(value: Any) -> tuple[str, ...]:
    return (STOP(value),) if isinstance(value, str) else tuple(STOPS(value))


TOKEN_ID = {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}
BIAS = number(-MAX_BIAS, MAX_BIAS)


@reads(
    {
        "type": "object",
        "maxProperties": MAX_BIASES,
        "propertyNames": {"pattern": "^[0-9]{1,19}$"},
        "additionalProperties": BIAS.schema,
    }
)
def _biases(value: Any) -> dict[int, float]:
    given = mapping(value)
    if len(given) > MAX_BIASES:
        raise FieldError(f"must have at most {MAX_BIASES} members, not {len(given)}")
    for key in given:
        if not (key.isascii() and key.isdecimal() and len(key) < 20):
            raise FieldError("is no token id", f"[{key[:40]!r}]")
    return {int(key): below(f"[{key!r}]", BIAS, item) for key, item in given.items()}


@reads({"type": "array", "minItems": 1, "maxItems": MAX_PROMPT_IDS, "items": TOKEN_ID})
def _ids(value: Any) -> tuple[int, ...]:
    given = items(value, MAX_PROMPT_IDS)
    if not given:
        raise FieldError("must not be empty")
    for index, item in enumerate(given):
        is_number = isinstance(item, int | float) and not isinstance(item, bool)
        if not is_number or not 0 <= item <= MAX_TOKEN_ID or item != int(item):
            raise FieldError(f"must be a token id, not {shown(item)}", f"[{index}]")
    return tuple(map(int, given))


@reads({"anyOf": [{"type": "string"}, _ids.schema]})
def _prompt(value: Any) -> str | tuple[int, ...]:
    return value if isinstance(value, str) else tuple(_ids(value))


MANY_PROMPTS = listed(_prompt, MAX_PROMPTS, 1)


@reads({"anyOf": [{"type": "string"}, _ids.schema, MANY_PROMPTS.schema]})
def _prompts(value: Any) -> list[str | tuple[int, ...]]:
    """Take a text, token ids, or a list of either."""
    is_one = isinstance(value, list) and value and not isinstance(value[0], str | list)
    return [_prompt(value)] if is_one or isinstance(value, str) else list(MANY_PROMPTS(value))


STREAM_OPTIONS = record({"include_usage": boolean, "include_obfuscation": off})


@reads(STREAM_OPTIONS.schema)
def _include_usage(value: Any) -> bool:
    return bool(STREAM_OPTIONS(value).get("include_usage", False))


@reads(
    {
        "type": "object",
        "maxProperties": MAX_OPTIONS,
        "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]{0,63}$"},
        "additionalProperties": {
            "type": ["string", "number", "boolean", "null"],
            "maxLength": MAX_OPTION,
        },
    }
)
def _options(value: Any) -> dict[str, Any]:
    """Take template variables: single values, since a template may print them."""
    given = mapping(value)
    if len(given) > MAX_OPTIONS:
        raise FieldError(f"must have at most {MAX_OPTIONS} members, not {len(given)}")
    for key, item in given.items():
        if not (key.isascii() and key.isidentifier()) or len(key) > 64:
            raise FieldError("is no name of a template variable", f".{key[:60]}")
        if isinstance(item, dict | list):
            raise FieldError(f"must be a single value, not {shown(item)}", f".{key}")
        if isinstance(item, str):
            below(f".{key}", text(MAX_OPTION), item)
    return given


SAMPLED = {
    "temperature": "default 1; 0 takes the likeliest token",
    "top_p": "nucleus sampling",
    "top_k": "0 keeps all",
    "min_p": "share of the likeliest token's probability",
    "repetition_penalty": "divides scores of seen tokens",
    "presence_penalty": "subtracted once from tokens of the reply",
    "frequency_penalty": "subtracted for each occurrence in the reply",
    "seed": "the same seed gives the same reply, alone or not; choice i draws with seed + i",
    "min_tokens": "tokens before an end token is allowed",
}
"""Fields that are parameters of sampling under their own names -> what is said of them."""

CONSTRAINTS = {
    "response_format": (
        response_format,
        CHAT,
        "text, json_object, json_schema, structural_tag: whole or 400",
    ),
    "text": (
        text_format,
        RESPONSES,
        "format: text, json_object, json_schema, structural_tag: whole or 400",
    ),
    "structured_outputs": (
        structured_outputs,
        ALL,
        "one of json, json_object, regex, choice, grammar, structural_tag",
    ),
    "guided_json": (guided("json"), ALL, "a JSON Schema, or its text"),
    "guided_regex": (guided("regex"), ALL, "a regular expression for the whole reply"),
    "guided_choice": (guided("choice"), ALL, "the reply is one of these texts"),
    "guided_grammar": (guided("grammar"), ALL, "a Lark grammar (llguidance's dialect)"),
}
"""Fields that may hold the constraint of a reply; at most one may."""

REFUSED: dict[str, tuple[frozenset[Endpoint], tuple[Any, ...], str]] = {
    "functions": (CHAT, ([],), "its newer name is tools"),
    "function_call": (CHAT, ("none", "auto"), "its newer name is tool_choice"),
    "modalities": (CHAT, (["text"],), "replies are text"),
    "audio": (CHAT, (), "replies are text"),
    "prediction": (CHAT, (), "drafts are the server's own"),
    "web_search_options": (CHAT, (), "there is no search"),
    "verbosity": (CHAT, ("medium",), "the prompt decides"),
    "store": (ALL, (False,), "nothing is kept"),
    "echo": (CHAT | COMPLETIONS, (False,), "prompts are not sent back"),
    "suffix": (COMPLETIONS, ("",), "text is only continued"),
    "best_of": (CHAT | COMPLETIONS, (1,), "every choice is sent"),
    "moderation": (TALKS, (), "nothing is moderated"),
    "prompt_cache_options": (
        TALKS,
        ({}, {"mode": "implicit"}),
        "prompts share a cache by content; cache_salt keeps them apart",
    ),
    "skip_special_tokens": (ALL, (True,), "control tokens are no text"),
    "spaces_between_special_tokens": (ALL, (True,), "control tokens are no text"),
    "guided_decoding_backend": (ALL, (), "there is one"),
    "guided_whitespace_pattern": (ALL, (), "constrained JSON is compact"),
    "use_beam_search": (ALL, (False,), "tokens are drawn"),
    "add_generation_prompt": (TALKS, (True,), "a reply always begins a turn"),
    "continue_final_message": (TALKS, (False,), "a reply always begins a turn"),
}
"""Refused fields -> where they belong, what they may hold all the same, and why."""

NOTED = {
    "user": "who asks; not kept",
    "metadata": "not kept; a response holds it",
    "service_tier": "there is one",
    "prompt_cache_key": "prompts share a cache by content; cache_salt keeps them apart",
    "prompt_cache_retention": "the cache has a budget of bytes",
    "safety_identifier": "who asks; not kept",
}
"""Fields that change no reply."""


def _enforced() -> Iterable[Field]:
    field = partial(Field, standing=Standing.ENFORCED)
    yield field(name="model", read=text(256), is_required=True, help="the id `/v1/models` lists")
    yield field(
        name="messages",
        read=messages,
        where=CHAT,
        is_required=True,
        help="roles system, developer (as system), user, assistant, tool; text, or parts of type "
        "text; calls and results of earlier turns",
    )
    yield field(
        name="prompt",
        read=_prompts,
        where=COMPLETIONS,
        is_required=True,
        help=f"a text, token ids, or up to {MAX_PROMPTS} of either",
    )
    yield from enforced_responses()
    yield field(
        name="stream",
        read=boolean,
        help="server-sent events, ended by [DONE] where they have no names",
    )
    yield field(
        name="stream_options",
        read=_include_usage,
        where=CHAT | COMPLETIONS,
        help="include_usage: a last chunk with usage; only with stream",
    )
    limit = setting_of(Request, "max_tokens")
    yield field(
        name="max_tokens",
        read=limit,
        where=CHAT | COMPLETIONS,
        help="cut to what the context leaves; unset: 16 for a completion, --default-max-tokens "
        "for a chat",
    )
    yield field(
        name="max_completion_tokens",
        read=limit,
        where=CHAT,
        help="the newer name of max_tokens; both must agree",
    )
    yield field(
        name="n",
        read=whole(1, MAX_CHOICES),
        where=CHAT | COMPLETIONS,
        help=f"choices, at most {MAX_CHOICES}",
    )
    yield field(
        name="stop", read=_stops, help=f"a text or up to {MAX_STOPS}, none empty; never sent"
    )
    for name, help in SAMPLED.items():
        yield field(name=name, read=setting_of(SamplingParams, name), help=help)
    yield field(name="logit_bias", read=_biases, help="token id -> -100 to 100, added to its score")
    yield field(
        name="logprobs",
        read=boolean,
        where=CHAT,
        help="of the model's raw scores: before penalties, bias, grammar and temperature",
    )
    yield field(
        name="top_logprobs",
        read=setting_of(SamplingParams, "top_logprobs"),
        where=CHAT,
        help=f"likeliest tokens beside each, at most {MAX_TOP_LOGPROBS}; only with logprobs",
    )
    yield field(
        name="logprobs",
        read=whole(0, MAX_TOP_LOGPROBS),
        where=COMPLETIONS,
        help=f"likeliest tokens beside each, at most {MAX_TOP_LOGPROBS}",
    )
    for name, (read, where, help) in CONSTRAINTS.items():
        yield field(name=name, read=read, where=where, help=help)
    yield field(
        name="tools",
        read=tools,
        where=CHAT,
        help=f"functions the model may call, at most {MAX_TOOLS}; a strict one's schema is "
        "enforced whole or 400",
    )
    yield field(
        name="tool_choice",
        read=tool_choice,
        where=CHAT,
        help="auto, none, required, one function, or allowed_tools",
    )
    yield field(
        name="parallel_tool_calls",
        read=boolean,
        where=TALKS,
        help="false: the reply ends with its first call",
    )
    yield field(name="reasoning_effort", read=read_effort, where=CHAT, help=EFFORT)
    yield field(
        name="include_reasoning",
        read=boolean,
        where=CHAT,
        help="false: no reasoning_content in the reply; the model reasons all the same",
    )
    yield field(
        name="chat_template_kwargs",
        read=_options,
        where=TALKS,
        help="variables of the chat template, such as enable_thinking",
    )
    yield field(name="ignore_eos", read=boolean, help="go on behind end tokens")
    yield field(
        name="cache_salt",
        read=text(256),
        help="requests of different salts never share cached prefixes",
    )
    yield field(
        name="fm",
        read=overrides,
        help="lane (serial, batch), draft (tokens, 0 for none) and spec_batching (serial, batched) "
        "of this request; only with --allow-overrides",
    )
    yield field(
        name="return_token_ids",
        read=boolean,
        help="adds token_ids to choices (or the response and its deltas) and prompt_token_ids to "
        "the reply",
    )


def _all() -> Iterable[Field]:
    yield from _enforced()
    refused = partial(Field, standing=Standing.REFUSED)
    for name, (where, passes, help) in REFUSED.items():
        yield refused(name=name, where=where, asks_nothing=passes, help=help)
    for name, (passes, help) in REFUSED_RESPONSES.items():
        yield refused(name=name, where=RESPONSES, asks_nothing=passes, help=help)
    noted = partial(Field, standing=Standing.HARMLESS)
    for name, help in NOTED.items():
        yield noted(name=name, help=help)
    for name, help in NOTED_RESPONSES.items():
        yield noted(name=name, where=RESPONSES, help=help)


FIELDS: tuple[Field, ...] = tuple(_all())
"""Every field the server knows; any other is refused as unknown."""

BY_ENDPOINT: Mapping[Endpoint, Mapping[str, Field]] = {
    endpoint: {field.name: field for field in FIELDS if endpoint in field.where}
    for endpoint in Endpoint
}


def read_fields(endpoint: Endpoint, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the enforced fields of a body as they are taken; null is as good as left out.

    Raises:
        HttpError: a field is unknown, refused, missing, or holds what it cannot.
    """
    known = BY_ENDPOINT[endpoint]
    values: dict[str, Any] = {}
    for name, value in document.items():
        if name not in known:
            raise refusal(f"unknown field {name[:60]!r}", name[:60], "unknown_parameter")
        if value is None:
            continue
        field = known[name]
        if field.read is not None:
            values[name] = _read(field.name, field.read, value)
        elif field.standing is Standing.REFUSED and not _asks_nothing(field, value):
            raise refusal(f"{name} is not supported: {field.help}", name, "unsupported_parameter")
        else:
            _check_note(name, value)
    for field in known.values():
        if field.is_required and field.name not in values:
            raise refusal(f"{field.name} is missing", field.name, "missing_required_parameter")
    return values


def body_schema(endpoint: Endpoint) -> Json:
    """Return the bodies `read_fields` takes, as a JSON Schema."""
    known = BY_ENDPOINT[endpoint]
    return {
        "type": "object",
        "properties": {name: field.schema for name, field in known.items()},
        "required": [name for name, field in known.items() if field.is_required],
        "additionalProperties": False,
    }


def field_table() -> str:
    """Return the fields as a Markdown table."""
    lines = ["| field | endpoints | is | what it does |", "| --- | --- | --- | --- |"]
    for field in FIELDS:
        where = "all" if field.where == ALL else ", ".join(sorted(field.where))
        passes = " or ".join(f"`{json.dumps(value)}`" for value in field.asks_nothing)
        help = field.help + (f" (let pass: {passes})" if passes else "")
        lines.append(f"| `{field.name}` | {where} | {field.standing} | {help} |")
    return "\n".join(lines) + "\n"


def _read(name: str, read: Reader, value: Any) -> Any:
    try:
        return read(value)
    except FieldError as error:
        place = name + error.where
        raise refusal(f"{place} {error}", place) from None
    except RequestError as error:
        raise refusal(f"{name}: {error}", name) from None


def _asks_nothing(field: Field, value: Any) -> bool:
    """Compare as JSON does: 1.0 is 1, and true is not."""
    return any(
        isinstance(value, bool) == isinstance(item, bool) and value == item
        for item in field.asks_nothing
    )


def _check_note(name: str, value: Any) -> None:
    """A field without effect may still not be a place to hide things in."""
    if isinstance(value, str) and len(value) > MAX_NOTE:
        raise refusal(f"{name} must have at most {MAX_NOTE} characters", name)
