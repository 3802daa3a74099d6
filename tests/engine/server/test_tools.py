"""Tools: what a request may say of them, and what a reply is written under."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import RequestError
from engine.models.tool_template import CallFormat
from engine.request import ConstraintKind
from engine.server.messages import messages
from engine.server.readers import FieldError
from engine.server.tools import (
    NO_PARAMETERS,
    Calling,
    Tool,
    ToolChoice,
    tool_choice,
    tools,
    tools_used,
)

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}}


def tool(name: str = "get_weather", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    inside = {"mode": mode, "tools": [named(name) for name in names]}
    return {"type": "allowed_tools", "allowed_tools": inside}


def call(call_id: str = "c1", arguments: Any = "{}", name: str = "f") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_tools_are_taken_as_they_are() -> None:
    (plain, full) = tools([tool("a"), tool("b", description="d", parameters=SCHEMA, strict=True)])
    assert plain == Tool(name="a", parameters=NO_PARAMETERS)
    assert full == Tool(name="b", description="d", parameters=SCHEMA, strict=True)
    function = {"name": "b", "description": "d", "parameters": SCHEMA}
    assert full.document == {"type": "function", "function": function}


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({}, ""),
        ([3], "[0]"),
        ([{"function": {"name": "a"}}], "[0].type"),
        ([{"type": "custom", "custom": {"name": "a"}}], "[0].type"),
        ([{"type": "function"}], "[0].function"),
        ([{"type": "function", "function": {}}], "[0].function.name"),
        ([tool("")], "[0].function.name"),
        ([tool("a b")], "[0].function.name"),
        ([tool("a" * 65)], "[0].function.name"),
        ([tool("a\n")], "[0].function.name"),
        ([tool("a"), tool("b"), tool("a")], "[2]"),
        ([tool("a", parameters=[])], "[0].function.parameters"),
        ([tool("a", parameters={"type": "string"})], "[0].function.parameters.type"),
        ([tool("a", strict="yes")], "[0].function.strict"),
        ([tool("a", description=3)], "[0].function.description"),
        ([tool("a", colour=3)], "[0].function.colour"),
        ([tool(f"f{index}") for index in range(129)], ""),
    ],
    ids=str,
)
def test_what_is_no_tool_is_refused_by_its_place(value: Any, place: str) -> None:
    with pytest.raises(FieldError) as refused:
        tools(value)
    assert refused.value.where == place


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("none", ToolChoice(Calling.NONE)),
        ("auto", ToolChoice(Calling.AUTO)),
        ("required", ToolChoice(Calling.REQUIRED)),
        (named("a"), ToolChoice(Calling.NAMED, ("a",))),
        (allowed("auto", "a", "b", "a"), ToolChoice(Calling.AUTO, ("a", "b"))),
        (allowed("required", "a"), ToolChoice(Calling.REQUIRED, ("a",))),
    ],
    ids=str,
)
def test_choices_are_taken(value: Any, taken: ToolChoice) -> None:
    assert tool_choice(value) == taken


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("any", ""),
        (3, ""),
        ({}, ".type"),
        ({"type": "custom", "custom": {"name": "a"}}, ".type"),
        ({"type": "function", "name": "a"}, ".name"),
        ({"type": "function", "function": {}}, ".function.name"),
        ({"type": "allowed_tools"}, ".allowed_tools"),
        (allowed("named", "a"), ".allowed_tools.mode"),
        (allowed("auto"), ".allowed_tools.tools"),
    ],
    ids=str,
)
def test_what_is_no_choice_is_refused_by_its_place(value: Any, place: str) -> None:
    with pytest.raises(FieldError) as refused:
        tool_choice(value)
    assert refused.value.where == place


AB = (Tool(name="a", parameters=SCHEMA, strict=True), Tool(name="b"))


def constraint_of(
    choice: ToolChoice | None, *, is_parallel: bool = True, document: Any = None
) -> Any:
    use = tools_used(AB, choice, is_parallel=is_parallel)
    assert use is not None
    constraint = use.constraint(CallFormat(), document)
    assert constraint.kind is ConstraintKind.STRUCTURAL_TAG
    return constraint.value


def begins(value: Any) -> list[str]:
    return [item["begin"] for item in value["structures"]]


def test_auto_leaves_text_free_around_calls() -> None:
    value = constraint_of(None)
    assert value == {
        "structures": [
            {
                "begin": '<tool_call>\n{"name": "a", "arguments": ',
                "schema": SCHEMA,
                "end": "}\n</tool_call>",
                "strict": True,
            },
            {
                "begin": '<tool_call>\n{"name": "b", "arguments": ',
                "schema": NO_PARAMETERS,
                "end": "}\n</tool_call>",
                "strict": False,
            },
        ],
        "triggers": ["<tool_call>"],
        "at_least_one": False,
        "stop_after_first": False,
        "text": True,
        "document": None,
    }


def test_a_choice_says_what_a_reply_may_be() -> None:
    must = constraint_of(ToolChoice(Calling.REQUIRED), document={})
    assert (must["at_least_one"], must["text"], must["document"]) == (True, False, None)
    assert not must["stop_after_first"]
    one = constraint_of(ToolChoice(Calling.NAMED, ("b",)))
    assert (one["at_least_one"], one["text"], one["stop_after_first"]) == (True, False, True)
    assert begins(one) == ['<tool_call>\n{"name": "b", "arguments": ']
    some = constraint_of(ToolChoice(Calling.AUTO, ("b",)), is_parallel=False)
    assert begins(some) == begins(one)
    assert (some["text"], some["stop_after_first"]) == (True, True)
    either = constraint_of(None, document={"type": "object"})
    assert (either["text"], either["document"]) == (False, {"type": "object"})


def test_arguments_are_objects_whatever_their_schema_leaves_open() -> None:
    use = tools_used([Tool(name="a", parameters={})], None, is_parallel=True)
    assert use is not None
    value: Any = use.constraint(CallFormat()).value
    assert value["structures"][0]["schema"] == {"type": "object"}


def test_a_reply_without_anything_to_call_has_no_tools() -> None:
    assert tools_used(AB, ToolChoice(Calling.NONE), is_parallel=True) is None
    assert tools_used((), None, is_parallel=True) is None
    assert tools_used((), ToolChoice(Calling.AUTO), is_parallel=True) is None


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ((), ToolChoice(Calling.REQUIRED)),
        ((), ToolChoice(Calling.NAMED, ("a",))),
        (AB, ToolChoice(Calling.NAMED, ("c",))),
        (AB, ToolChoice(Calling.AUTO, ("a", "c"))),
    ],
    ids=str,
)
def test_a_choice_of_what_is_not_there_is_refused(
    given: tuple[Tool, ...], choice: ToolChoice
) -> None:
    with pytest.raises(RequestError, match="tool_choice"):
        tools_used(given, choice, is_parallel=True)


def test_turns_of_calls_and_results_are_taken() -> None:
    asked = {"role": "user", "content": "hi"}
    calls = [call("c1", '{"city": "Oslo"}', "get_weather"), call("c2", "")]
    said = {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "hm"}
    results = [
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "b"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "a"},
    ]
    _, turn, second, first = messages([asked, said, *results])
    assert turn["content"] == ""
    assert turn["reasoning_content"] == "hm"
    assert [item["function"]["arguments"] for item in turn["tool_calls"]] == [{"city": "Oslo"}, {}]
    assert second == {"role": "tool", "name": "f", "content": "b", "tool_call_id": "c2"}
    assert first["name"] == "get_weather"


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "assistant", "content": None}, ".content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, ".content"),
        ({"role": "user", "content": "a", "tool_calls": [call()]}, ".tool_calls"),
        ({"role": "user", "content": "a", "tool_call_id": "c1"}, ".tool_call_id"),
        ({"role": "user", "content": "a", "reasoning_content": "a"}, ".reasoning_content"),
        ({"role": "assistant", "tool_calls": [{"id": "c1"}]}, ".tool_calls[0].type"),
        ({"role": "assistant", "tool_calls": [call(arguments="{")]}, ".arguments"),
        ({"role": "assistant", "tool_calls": [call(arguments="[]")]}, ".arguments"),
        ({"role": "assistant", "tool_calls": [call(arguments={})]}, ".arguments"),
        ({"role": "assistant", "tool_calls": [call(arguments='{"a": NaN}')]}, ".arguments"),
        ({"role": "assistant", "tool_calls": [call(name="a b")]}, ".function.name"),
        ({"role": "assistant", "tool_calls": [call("")]}, ".id"),
        ({"role": "assistant", "tool_calls": [call(), call()]}, ".tool_calls[1].id"),
        ({"role": "tool", "content": "a"}, ".tool_call_id"),
        ({"role": "tool", "content": "a", "tool_call_id": "c9"}, ".tool_call_id"),
        ({"role": "tool", "tool_call_id": "c9"}, ".content"),
        ({"role": "function", "content": "a", "name": "f"}, ".role"),
        ({"role": "assistant", "content": "a", "function_call": {}}, ".function_call"),
    ],
    ids=str,
)
def test_a_turn_that_makes_no_sense_is_refused_by_its_place(
    message: dict[str, Any], place: str
) -> None:
    with pytest.raises(FieldError) as refused:
        messages([{"role": "user", "content": "hi"}, message])
    assert refused.value.where.startswith("[1].")
    assert refused.value.where.endswith(place)
