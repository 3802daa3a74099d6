"""Tools, calls and results in our own words, for chat templates that do not write them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from engine.models.tool_template import CallFormat, ToolTemplate

LESSON = """\
You can call functions. Each line inside <tools></tools> is the JSON description of one:
<tools>
{tools}
</tools>
To call a function, write its name and its arguments as JSON inside <tool_call></tool_call>:
{call}
The results of your calls come back inside <tool_response></tool_response>."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is left for a template to write."""

    messages: list[dict[str, Any]]
    tools: list[Mapping[str, Any]]


def worded(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    template: ToolTemplate,
) -> Conversation:
    """Say in messages what the template would leave out.

    Args:
        messages: a call's arguments are a JSON value, `content` is always a text.
        tools: as OpenAI describes them, {"type": "function", "function": {...}}.
    """
    form = template.call_format or CallFormat()
    said = [dict(message) for message in messages]
    if not template.writes_calls:
        said = [_with_calls(message, form) for message in said]
    if not template.writes_results:
        said = list(_with_results(said))
    if tools and not template.writes_tools:
        lesson = _lesson(tools, form)
        return Conversation(_with_lesson(said, lesson, template.takes_system), [])
    return Conversation(said, list(tools))


def _with_calls(message: dict[str, Any], form: CallFormat) -> dict[str, Any]:
    """Write the calls of an assistant's turn behind what it said."""
    if "tool_calls" not in message:
        return message
    calls = [
        form.written(call["function"]["name"], _json(call["function"]["arguments"]))
        for call in message["tool_calls"]
    ]
    parts = [message["content"], *calls] if message["content"] else calls
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(parts)}


def _with_results(messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Make one user's turn of results that stand together."""
    for is_result, group in groupby(messages, lambda message: message.get("role") == "tool"):
        if not is_result:
            yield from group
            continue
        results = [f"<tool_response>\n{item['content']}\n</tool_response>" for item in group]
        yield {"role": "user", "content": "\n".join(results)}


def _lesson(tools: Sequence[Mapping[str, Any]], form: CallFormat) -> str:
    lines = "\n".join(map(_json, tools))
    call = form.written("FUNCTION", '{"ARGUMENT": VALUE}')
    return LESSON.format(tools=lines, call=call)


def _with_lesson(
    messages: Sequence[dict[str, Any]], lesson: str, takes_system: bool
) -> list[dict[str, Any]]:
    """Put the lesson behind the system message, into one of its own, or before the first turn."""
    first, rest = messages[0], list(messages[1:])
    if takes_system and first["role"] == "system":
        return [{**first, "content": f"{first['content']}\n\n{lesson}"}, *rest]
    if takes_system:
        return [{"role": "system", "content": lesson}, first, *rest]
    return [{**first, "content": f"{lesson}\n\n{first['content']}"}, *rest]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
