"""What a reply is written under: a constraint, tools that may be called, or both together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import ModelError, RequestError
from engine.models.tokenizer import Tokenizer
from engine.request import Constraint, ConstraintKind
from engine.server.calls import CallSyntax
from engine.server.constraints import only_one
from engine.server.fields import CONSTRAINTS
from engine.server.problem import problem_of, refusal
from engine.server.tools import ToolUse, tools_used

FORMAT_FIELDS = ("response_format", "text")
"""Fields whose document a reply may be instead of calling tools."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a reply is written under.

    Args:
        field: the field that holds the constraint, to name when it cannot be compiled.
        tool_use: the tools it may call, None where there are none.
        call_syntax: how its calls are found in its text.
    """

    field: str | None = None
    constraint: Constraint | None = None
    tool_use: ToolUse | None = None
    call_syntax: CallSyntax | None = None


def read_bounds(values: Mapping[str, Any], tokenizer: Tokenizer) -> Bounds:
    """Return what the fields of a request ask of its replies.

    Args:
        values: the enforced fields, as they are taken.

    Raises:
        RequestError: several fields hold a constraint.
        HttpError: the tools, or the choice among them, do not go with the rest or with the model.
    """
    try:
        use = tools_used(
            values.get("tools", ()),
            values.get("tool_choice"),
            is_parallel=values.get("parallel_tool_calls", True),
        )
    except RequestError as error:
        raise problem_of(error, "tool_choice") from None
    given = only_one({key: values.get(key) for key in CONSTRAINTS})
    field, constraint = given or (None, None)
    if use is None:
        return Bounds(field, constraint)
    document = None if constraint is None else _document(field, constraint)
    try:
        form = tokenizer.call_format
    except ModelError as error:
        raise problem_of(error, "tools") from None
    return Bounds(field or "tools", use.constraint(form, document), use, use.syntax(form))


def _document(field: str | None, constraint: Constraint) -> Any:
    """Return the schema of a reply that does not call; tools go with no other constraint."""
    if field in FORMAT_FIELDS and constraint.kind is ConstraintKind.JSON_SCHEMA:
        return constraint.value
    if field in FORMAT_FIELDS and constraint.kind is ConstraintKind.JSON_OBJECT:
        return {"type": "object"}
    raise refusal(
        f"{field} and tools exclude each other; leave one out, or set tool_choice to none", field
    )
