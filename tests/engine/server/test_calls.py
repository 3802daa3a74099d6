"""A reply is taken apart the same however its text is cut into pieces."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.models.tool_template import CallFormat
from engine.server.calls import CallParser, CallSyntax

FORMS = (
    CallFormat(),
    CallFormat("<tool_call>", '<tool_call>{"name":"', '","arguments":', "}</tool_call>"),
)
NAMES = ("f", "ff", "get_weather", "a-b")
BLANKS = " \t\r\n"


def syntax_of(form: CallFormat, *, has_text: bool = True) -> CallSyntax:
    names = {form.begin(name): name for name in NAMES}
    return CallSyntax(trigger=form.trigger, names=names, end=form.end, has_text=has_text)


@dataclass
class Collected:
    """All that a parser said."""

    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    num_complete: int = 0


def parsed(pieces: Iterable[str], syntax: CallSyntax) -> Collected:
    numbers = itertools.count()
    parser = CallParser(syntax, lambda: f"call_{next(numbers)}")
    found = Collected()
    for heard in [item for piece in pieces for item in parser.push(piece)] + parser.finish():
        found.text += heard.text
        for delta in heard.calls:
            if delta.call_id is not None:
                assert delta.name is not None
                assert delta.index == len(found.calls), "calls are numbered in their order"
                found.calls.append((delta.name, ""))
                found.ids.append(delta.call_id)
            else:
                assert delta.name is None
                assert delta.arguments, "a delta says something"
            name, arguments = found.calls[delta.index]
            found.calls[delta.index] = (name, arguments + delta.arguments)
    assert parser.num_complete <= len(found.calls)
    found.num_complete = parser.num_complete
    return found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(
    st.sampled_from(["city", "}", '"', "\\", "<tool_call>", "</tool_call>"]) | st.text(max_size=6),
    JSON | st.sampled_from(['"}', "\\", "}\n</tool_call>", "<tool_call>\n{", "{[", "]}"]),
    max_size=4,
)
PLAIN = st.text(st.sampled_from('ab<>{}/_ \n\t\u00e9\u00a0"')).filter(lambda t: "<t" not in t)


@st.composite
def cuttings(draw: st.DrawFn, text: str) -> list[str]:
    places = draw(st.lists(st.integers(0, len(text)), max_size=12))
    edges = [0, *sorted(places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


@given(st.data())
def test_calls_and_text_are_found_as_they_were_written(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(FORMS))
    calls = data.draw(
        st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), min_size=1, max_size=4)
    )
    between = data.draw(st.lists(PLAIN, min_size=len(calls) + 1, max_size=len(calls) + 1))
    is_compact = data.draw(st.booleans())
    separators = (",", ":") if is_compact else (", ", ": ")
    texts = [
        json.dumps(arguments, separators=separators, ensure_ascii=data.draw(st.booleans()))
        for _, arguments in calls
    ]
    written = between[0] + "".join(
        form.written(name, text) + after
        for (name, _), text, after in zip(calls, texts, between[1:], strict=True)
    )
    found = parsed(data.draw(cuttings(written)), syntax_of(form))
    assert found.calls == [(name, text) for (name, _), text in zip(calls, texts, strict=True)]
    assert found.num_complete == len(calls)
    assert len(set(found.ids)) == len(calls)
    first, *middle, last = between
    kept = [first.rstrip(BLANKS), *[text.strip(BLANKS) for text in middle], last.lstrip(BLANKS)]
    assert found.text == "".join(kept)


FRAGMENTS = [
    *(form.begin(name) for form in FORMS for name in NAMES),
    *(form.end for form in FORMS),
    "<tool_call>",
    "<tool_",
    "</tool_call>",
    "call>",
    '{"a": 1}',
    '{"a": "}',
    '"',
    "\\",
    "{",
    "}",
    "\n",
    " ",
    "word",
]


@given(st.data())
def test_no_cut_makes_a_difference_whatever_the_text(data: st.DataObject) -> None:
    syntax = syntax_of(data.draw(st.sampled_from(FORMS)), has_text=data.draw(st.booleans()))
    text = "".join(data.draw(st.lists(st.sampled_from(FRAGMENTS) | PLAIN, max_size=14)))
    assert parsed(data.draw(cuttings(text)), syntax) == parsed(list(text), syntax)
    assert parsed([text], syntax) == parsed(list(text), syntax)


@given(PLAIN)
def test_text_without_calls_is_all_there(text: str) -> None:
    found = parsed(list(text), syntax_of(FORMS[0]))
    assert (found.text, found.calls) == (text, [])


def test_a_reply_of_calls_alone_has_no_text() -> None:
    form = FORMS[0]
    written = "\n".join(form.written("f", "{}") for _ in range(3))
    found = parsed([written + "\n<tool_"], syntax_of(form, has_text=False))
    assert (found.text, found.num_complete) == ("", 3)


WRITTEN = "Well.\n" + FORMS[0].written("get_weather", '{"city":"a}\\"</tool_call>"}')


@pytest.mark.parametrize("length", range(len(WRITTEN) + 1))
def test_a_cut_reply_tells_what_was_certain_and_nothing_of_the_tags(length: int) -> None:
    found = parsed([WRITTEN[:length]], syntax_of(FORMS[0]))
    arguments = '{"city":"a}\\"</tool_call>"}'
    begin = WRITTEN.index(arguments)
    assert found.num_complete == (1 if length == len(WRITTEN) else 0)
    if length < begin:
        assert found.calls == []
    else:
        assert found.calls == [("get_weather", arguments[: length - begin])]
    tag = WRITTEN.index("<")
    if length >= tag + len("<tool_call>"):
        assert found.text == "Well."
    else:
        assert found.text == WRITTEN[:length], "half a tag may be text"


def test_arguments_come_as_they_are_written() -> None:
    parser = CallParser(syntax_of(FORMS[0]))
    pieces = [
        "<tool_call>",
        '\n{"name": "f',
        '", "arguments": ',
        '{"a"',
        ":1",
        "}",
        "}\n</tool",
        "_call>",
    ]
    said = [parser.push(piece) for piece in pieces]
    deltas = [[delta for heard in part for delta in heard.calls] for part in said]
    assert [[delta.arguments for delta in part] for part in deltas] == [
        [],
        [],
        [""],
        ['{"a"'],
        [":1"],
        ["}"],
        [],
        [],
    ]
    (first,) = deltas[2]
    assert first.name == "f"
    assert first.call_id is not None
    assert first.call_id.startswith("call_")
    assert parser.num_complete == 1


def test_text_is_held_back_no_longer_than_it_may_be_a_call() -> None:
    parser = CallParser(syntax_of(FORMS[0]))
    heard = [parser.push(piece) for piece in ["a <", "b <tool", "box ", "c"]]
    assert ["".join(item.text for item in part) for part in heard] == [
        "a",
        " <b",
        " <toolbox",
        " c",
    ]


def test_text_and_calls_keep_their_order_however_the_reply_is_cut() -> None:
    syntax = syntax_of(FORMS[0])
    call = FORMS[0].written("f", "{}")
    reply = f"one {call} two {call}{call} three"

    def order(pieces: list[str]) -> str:
        parser = CallParser(syntax)
        heard = [item for piece in pieces for item in parser.push(piece)] + parser.finish()
        return "".join(
            item.text + "".join(delta.name or "" for delta in item.calls) for item in heard
        )

    assert order([reply]) == "oneftwoffthree"
    for size in (1, 2, 7, 30):
        cut = [reply[place : place + size] for place in range(0, len(reply), size)]
        assert order(cut) == "oneftwoffthree"


def test_a_call_of_no_tool_is_text() -> None:
    text = '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'
    found = parsed([text], syntax_of(FORMS[0]))
    assert (found.text, found.calls) == (text, [])
