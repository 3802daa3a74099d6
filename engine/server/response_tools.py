"""The tools of /v1/responses, which lie flat: a function's name stands beside its type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.server.readers import Json, below, mapping, members, one_of, reads, record_schema
from engine.server.tools import (
    FUNCTION,
    NAME_SCHEMA,
    Tool,
    ToolChoice,
    allowed_tools,
    choice_of,
    choice_schema,
    function_schema,
    function_tool,
    tool_list,
    tool_name,
    tools_schema,
)

NAMED = record_schema({"type": FUNCTION, "name": NAME_SCHEMA}, ("type", "name"))


def _allowing(some: Json) -> Json:
    known = {"type": {"const": "allowed_tools"}, **some}
    return record_schema(known, tuple(known))


@reads(tools_schema(function_schema(type=FUNCTION)), is_loose=True)  # no two have one name
def flat_tools(value: Any) -> tuple[Tool, ...]:
    """Take tools, {"type": "function", "name": ..., ...} each."""
    return tool_list(value, _tool)


@reads(choice_schema(NAMED, _allowing))
def flat_tool_choice(value: Any) -> ToolChoice:
    """Take a word, {"type": "function", "name": ...} or {"type": "allowed_tools", ...}."""
    return choice_of(value, _name, lambda given: allowed_tools(_without_type(given), _name))


def _tool(value: Any) -> Tool:
    below(".type", one_of("function"), mapping(value).get("type"))
    return replace(function_tool(_without_type(value)), schema_place=".parameters")


def _name(value: Any) -> str:
    given = members(value, ("type", "name"))
    below(".type", one_of("function"), given.get("type"))
    return str(below(".name", tool_name, given.get("name")))


def _without_type(value: dict[str, Any]) -> dict[str, Any]:
    return {name: item for name, item in value.items() if name != "type"}
