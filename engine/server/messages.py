"""The messages of a chat, checked and in the form that chat templates read."""

from __future__ import annotations

from typing import Any

from engine.server.readers import FieldError, below, items, members, one_of, shown, text

MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_TEXT = 2**30
"""A body's own limit is smaller."""

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Role of a message -> role its template sees."""

LATER = ("tool_calls", "tool_call_id", "function_call", "audio", "refusal", "reasoning_content")
"""Parts of a message that are refused until what they belong to is served."""

KNOWN = ("role", "content", "name", *LATER)


def messages(value: Any) -> list[dict[str, str]]:
    """Take the messages of a chat, at least one."""
    given = items(value, MAX_MESSAGES)
    if not given:
        raise FieldError("must hold at least one message")
    return [below(f"[{index}]", _message, item) for index, item in enumerate(given)]


def _message(value: Any) -> dict[str, str]:
    given = members(value, KNOWN)
    for name in LATER:
        if given.get(name) not in (None, []):
            raise FieldError("is not served yet", f".{name}")
    for name in ("role", "content"):
        if name not in given:
            raise FieldError("is missing", f".{name}")
    role = below(".role", one_of(*ROLES), given["role"])
    message = {"role": ROLES[role], "content": below(".content", _content, given["content"])}
    if "name" in given:
        message["name"] = below(".name", text(256), given["name"])
    return message


def _content(value: Any) -> str:
    """Take a text, or texts in parts, which are joined by line ends."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise FieldError(f"must be a text or a list of parts, not {shown(value)}")
    parts = items(value, MAX_PARTS)
    return "\n".join(below(f"[{index}]", _part, part) for index, part in enumerate(parts))


def _part(value: Any) -> str:
    if not isinstance(value, dict):
        raise FieldError(f"must be an object, not {shown(value)}")
    below(".type", one_of("text"), value.get("type"))
    given = members(value, ("type", "text"))
    if "text" not in given:
        raise FieldError("is missing", ".text")
    return str(below(".text", text(MAX_TEXT), given["text"]))
