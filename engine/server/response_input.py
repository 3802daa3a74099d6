"""The input of /v1/responses, checked and as the messages of a chat."""

from __future__ import annotations

from typing import Any

from engine.server.messages import MAX_MESSAGES, MAX_PARTS, MAX_TEXT, ROLES
from engine.server.readers import FieldError, below, items, members, one_of, shown, text

KINDS = ("message", "reasoning")
"""Types of items that are taken; one without a type is a message."""

LATER = ("function_call", "function_call_output")
"""Types of items that are refused until what they belong to is served."""

PARTS = ("input_text", "output_text")

MESSAGE = ("type", "role", "content", "id", "status", "phase")
PART = ("type", "text", "annotations", "logprobs", "prompt_cache_breakpoint")
"""Members that are known; beside the text they change nothing."""


def input_items(value: Any) -> list[dict[str, str]]:
    """Take a text, or a list of items; returns at least one message."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise FieldError(f"must be a text or a list of items, not {shown(value)}")
    given = items(value, MAX_MESSAGES)
    read = [below(f"[{index}]", _item, item) for index, item in enumerate(given)]
    messages = [message for message in read if message is not None]
    if not messages:
        raise FieldError("must hold at least one message")
    return messages


def with_instructions(instructions: str, messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return a chat that opens with the instructions.

    Many templates take one system message, at the beginning, so one that is there already goes on
    behind the instructions.
    """
    system, rest = {"role": "system", "content": instructions}, messages
    if messages[0]["role"] == "system":
        system["content"] += "\n\n" + messages[0]["content"]
        rest = messages[1:]
    return [system, *rest]


def _item(value: Any) -> dict[str, str] | None:
    """Return the message of an item, None for reasoning of an earlier turn."""
    if not isinstance(value, dict):
        raise FieldError(f"must be an object, not {shown(value)}")
    kind = value.get("type", "message")
    if kind in LATER:
        raise FieldError(f"{kind} is not served yet", ".type")
    below(".type", one_of(*KINDS), kind)
    return None if kind == "reasoning" else _message(value)


def _message(value: dict[str, Any]) -> dict[str, str]:
    given = members(value, MESSAGE)
    for name in ("role", "content"):
        if name not in given:
            raise FieldError("is missing", f".{name}")
    role = below(".role", one_of(*ROLES), given["role"])
    return {"role": ROLES[role], "content": below(".content", _content, given["content"])}


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
    below(".type", one_of(*PARTS), value.get("type"))
    given = members(value, PART)
    if "text" not in given:
        raise FieldError("is missing", ".text")
    return str(below(".text", text(MAX_TEXT), given["text"]))
