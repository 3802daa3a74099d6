"""The input of /v1/responses, checked and as the messages of a chat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.server.messages import (
    CALL_ID,
    MAX_MESSAGES,
    PART_NOTES,
    ROLES,
    TEXT,
    Message,
    answered,
    arguments,
    call_id,
    content,
)
from engine.server.readers import (
    FieldError,
    Json,
    below,
    items,
    mapping,
    members,
    one_of,
    reads,
    record_schema,
    shown,
)
from engine.server.tools import NAME_SCHEMA, tool_name

NOTES = ("id", "status", "phase", "caller", "namespace", "async", "async_", "parsed_arguments")
"""Members of items that change nothing; the last two are the official client's own."""

OUTPUT_NOTES = ("annotations", "logprobs", "parsed", *PART_NOTES)
"""Members of parts that change nothing."""

CONTENT = content("input_text", "output_text", also=OUTPUT_NOTES)

MESSAGE_ROLES = tuple(role for role in ROLES if role != "tool")
"""Results of calls are items of their own."""


def _item(kind: str, known: Json, is_named: bool = True) -> Json:
    every = {"type": {"const": kind}, **known, **{key: {} for key in NOTES}}
    return record_schema(every, (*(("type",) if is_named else ()), *known))


ITEM: Json = {
    "anyOf": [
        _item(
            "message",
            {
                "role": {"enum": list(MESSAGE_ROLES)},
                "content": CONTENT.schema,
            },
            is_named=False,
        ),
        _item(
            "function_call",
            {"call_id": CALL_ID, "name": NAME_SCHEMA, "arguments": {"type": "string"}},
        ),
        _item(
            "function_call_output",
            {
                "call_id": CALL_ID,
                "output": CONTENT.schema,
            },
        ),
        {
            "type": "object",
            "properties": {"type": {"const": "reasoning"}},
            "required": ["type"],
        },
    ]
}


# Which ids there are is read alone, as is that something is said.
@reads({"anyOf": [TEXT, {"type": "array", "maxItems": MAX_MESSAGES, "items": ITEM}]}, is_loose=True)
def input_items(value: Any) -> list[Message]:
    """Take a text, or a list of items; returns at least one message."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise FieldError(f"must be a text or a list of items, not {shown(value)}")
    turns = Turns()
    for index, item in enumerate(items(value, MAX_MESSAGES)):
        below(f"[{index}]", turns.take, item)
    if not turns.messages:
        raise FieldError("must hold at least one message")
    return turns.messages


def with_instructions(instructions: str, messages: list[Message]) -> list[Message]:
    """Return a chat that opens with the instructions.

    Many templates take one system message, at the beginning, so one that is there already goes on
    behind the instructions.
    """
    system, rest = {"role": "system", "content": instructions}, messages
    if messages[0]["role"] == "system":
        system["content"] += "\n\n" + messages[0]["content"]
        rest = messages[1:]
    return [system, *rest]


class Turns:
    """Items that become the messages of a chat; a turn's calls are part of its one message.

    Attributes:
        messages: as chat templates read them.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._called: dict[str, str] = {}
        self._kinds: dict[str, Callable[[Any], None]] = {
            "message": self._take_message,
            "reasoning": lambda _: None,
            "function_call": self._take_call,
            "function_call_output": self._take_output,
        }

    def take(self, value: Any) -> None:
        """Take one item; one without a type is a message, and earlier reasoning is dropped."""
        named = mapping(value).get("type", "message")
        kind = below(".type", one_of(*self._kinds), named)
        self._kinds[kind](value)

    def _take_message(self, value: Any) -> None:
        given = _members(value, ("role", "content"))
        role = below(".role", one_of(*MESSAGE_ROLES), given["role"])
        content = below(".content", CONTENT, given["content"])
        self.messages.append({"role": ROLES[role], "content": content})

    def _take_call(self, value: Any) -> None:
        given = _members(value, ("call_id", "name", "arguments"))
        ident = below(".call_id", call_id, given["call_id"])
        if ident in self._called:
            raise FieldError("is the id of another call", ".call_id")
        name = below(".name", tool_name, given["name"])
        function = {"name": name, "arguments": below(".arguments", arguments, given["arguments"])}
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        calls = self.messages[-1].setdefault("tool_calls", [])
        calls.append({"id": ident, "type": "function", "function": function})
        self._called[ident] = name

    def _take_output(self, value: Any) -> None:
        given = _members(value, ("call_id", "output"))
        ident = below(".call_id", call_id, given["call_id"])
        name = below(".call_id", answered(self._called), ident)
        output = below(".output", CONTENT, given["output"])
        self.messages.append(
            {"role": "tool", "name": name, "tool_call_id": ident, "content": output}
        )


def _members(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Take the members of an item, of which these must be there."""
    given = members(value, ("type", *names, *NOTES))
    for name in names:
        if name not in given:
            raise FieldError("is missing", f".{name}")
    return given
