"""Keeping what people write apart from what a chat template writes.

Control tokens that a person's text spells out are broken up by a mark before the template is
rendered, so that every control token found afterwards is the template's own. The mark is a
character that occurs nowhere in what people write, and it is taken out again before encoding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.errors import RequestError

PRIVATE_USE = range(0xE000, 0xF900)


@dataclass(frozen=True, slots=True)
class MarkedChat:
    """What people wrote, control texts broken up by `mark`; "" for no such text."""

    messages: list[dict[str, Any]]
    mark: str
    options: dict[str, Any] = field(default_factory=dict)
    tools: list[Any] = field(default_factory=list)


class ControlTexts:
    """The texts of control tokens, and how to find them.

    Args:
        ids: text -> token id.
        thinking: those of them the content of an assistant's earlier turns may hold, for the
            template to read.
    """

    def __init__(self, ids: Mapping[str, int], thinking: Iterable[str] = ()) -> None:
        self.ids = dict(ids)
        self._anywhere = _pattern(self.ids)
        self._in_assistant = _pattern(set(self.ids) - set(thinking))

    def mark(
        self,
        messages: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> MarkedChat:
        """Break up the control texts in every string of messages, template options and tools.

        Keys inside of them are strings too: a tool's parameters have names of people's choice.
        """
        given = dict(options or {})
        mark = _unused_character([*messages, given, *tools])
        marked = [self._marked_message(message, mark) for message in messages]
        given = {key: _marked(value, self._anywhere, mark) for key, value in given.items()}
        described = [_marked(tool, self._anywhere, mark) for tool in tools]
        is_used = any(mark in text for text in _strings([*marked, given, *described]))
        return MarkedChat(marked, mark if is_used else "", given, described)

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Cut text at control texts; yields (plain text, None) and (control text, its id)."""
        place = 0
        for match in self._anywhere.finditer(text) if self._anywhere else ():
            if match.start() > place:
                yield text[place : match.start()], None
            yield match[0], self.ids[match[0]]
            place = match.end()
        if place < len(text):
            yield text[place:], None

    def _marked_message(self, message: Mapping[str, Any], mark: str) -> dict[str, Any]:
        is_assistant = message.get("role") == "assistant"
        content = self._in_assistant if is_assistant else self._anywhere
        return {
            key: _marked(value, content if key == "content" else self._anywhere, mark)
            for key, value in message.items()
        }


def _pattern(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Match any of the texts, the longest first, as tokenizers do."""
    longest_first = sorted(texts, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _marked(value: Any, pattern: re.Pattern[str] | None, mark: str) -> Any:
    """Put the mark after the first character of every match, again until none is left."""
    if isinstance(value, str):
        while pattern is not None and pattern.search(value):
            value = pattern.sub(lambda match: match[0][0] + mark + match[0][1:], value)
        return value
    if isinstance(value, Mapping):
        return {
            _marked(key, pattern, mark): _marked(item, pattern, mark) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_marked(item, pattern, mark) for item in value]
    return value


def _unused_character(messages: Sequence[Mapping[str, Any]]) -> str:
    used = set().union(*map(set, _strings(messages)))
    for code in PRIVATE_USE:
        if chr(code) not in used:
            return chr(code)
    raise RequestError("the messages use every private-use character; send fewer of them")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
