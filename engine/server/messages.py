"""The messages of a chat, checked and in the form that chat templates read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.server.body import parse_json
from engine.server.problem import HttpError
from engine.server.readers import (
    FieldError,
    Json,
    Reader,
    below,
    items,
    mapping,
    members,
    one_of,
    reads,
    record_schema,
    shown,
    text,
)
from engine.server.tools import NAME_SCHEMA, tool_name

MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_TEXT = 2**30
"""A body's own limit is smaller."""

MAX_CALLS = 1024
MAX_ID = 256

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""Role of a message -> role its template sees."""

OF_ROLES = {"tool_calls": "assistant", "reasoning_content": "assistant", "tool_call_id": "tool"}
"""Parts of a message that go with one role."""

LATER = ("function_call", "audio", "refusal", "annotations")
"""Parts of a message that are refused, unless they say nothing."""

KNOWN = ("role", "content", "name", *OF_ROLES, *LATER)

NOTES = (
    "parsed",
    "cache_control",
    "provider_specific_fields",
    "reasoning",
    "reasoning_details",
    "thinking_blocks",
)
"""Members of a message that change nothing; clients put them beside what the server has said, and
send them back with it. What a model reads of its earlier reasoning is `reasoning_content`."""

CALL_NOTES = ("index", "cache_control", "provider_specific_fields", "extra_content")
FUNCTION_NOTES = ("parsed_arguments",)
PART_NOTES = ("cache_control", "prompt_cache_breakpoint")
"""The same of calls, of their functions, and of parts."""

Message = dict[str, Any]


TEXT = text(MAX_TEXT).schema


def content(*kinds: str, also: Sequence[str] = ()) -> Reader:
    """Take a text, or texts in parts, which are joined by line ends.

    Args:
        kinds: the types of parts.
        also: members of parts that change nothing beside their text.
    """
    known = {"type": {"enum": list(kinds)}, "text": TEXT, **{name: {} for name in also}}
    part = record_schema(known, ("type", "text"))

    def read_part(value: Any) -> str:
        below(".type", one_of(*kinds), mapping(value).get("type"))
        given = members(value, tuple(known))
        if "text" not in given:
            raise FieldError("is missing", ".text")
        return str(below(".text", text(MAX_TEXT), given["text"]))

    @reads({"anyOf": [TEXT, {"type": "array", "maxItems": MAX_PARTS, "items": part}]})
    def read(value: Any) -> str:
        if isinstance(value, str):
            return value
        if not isinstance(value, list):
            raise FieldError(f"must be a text or a list of parts, not {shown(value)}")
        parts = items(value, MAX_PARTS)
        return "\n".join(below(f"[{index}]", read_part, item) for index, item in enumerate(parts))

    return read


CONTENT = content("text", also=PART_NOTES)
CALL_ID: Json = {"type": "string", "minLength": 1, "maxLength": MAX_ID}
NOTHING: Json = {"enum": [[], None]}
FUNCTION = record_schema(
    {
        "name": NAME_SCHEMA,
        "arguments": {"type": "string"},
        **{name: {} for name in FUNCTION_NOTES},
    },
    ("name", "arguments"),
)
CALL = record_schema(
    {
        "id": CALL_ID,
        "type": {"const": "function"},
        "function": FUNCTION,
        **{name: {} for name in CALL_NOTES},
    },
    ("id", "type", "function"),
)
MESSAGE = record_schema(
    {
        "role": {"enum": list(ROLES)},
        "content": CONTENT.schema,
        "name": text(256).schema,
        "tool_calls": {"type": "array", "maxItems": MAX_CALLS, "items": CALL},
        "reasoning_content": TEXT,
        "tool_call_id": {"anyOf": [CALL_ID, NOTHING]},
        **dict.fromkeys(LATER, NOTHING),
        **{name: {} for name in NOTES},
    },
    ("role",),
)


# What goes with which role, and which ids there are, is read alone.
@reads({"type": "array", "minItems": 1, "maxItems": MAX_MESSAGES, "items": MESSAGE}, is_loose=True)
def messages(value: Any) -> list[Message]:
    """Take the messages of a chat, at least one.

    Every result answers a call of an earlier turn; it is given the name of what was called.
    """
    given = items(value, MAX_MESSAGES)
    if not given:
        raise FieldError("must hold at least one message")
    read: list[Message] = []
    called: dict[str, str] = {}
    for index, item in enumerate(given):
        message = below(f"[{index}]", _message, item)
        for call in message.get("tool_calls", ()):
            called[call["id"]] = call["function"]["name"]
        if message["role"] == "tool":
            name = below(f"[{index}].tool_call_id", answered(called), message["tool_call_id"])
            message = {"name": name, **message}
        read.append(message)
    return read


def _message(value: Any) -> Message:
    given = members(value, (*KNOWN, *NOTES))
    role = _role(given)
    calls = below(".tool_calls", _calls, given.get("tool_calls", []))
    if "content" not in given and not calls:
        raise FieldError("is missing", ".content")
    said = below(".content", CONTENT, given.get("content", ""))
    message = {"role": ROLES[role], "content": said}
    if calls:
        message["tool_calls"] = calls
    if role == "tool":
        message["tool_call_id"] = below(".tool_call_id", call_id, given.get("tool_call_id"))
    for name, longest in (("name", 256), ("reasoning_content", MAX_TEXT)):
        if name in given:
            message[name] = below(f".{name}", text(longest), given[name])
    return message


def _role(given: Mapping[str, Any]) -> str:
    """Take the role of a message, which holds nothing that goes with another one."""
    for name in LATER:
        if given.get(name) not in (None, []):
            raise FieldError("is not served", f".{name}")
    if "role" not in given:
        raise FieldError("is missing", ".role")
    role = str(below(".role", one_of(*ROLES), given["role"]))
    for name, owner in OF_ROLES.items():
        if role != owner and given.get(name) not in (None, []):
            raise FieldError(f"goes with role {owner}, not {role}", f".{name}")
    return role


def _calls(value: Any) -> list[Message]:
    """Take the calls of an assistant's turn; no two have one id."""
    calls = [below(f"[{index}]", _call, item) for index, item in enumerate(items(value, MAX_CALLS))]
    seen = set[str]()
    for index, call in enumerate(calls):
        if call["id"] in seen:
            raise FieldError("is the id of another call", f"[{index}].id")
        seen.add(call["id"])
    return calls


def _call(value: Any) -> Message:
    given = members(value, ("id", "type", "function", *CALL_NOTES))
    below(".type", one_of("function"), given.get("type"))
    function = below(".function", _function, given.get("function"))
    return {
        "id": below(".id", call_id, given.get("id")),
        "type": "function",
        "function": function,
    }


def _function(value: Any) -> Message:
    given = members(value, ("name", "arguments", *FUNCTION_NOTES))
    return {
        "name": below(".name", tool_name, given.get("name")),
        "arguments": below(".arguments", arguments, given.get("arguments")),
    }


def arguments(value: Any) -> Message:
    """Take the JSON text of an object; an empty one calls without arguments."""
    if not isinstance(value, str):
        raise FieldError(f"must be the JSON text of an object, not {shown(value)}")
    if not value.strip():
        return {}
    try:
        found = parse_json(value, "the text")
    except HttpError as error:
        raise FieldError(f"must be the JSON text of an object: {error.message}") from None
    if not isinstance(found, dict):
        raise FieldError(f"must be the JSON text of an object, not of {shown(found)}")
    return found


def call_id(value: Any) -> str:
    """Take what tells a call from others."""
    if not text(MAX_ID)(value):
        raise FieldError("must not be empty")
    return str(value)


def answered(called: Mapping[str, str]) -> Callable[[Any], str]:
    """Take the id of a call; returns the name of what it calls."""

    def read(value: Any) -> str:
        if value not in called:
            raise FieldError(f"must be the id of an earlier call, not {shown(value)}")
        return called[value]

    return read
