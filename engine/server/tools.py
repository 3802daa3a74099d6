"""The tools of a request: what may be called, and the constraint that calls are written under."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from engine.errors import RequestError, SchemaError
from engine.models.tool_template import CallFormat
from engine.request import Constraint, ConstraintKind
from engine.server.calls import CallSyntax
from engine.server.problem import HttpError, problem_of
from engine.server.readers import (
    FieldError,
    Json,
    below,
    boolean,
    items,
    mapping,
    members,
    one_of,
    reads,
    record_schema,
    shown,
    text,
)

MAX_TOOLS = 128
MAX_DESCRIPTION = 65_536

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
NAME_SCHEMA: Json = {"type": "string", "pattern": f"^{NAME.pattern}$"}
FUNCTION: Json = {"const": "function"}

SCHEMA_POINTER = re.compile(r"/structures/(\d+)/schema(.*)", re.DOTALL)

NO_PARAMETERS: Json = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function the model may call.

    Args:
        parameters: JSON Schema of its arguments.
        strict: whether a schema that cannot be enforced whole is refused; otherwise the final
            check tells what the mask does not enforce.
        schema_place: where the schema stands in the tool as it was sent.
    """

    name: str
    description: str = ""
    parameters: Json = field(default_factory=lambda: dict(NO_PARAMETERS))
    strict: bool = False
    schema_place: str = ".function.parameters"

    @property
    def document(self) -> Json:
        """What a chat template is shown."""
        said = {"description": self.description} if self.description else {}
        function = {"name": self.name, **said, "parameters": self.parameters}
        return {"type": "function", "function": function}


class Calling(StrEnum):
    """Whether a reply calls tools."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What a request says of calling.

    Args:
        names: the tools that may be called; None for all of them.
    """

    calling: Calling = Calling.AUTO
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools of one reply.

    Args:
        tools: all that the model is shown, in the order of the request.
        callable_names: those of them it may call.
        calling: never NONE: such a reply has no tools.
        has_one_call: whether the reply ends with its first call.
    """

    tools: tuple[Tool, ...]
    callable_names: tuple[str, ...]
    calling: Calling
    has_one_call: bool

    @property
    def documents(self) -> list[Json]:
        """What a chat template is shown."""
        return [tool.document for tool in self.tools]

    @property
    def places(self) -> list[int]:
        """Places in the request's list of the tools that may be called."""
        return [place for place, tool in enumerate(self.tools) if tool.name in self.callable_names]

    def constraint(self, form: CallFormat, document: Any = None) -> Constraint:
        """Return what the reply is written under.

        Args:
            document: JSON Schema that a reply without calls must meet; None leaves it free. A
                reply that must call is calls alone.
        """
        must_call = self.calling is not Calling.AUTO
        return Constraint(
            kind=ConstraintKind.STRUCTURAL_TAG,
            value={
                "structures": [_structure(self.tools[place], form) for place in self.places],
                "triggers": [form.trigger],
                "at_least_one": must_call,
                "stop_after_first": self.has_one_call,
                "text": not must_call and document is None,
                "document": None if must_call else document,
            },
        )

    def problem_of(self, error: SchemaError, document_field: str) -> HttpError:
        """Return what is told of a constraint that cannot be compiled, by the caller's places.

        Args:
            document_field: what to name where no tool is at fault.
        """
        found = SCHEMA_POINTER.match(error.pointer or "")
        if found is None:
            return problem_of(error, document_field)
        index = self.places[int(found[1])]
        place = f"tools[{index}]{self.tools[index].schema_place}"
        message = str(error).replace(f"/structures/{found[1]}/schema", place)
        return problem_of(SchemaError(message), place + found[2])

    def syntax(self, form: CallFormat) -> CallSyntax:
        """Return how the reply's calls are found in its text."""
        return CallSyntax(
            trigger=form.trigger,
            names={form.begin(name): name for name in self.callable_names},
            end=form.end,
            has_text=self.calling is Calling.AUTO,
        )


def tools_used(
    tools: Sequence[Tool], choice: ToolChoice | None, *, is_parallel: bool
) -> ToolUse | None:
    """Return the tools of a reply, None where it has none to call.

    Raises:
        RequestError: the choice needs tools that are not there.
    """
    choice = choice or ToolChoice()
    names = [tool.name for tool in tools]
    for name in choice.names or ():
        if name not in names:
            raise RequestError(f"tool_choice names {name!r}, which is none of the tools")
    if not tools and choice.calling not in (Calling.AUTO, Calling.NONE):
        raise RequestError(f"tool_choice is {choice.calling} and there are no tools; send some")
    if not tools or choice.calling is Calling.NONE:
        return None
    return ToolUse(
        tools=tuple(tools),
        callable_names=tuple(names if choice.names is None else choice.names),
        calling=choice.calling,
        has_one_call=choice.calling is Calling.NAMED or not is_parallel,
    )


def function_schema(**more: Json) -> Json:
    """Return the schema of what describes a function.

    Args:
        more: members that stand beside its name.
    """
    known = {
        **more,
        "name": NAME_SCHEMA,
        "description": text(MAX_DESCRIPTION).schema,
        "parameters": {"type": "object", "properties": {"type": {"const": "object"}}},
        "strict": boolean.schema,
    }
    return record_schema(known, (*more, "name"))


def tools_schema(tool: Json) -> Json:
    """Return the schema of a list of tools."""
    return {"type": "array", "maxItems": MAX_TOOLS, "items": tool}


def choice_schema(named: Json, allowed: Callable[[Json], Json]) -> Json:
    """Return the schema of a tool_choice.

    Args:
        named: of the object that names one function.
        allowed: makes the schema of the object that allows some of what its members say.
    """
    names = {"type": "array", "minItems": 1, "maxItems": MAX_TOOLS, "items": named}
    some = {"mode": {"enum": ["auto", "required"]}, "tools": names}
    return {"anyOf": [{"enum": ["none", "auto", "required"]}, named, allowed(some)]}


def _inside(schema: Json) -> Json:
    """Return the schema of a function that lies in an object of its own."""
    return record_schema({"type": FUNCTION, "function": schema}, ("type", "function"))


def _allowing(some: Json) -> Json:
    inner = record_schema(some, tuple(some))
    known = {"type": {"const": "allowed_tools"}, "allowed_tools": inner}
    return record_schema(known, tuple(known))


@reads(tools_schema(_inside(function_schema())), is_loose=True)  # no two have one name
def tools(value: Any) -> tuple[Tool, ...]:
    """Take the tools of a chat, {"type": "function", "function": {...}}."""
    return tool_list(value, _nested_tool)


def tool_list(value: Any, read: Callable[[Any], Tool]) -> tuple[Tool, ...]:
    """Take a list of tools, each read by `read`; no two may have one name."""
    found: dict[str, Tool] = {}
    for index, item in enumerate(items(value, MAX_TOOLS)):
        tool = below(f"[{index}]", read, item)
        if tool.name in found:
            raise FieldError(f"has the name of another tool, {tool.name!r}", f"[{index}]")
        found[tool.name] = tool
    return tuple(found.values())


def function_tool(value: Any) -> Tool:
    """Take what describes a function: its name, and perhaps more."""
    given = members(value, ("name", "description", "parameters", "strict"))
    name = below(".name", tool_name, given.get("name"))
    description = below(".description", text(MAX_DESCRIPTION), given.get("description", ""))
    strict = below(".strict", boolean, given.get("strict", False))
    parameters = below(".parameters", _parameters, given.get("parameters", NO_PARAMETERS))
    return Tool(name=name, description=description, parameters=parameters, strict=strict)


def tool_name(value: Any) -> str:
    """Take the name of a function."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise FieldError(f"must be 1 to 64 of a-z, A-Z, 0-9, _ and -, not {shown(value)}")
    return value


@reads(choice_schema(_inside(record_schema({"name": NAME_SCHEMA}, ("name",))), _allowing))
def tool_choice(value: Any) -> ToolChoice:
    """Take a chat's tool_choice: a word, one function, or a list of allowed ones."""
    return choice_of(value, _nested_name, _allowed)


def choice_of(
    value: Any, read_name: Callable[[Any], str], read_allowed: Callable[[Any], ToolChoice]
) -> ToolChoice:
    """Take a word, or one of the two kinds of objects.

    Args:
        read_name: takes the object that names one function.
        read_allowed: takes the object that lists some.
    """
    if isinstance(value, str):
        return ToolChoice(Calling(one_of("none", "auto", "required")(value)))
    if not isinstance(value, dict):
        raise FieldError(f"must be none, auto, required or an object, not {shown(value)}")
    kind = below(".type", one_of("function", "allowed_tools"), value.get("type"))
    if kind == "function":
        return ToolChoice(Calling.NAMED, (read_name(value),))
    return read_allowed(value)


def allowed_tools(value: Any, read_name: Callable[[Any], str]) -> ToolChoice:
    """Take {"mode": ..., "tools": [...]}, whatever else stands around it."""
    given = members(value, ("mode", "tools"))
    mode = below(".mode", one_of("auto", "required"), given.get("mode"))
    listed = below(".tools", lambda listed: items(listed, MAX_TOOLS), given.get("tools"))
    names = [below(f".tools[{index}]", read_name, item) for index, item in enumerate(listed)]
    if not names:
        raise FieldError("must hold at least one tool", ".tools")
    return ToolChoice(Calling(mode), tuple(dict.fromkeys(names)))


def in_function(value: Any, read: Callable[[Any], Any]) -> Any:
    """Take {"type": "function", "function": ...}; returns what `read` makes of what is inside."""
    below(".type", one_of("function"), mapping(value).get("type"))
    given = members(value, ("type", "function"))
    return below(".function", read, given.get("function"))


def _nested_tool(value: Any) -> Tool:
    tool: Tool = in_function(value, function_tool)
    return tool


def _nested_name(value: Any) -> str:
    return str(in_function(value, _named))


def _named(value: Any) -> str:
    return str(below(".name", tool_name, members(value, ("name",)).get("name")))


def _allowed(value: Any) -> ToolChoice:
    given = members(value, ("type", "allowed_tools"))
    inside: ToolChoice = below(
        ".allowed_tools",
        lambda item: allowed_tools(item, _nested_name),
        given.get("allowed_tools"),
    )
    return inside


def _parameters(value: Any) -> Json:
    """Take the schema of an object."""
    if not isinstance(value, dict):
        raise FieldError(f"must be a JSON Schema of an object, not {shown(value)}")
    kind = value.get("type", "object")
    if kind != "object":
        raise FieldError(f"must be object: arguments are named, not {shown(kind)}", ".type")
    return value


def _structure(tool: Tool, form: CallFormat) -> Json:
    return {
        "begin": form.begin(tool.name),
        "schema": _of_objects(tool.parameters),
        "end": form.end,
        "strict": tool.strict,
    }


def _of_objects(schema: Json) -> Json:
    """Say of a schema's root what arguments are, where it says nothing of their type."""
    return schema if "type" in schema or "$ref" in schema else {"type": "object", **schema}
