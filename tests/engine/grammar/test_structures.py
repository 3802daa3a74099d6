"""Structures in free text: the mask and the final check, two readings of one rule, agree."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.errors import SchemaError
from engine.grammar.compile import CompiledGrammar
from engine.grammar.limits import GrammarLimits
from tests.engine.grammar.conftest import Bench

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
STRUCTURES = [
    {"begin": "<call>x=", "schema": SCHEMA, "end": "</call>"},
    {"begin": "<call>xy=", "schema": {"enum": [2, 22]}, "end": "\n"},
    {"begin": "[[", "schema": {"const": "é"}, "end": ""},
]
WORDS = [
    *("<call>", "x=", "xy=", "<cal", "l>", "</call>", "[", "[[", "\n", "a", "é", "< "),
    *('{"a":1}', '{"a":22}', '{"a":"1"}', '{"a"', "2", "22", '"é"', '"d"', "</"),
    *('<call>x={"a":1}</call>', "<call>xy=2\n", '[["é"'),
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=7).map("".join)
FLAGS = ("at_least_one", "stop_after_first", "text")
MODES = [
    (dict(zip(FLAGS, flags, strict=True)), document)
    for flags in product([False, True], repeat=3)
    for document in (None, {"const": "d"})
    if document is None or not flags[2]
]


def tag(**changes: Any) -> dict[str, Any]:
    return {"structures": STRUCTURES, "triggers": ["<call>", "[["], **changes}


@cache
def bench() -> Bench:
    return Bench()


@cache
def compiled(mode: int) -> CompiledGrammar:
    flags, document = MODES[mode]
    return bench().compile(tag(**flags, document=document), "structural_tag")


@given(st.integers(0, len(MODES) - 1), TEXTS)
@settings(max_examples=1000)
def test_the_mask_takes_exactly_the_texts_that_pass_the_check(mode: int, text: str) -> None:
    grammar = compiled(mode)
    assume(text == text.strip("\n") or MODES[mode][1] is None)  # blanks around a document are JSON
    passes = grammar.check_text(text, True, bench().encode(text)) == "enforced"
    assert bench().accepts(grammar, text) == passes


@pytest.mark.parametrize(
    ("changes", "right", "wrong"),
    [
        (
            {},
            ["", "a < b", '<cal<call>x={"a":1}</call>', '[["é"[["é"tail', "<call>xy=22\n\n<cal"],
            ["<call>", "a<call>b", '<call>x={"a":1}', '[["e"', "<call>x=2\n", "[[[", "x[[y"],
        ),
        ({"at_least_one": True}, ['hi [["é"', '[["é"!'], ["", "hi"]),
        ({"stop_after_first": True}, ["", "hi", 'hi [["é"'], ['[["é"!', '[["é"[["é"']),
        (
            {"text": False},
            ["", '[["é"', '[["é"\n[["é"', '[["é"[["é"'],
            ["hi", '\n[["é"', '[["é"\n\n[["é"', '[["é"\n'],
        ),
        (
            {"text": False, "document": {"const": "d"}},
            ['"d"', '[["é"\n[["é"'],
            ["", '"d"[["é"', '[["é""d"', '"d"\n'],
        ),
        ({"text": False, "at_least_one": True}, ['[["é"'], [""]),
    ],
)
def test_each_switch_means_what_it_says(
    changes: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    grammar = bench().compile(tag(**changes), "structural_tag")
    found = {text: bench().accepts(grammar, text) for text in [*right, *wrong]}
    assert found == {**dict.fromkeys(right, True), **dict.fromkeys(wrong, False)}


def test_a_reply_that_can_only_end_is_finished() -> None:
    grammar = bench().compile(tag(stop_after_first=True), "structural_tag")
    assert grammar.start(bench().encode('hi [["é"')).is_finished
    assert not grammar.start(bench().encode("hi ")).is_finished


def test_the_schemas_take_the_way_of_all_schemas() -> None:
    """Numbers are bounded, blanks are none, keys are never aliased: as in a JSON schema's reply."""
    grammar = bench().compile(tag(), "structural_tag")
    begin = "<call>x="
    for inner, is_legal in {
        '{"a":999999999999999}': True,
        '{"a":9999999999999999}': False,
        '{"a": 1}': False,
        '{"\\u0061":1}': False,
        '{"a":1,"b":2}': False,
    }.items():
        assert bench().accepts(grammar, f"{begin}{inner}</call>") == is_legal
    (first, *_) = grammar.report.as_dict()["rewritten"]
    assert "/structures/0/schema/properties/a" in first


LOOSE = {"type": "object", "properties": {"a": {"not": {"const": 1}}}}


def test_what_cannot_be_enforced_is_refused_with_its_place_unless_it_is_not_strict() -> None:
    loose = {"begin": "<call>z", "schema": LOOSE, "end": ";"}
    with pytest.raises(SchemaError, match="not at") as refused:
        bench().compile(tag(structures=[*STRUCTURES, loose]), "structural_tag")
    assert refused.value.pointer == "/structures/3/schema/properties/a"
    assert refused.value.keyword == "not"
    for grammar in (
        bench().compile(
            tag(structures=[*STRUCTURES, {**loose, "strict": False}]), "structural_tag"
        ),
        bench().compile(tag(structures=[*STRUCTURES, loose]), "structural_tag", "validate"),
    ):
        for text, verdict in {'<call>z{"a":2};': "checked", '<call>z{"a":1};': "failed"}.items():
            assert grammar.start(bench().encode(text)).check_text(text) == verdict


@pytest.mark.parametrize(
    ("value", "pointer", "message"),
    [
        ([], "", "give an object"),
        (tag(extra=1), "", "unknown member 'extra'"),
        (tag(structures=[]), "/structures", "at least one"),
        (tag(structures={}), "/structures", "no list"),
        (tag(structures=[1]), "/structures/0", "give an object"),
        (tag(structures=[{"begin": "<call>"}]), "/structures/0", "no schema"),
        (tag(structures=[{"schema": {}}]), "/structures/0/begin", "no text"),
        (tag(structures=[{"begin": "", "schema": {}}]), "/structures/0", "empty"),
        (tag(structures=[{"begin": "[[", "schema": {}, "x": 1}]), "/structures/0", "'x'"),
        (tag(structures=[{"begin": "(", "schema": {}}]), "/structures/0/begin", "none of the"),
        (tag(structures=[{"begin": "[[", "schema": 3}]), "/structures/0/schema", "boolean"),
        (
            tag(structures=[{"begin": "[[", "schema": {"minLength": "a"}}]),
            "/structures/0/schema",
            "not a valid schema",
        ),
        (tag(triggers=["<call>", ""]), "/triggers/1", "empty"),
        (tag(triggers=["<call>", "[[", "l>"]), "/triggers/0", "holds the trigger 'l>'"),
        (tag(triggers=[]), "/structures/0/begin", "none of the triggers"),
        (tag(text=1), "/text", "neither true nor false"),
        (tag(document={}), "/document", "text false"),
        (tag(text=False, document={"type": "x"}), "/document", "not a valid schema"),
        (tag(structures=[*STRUCTURES * 43]), "/structures", "the limit is 128"),
        (tag(triggers=["[" * 1025]), "/triggers/0", "the limit is 1024"),
        (
            tag(structures=[{"begin": "[[", "schema": {}, "end": "<|end0|>"}]),
            "",
            "ends a reply",
        ),
    ],
)
def test_what_is_malformed_is_refused_with_its_place(
    value: Any, pointer: str, message: str
) -> None:
    with pytest.raises(SchemaError, match=message.replace("|", r"\|")) as refused:
        named().compile(value, "structural_tag")
    assert (refused.value.pointer or "").startswith(pointer)


@cache
def named() -> Bench:
    """A bench whose compiler knows the names of its end tokens."""
    made = Bench()
    made.name_controls({f"<|end{index}|>": token for index, token in enumerate(made.ends)})
    return made


def test_a_trigger_that_another_one_begins_counts_no_further() -> None:
    grammar = bench().compile(tag(triggers=["[[", "<call>x", "<call>"]), "structural_tag")
    assert bench().accepts(grammar, '<call>x={"a":1}</call>')
    assert not bench().accepts(grammar, "<call>")


def test_a_trigger_that_begins_nothing_is_no_part_of_any_text() -> None:
    grammar = bench().compile(tag(triggers=["[[", "<call>", "##"]), "structural_tag")
    assert bench().accepts(grammar, "# [ #")
    assert not bench().accepts(grammar, "a##")


def test_any_character_may_stand_in_a_tag() -> None:
    odd = '/"\\\n\t\x00.*+?(){}[]|^$#&~é😀</'
    structure = {"begin": odd, "schema": {"const": 1}, "end": odd}
    grammar = bench().compile({"structures": [structure], "triggers": [odd]}, "structural_tag")
    assert bench().accepts(grammar, f"text {odd}1{odd} more")
    assert not bench().accepts(grammar, f"text {odd}2")


def test_sizes_are_checked_before_anything_is_compiled() -> None:
    small = Bench(GrammarLimits(max_schema_bytes=200))
    with pytest.raises(SchemaError, match="200 may"):
        small.compile(tag(), "structural_tag")
    deep: Any = {}
    for _ in range(150):
        deep = {"items": deep}
    with pytest.raises(SchemaError, match="depth limit"):
        bench().compile(tag(structures=[{"begin": "[[", "schema": deep}]), "structural_tag")


def test_many_structures_compile_within_the_limit() -> None:
    many = [
        {"begin": f'<call>{{"name":"f{i}","arguments":', "schema": SCHEMA, "end": "}</call>"}
        for i in range(128)
    ]
    grammar = bench().compile({"structures": many, "triggers": ["<call>"]}, "structural_tag")
    text = 'ok <call>{"name":"f127","arguments":{"a":1}}</call>'
    assert bench().accepts(grammar, text)
    assert not bench().accepts(grammar, text.replace("f127", "f128"))
