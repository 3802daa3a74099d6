"""What a chat template does with tools, calls and results: found by having it write a probe.

A template that is shown a tool, a call and a result with names of their own either writes them or
does not, and how it writes the call is the form its model was trained on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import RequestError

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], Sequence[Mapping[str, Any]]], str]
"""Writes messages and tools with a template; raises RequestError where the template refuses."""

MAX_SHOWN = 60


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The text around a call's name and arguments; the defaults are the Hermes form.

    Args:
        trigger: what no text but a call holds; every call begins with it.
        before_name: from the beginning of a call to its name.
        before_arguments: from the name to the arguments, one JSON object.
        end: from the arguments to the end of a call; begins with the brace that closes the call.
    """

    trigger: str = "<tool_call>"
    before_name: str = '<tool_call>\n{"name": "'
    before_arguments: str = '", "arguments": '
    end: str = "}\n</tool_call>"

    def begin(self, name: str) -> str:
        """Return the text of a call before its arguments."""
        return self.before_name + name + self.before_arguments

    def written(self, name: str, arguments: str) -> str:
        """Return the text of a call."""
        return self.begin(name) + arguments + self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTemplate:
    """What a template writes of its own accord; what it does not is worded for it.

    Args:
        takes_system: whether it writes what a system message says.
        call_format: how the model is to write calls; None where the template teaches a form that
            is not known.
        shown: the beginning of a call as the template writes it, for people.
    """

    takes_system: bool = True
    writes_tools: bool = False
    writes_calls: bool = False
    writes_results: bool = False
    call_format: CallFormat | None = CallFormat()
    shown: str = ""


def probe_template(render: Render) -> ToolTemplate:
    """Return what a template does with a tool, a call and a result."""
    takes_system = _SYSTEM in _written(render, [_SAYS, _ASKS])
    listed = _written(render, [_ASKS], [_TOOL])
    if _LISTED not in listed:
        return ToolTemplate(takes_system=takes_system)
    answered = _written(render, [_ASKS, _CALLS, _ANSWERS], [_TOOL])
    called = _written(render, [_ASKS, _CALLS], [_TOOL]) or answered
    writes_calls = _CALLED in called
    return ToolTemplate(
        takes_system=takes_system,
        writes_tools=True,
        writes_calls=writes_calls,
        writes_results=_RESULT in answered,
        call_format=_format_of(called) if writes_calls else _format_taught(listed),
        shown=_shown(called),
    )


def _written(
    render: Render, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
) -> str:
    try:
        return render(messages, tools)
    except RequestError:
        return ""


def _format_of(text: str) -> CallFormat | None:
    """Read the form off a written call, its blanks as they are."""
    found = _HERMES_CALL.search(text)
    if found is None:
        return None
    return CallFormat(_TRIGGER, found["before_name"], found["before_arguments"], found["end"])


def _format_taught(text: str) -> CallFormat | None:
    """Take the Hermes form as it is where a template teaches it and writes no calls."""
    return CallFormat() if _HERMES_LESSON.search(text) else None


def _shown(text: str) -> str:
    """Return how a call begins, or "" where none was written."""
    place = text.rfind(_CALLED)
    if place < 0:
        return ""
    line = text[max(0, place - MAX_SHOWN // 2) : place + MAX_SHOWN // 2]
    return " ".join(line.replace(_CALLED, "NAME").split())


_SYSTEM, _LISTED, _CALLED = "fmsystemprobe", "fm_listed_probe", "fm_called_probe"
_KEY, _VALUE, _RESULT = "fm_key_probe", "fm_value_probe", "fm_result_probe"
_ID = "fmprobe01"
"""Nine letters and digits: some templates check it."""

_SAYS: Message = {"role": "system", "content": _SYSTEM}
_ASKS: Message = {"role": "user", "content": "fm"}
_CALLS: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": _ID,
            "type": "function",
            "function": {"name": _CALLED, "arguments": {_KEY: _VALUE}},
        }
    ],
}
_ANSWERS: Message = {"role": "tool", "tool_call_id": _ID, "name": _CALLED, "content": _RESULT}
_TOOL = {
    "type": "function",
    "function": {
        "name": _LISTED,
        "description": "fm",
        "parameters": {"type": "object", "properties": {}},
    },
}

_TRIGGER = CallFormat().trigger
_HERMES_CALL = re.compile(
    rf'(?P<before_name>{_TRIGGER}\s*\{{\s*"name"\s*:\s*")'
    rf'{_CALLED}(?P<before_arguments>"\s*,\s*"arguments"\s*:\s*)'
    rf'\{{\s*"{_KEY}"\s*:\s*"{_VALUE}"\s*\}}'
    r"(?P<end>\}\s*</tool_call>)"
)
_HERMES_LESSON = re.compile(
    rf'{_TRIGGER}\s*\{{\s*"name"\s*:[^{{}}]*"arguments"\s*:[^{{}}]*\}}\s*</tool_call>'
)
