"""Text of a reply, piece by piece, taken apart into what is said and what is called."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class CallDelta:
    """What is added to one call of a reply.

    Args:
        index: which call of the reply.
        call_id: set on the first delta of a call, and only there; so is `name`. It has no
            arguments yet.
        arguments: the next part of the arguments' JSON text.
    """

    index: int
    call_id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Heard:
    """What became certain of a reply: text, and behind it what is added to calls."""

    text: str = ""
    calls: tuple[CallDelta, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """How the calls of one reply are written.

    Args:
        trigger: what every call begins with.
        names: the text of a call before its arguments -> the name of what is called.
        end: what ends a call: a brace, and what follows it.
        has_text: whether anything but calls is part of the reply.
    """

    trigger: str
    names: Mapping[str, str]
    end: str
    has_text: bool = True


def new_call_id() -> str:
    """Return an id that no other call has."""
    return f"call_{secrets.token_hex(12)}"


class _Place(Enum):
    """Where in a reply the next character stands."""

    TEXT = auto()
    BEGIN = auto()
    ARGUMENTS = auto()
    END = auto()


class CallParser:
    """Takes one reply apart, however its text is cut into pieces.

    Held back are the beginnings of tags and the blanks before what may be a call: blanks beside a
    call are part of nothing, and so is a call whose name the reply does not reach.

    Attributes:
        num_complete: calls that have ended.
    """

    def __init__(self, syntax: CallSyntax, new_id: Callable[[], str] = new_call_id) -> None:
        self.num_complete = 0
        self._syntax = syntax
        self._new_id = new_id
        self._place = _Place.TEXT
        self._rest = ""
        self._blanks = ""
        self._is_behind_call = False
        self._num_calls = 0
        self._depth = 0
        self._is_quoted = False
        self._is_escaped = False

    def push(self, text: str) -> list[Heard]:
        """Take the next piece; returns what is certain now, in its order."""
        self._rest += text
        return _joined(self._read())

    def finish(self) -> list[Heard]:
        """Return what was held back and is text after all; to be called once, at the end."""
        rest, self._rest = self._rest, ""
        if self._place is not _Place.TEXT:
            return []
        said = self._said(rest).text + self._blanks
        self._blanks = ""
        return [Heard(said)] if said and self._syntax.has_text else []

    def _read(self) -> Iterator[Heard]:
        """Read on until more text is needed."""
        steps = {
            _Place.TEXT: self._read_text,
            _Place.BEGIN: self._read_begin,
            _Place.ARGUMENTS: self._read_arguments,
            _Place.END: self._read_end,
        }
        while self._rest:
            heard = steps[self._place]()
            if heard is None:
                return
            yield heard

    def _read_text(self) -> Heard | None:
        trigger = self._syntax.trigger
        place = self._rest.find(trigger)
        if place >= 0:
            said = self._said(self._taken(place))
            self._place = _Place.BEGIN
            return said
        said = self._said(self._taken(len(self._rest) - _overlap(self._rest, trigger)))
        return said if said.text else None

    def _read_begin(self) -> Heard | None:
        for begin, name in self._syntax.names.items():
            if self._rest.startswith(begin):
                return self._begun(begin, name)
        if any(begin.startswith(self._rest) for begin in self._syntax.names):
            return None
        self._place = _Place.TEXT
        return self._said(self._taken(1))

    def _begun(self, begin: str, name: str) -> Heard:
        self._taken(len(begin))
        self._blanks = ""
        self._place = _Place.ARGUMENTS
        self._depth, self._is_quoted, self._is_escaped = 0, False, False
        self._num_calls += 1
        return Heard(calls=(CallDelta(self._num_calls - 1, self._new_id(), name),))

    def _read_arguments(self) -> Heard:
        """Take arguments up to the brace that was not opened in them."""
        length = len(self._rest)
        for place, character in enumerate(self._rest):
            if self._ends_arguments(character):
                self._place = _Place.END
                length = place
                break
        arguments = self._taken(length)
        delta = CallDelta(self._num_calls - 1, arguments=arguments)
        return Heard(calls=(delta,) if arguments else ())

    def _ends_arguments(self, character: str) -> bool:
        if self._is_quoted:
            if self._is_escaped:
                self._is_escaped = False
            elif character == "\\":
                self._is_escaped = True
            elif character == '"':
                self._is_quoted = False
        elif character == '"':
            self._is_quoted = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        return self._depth < 0

    def _read_end(self) -> Heard | None:
        end = self._syntax.end
        if self._rest.startswith(end):
            self._taken(len(end))
            self.num_complete += 1
            self._place, self._is_behind_call = _Place.TEXT, True
            return Heard()
        if end.startswith(self._rest):
            return None
        self._place = _Place.TEXT
        return self._said(self._taken(1))

    def _taken(self, length: int) -> str:
        taken, self._rest = self._rest[:length], self._rest[length:]
        return taken

    def _said(self, text: str) -> Heard:
        """Say text up to its last blanks, which wait for what comes."""
        text = self._blanks + text
        self._blanks = ""
        if self._is_behind_call:
            text = text.lstrip(BLANKS)
            self._is_behind_call = not text
        said = text.rstrip(BLANKS)
        self._blanks = text[len(said) :]
        return Heard(said if self._syntax.has_text else "")


def _overlap(text: str, trigger: str) -> int:
    """Return the length of the longest end of a text that a trigger begins with."""
    longest = min(len(text), len(trigger) - 1)
    return next((size for size in range(longest, 0, -1) if trigger.startswith(text[-size:])), 0)


def gathered(deltas: Iterable[CallDelta]) -> list[CallDelta]:
    """Return calls from their deltas, each with all that is known of its arguments."""
    calls: dict[int, CallDelta] = {}
    for delta in deltas:
        first = calls.setdefault(delta.index, replace(delta, arguments=""))
        calls[delta.index] = replace(first, arguments=first.arguments + delta.arguments)
    return list(calls.values())


def _joined(heard: Iterable[Heard]) -> list[Heard]:
    """Make as few of many as keep their order, one delta of arguments that stand together."""
    joined: list[Heard] = []
    for item in heard:
        last = joined[-1] if joined else Heard()
        if (item.text and last.calls) or not joined:
            joined.append(item)
        else:
            calls = continued(last.calls, item.calls)
            joined[-1] = Heard(last.text + item.text, calls)
    return [item for item in joined if item.text or item.calls]


def continued(deltas: tuple[CallDelta, ...], more: tuple[CallDelta, ...]) -> tuple[CallDelta, ...]:
    """Return deltas and those behind them."""
    for delta in more:
        last = deltas[-1] if deltas else None
        if last is not None and last.index == delta.index and last.name is None:
            whole = replace(last, arguments=last.arguments + delta.arguments)
            deltas = (*deltas[:-1], whole)
        else:
            deltas = (*deltas, delta)
    return deltas
