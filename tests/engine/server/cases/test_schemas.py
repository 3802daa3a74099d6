"""What a schema allows can be written over HTTP, and nothing else; what cannot be held to is a 400.

The verdicts are those of the tests of the grammar itself; here a model wants to write each text.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from typing import Any

import httpx2
import jsonschema_rs
import psutil
import pytest

from tests.effort import effort
from tests.engine.grammar import test_accepts, test_formats, test_numbers, test_refusals
from tests.engine.server.cases.echo import prompt_ids
from tests.engine.server.live import CHAT, Live, chat_body, engine_of
from tests.engine.server.reply import (
    LANES,
    MODES,
    Said,
    ask_chat,
    ask_ids,
    schema_format,
    streamed,
)
from tests.waiting import WAIT_S

MAX_PROMPTS = 16
SPARE = 24
"""Tokens a row gets beyond the text it wants."""

PAIRS = itertools.cycle([("serial", "batch+spec"), ("batch", "serial+spec")])


def _formats() -> dict[str, tuple[object, list[str], list[str]]]:
    right, wrong = test_formats.RIGHT, test_formats.WRONG
    return {
        f"format {name}": (
            {"type": "string", "format": name},
            [json.dumps(text, ensure_ascii=False) for text in right[name]],
            [json.dumps(text) for text in wrong.get(name, [])],
        )
        for name in right
    }


MORE: dict[str, tuple[object, list[str], list[str]]] = {
    "an unknown format asserts nothing": (
        {"type": "string", "format": "slug"},
        ['"not a slug!"', '"slug"'],
        ["5"],
    ),
    "an unknown keyword asserts nothing": ({"type": "string", "nullable": True}, ['"x"'], ["null"]),
    "nested repetition": (
        {"type": "string", "pattern": "^(([abc]*)*)*d$"},
        ['"abcd"', '"d"'],
        ['"abce"', '""', '"dd"'],
    ),
    "alternated patterns that refer to themselves": (
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "pattern": "^(a|b|c1|c2)(-(x|y|z0)){0,3}$"}
                    },
                    "patternProperties": {"^(in|out)_[a-z]{1,4}$": {"$ref": "#/$defs/node"}},
                    "required": ["name"],
                    "additionalProperties": False,
                }
            },
        },
        ['{"name":"c1-x-z0"}', '{"name":"a","in_ab":{"name":"b","out_x":{"name":"c2"}}}'],
        ['{"name":"c"}', '{"name":"a","in_":{"name":"b"}}', '{"name":"a","in_a":{}}'],
    ),
    "a large enum": (
        {"enum": [f"category/sub/{index:05d}" for index in range(5000)]},
        ['"category/sub/00000"', '"category/sub/02501"', '"category/sub/04999"'],
        ['"category/sub/05000"', '"category/sub/0000"', '"category/sub/"'],
    ),
}
TABLE = test_accepts.TABLE | test_numbers.TABLE | _formats() | MORE
QUICK = ("batch+spec",)
VERDICTS = [
    pytest.param(*TABLE[name], QUICK if "thousand" in name else lanes, id=name)
    for name, lanes in zip(TABLE, PAIRS, strict=False)
]
"""Each schema in two lanes; long texts only where they are quick."""


def is_valid(schema: Any, text: str) -> bool:
    """Ask a validator the engine does not use."""
    judge = jsonschema_rs.validator_for(schema, validate_formats=True)
    return bool(judge.is_valid(json.loads(text)))


def writings(live: Live, schema: Any, texts: list[str], lane: str, *, stream: bool) -> list[Said]:
    """What a row that wants to write a text writes under a schema, for each text."""
    found: list[Said] = []
    for start in range(0, len(texts), MAX_PROMPTS):
        some = texts[start : start + MAX_PROMPTS]
        reply = ask_ids(
            live,
            [prompt_ids(text) for text in some],
            stream=stream,
            fm=LANES[lane],
            max_tokens=max(len(text.encode()) for text in some) + SPARE,
            guided_json=schema,
        )
        found += reply.choices
    return found


@pytest.mark.parametrize(("schema", "accepted", "rejected", "lanes"), VERDICTS)
def test_a_text_can_be_written_when_its_schema_allows_it_and_only_then(
    echo: Live, schema: Any, accepted: list[str], rejected: list[str], lanes: tuple[str, ...]
) -> None:
    texts = [*accepted, *rejected]
    for lane, stream in zip(lanes, MODES.values(), strict=False):
        written = writings(echo, schema, texts, lane, stream=stream)
        whole = [
            text
            for text, choice in zip(texts, written, strict=True)
            if choice.text == text and choice.reasons == ["stop"]
        ]
        assert whole == accepted
        for choice in written:
            assert choice.reasons == ["length"] or is_valid(schema, choice.text)


SAMPLED = {
    name: schema for name, (schema, *_) in TABLE.items() if name in {*test_accepts.TABLE, *MORE}
}
CLOSERS = {'"': 6, "}": 6, "]": 6, "\\": -100}
"""Biases under which random documents come to an end."""

LONG = (
    "a reference into a branch",
    "a thousand items",
    "optional keys come in their place or not at all",
)
"""Schemas whose documents rarely end within the budget of these rows."""


@pytest.mark.parametrize("name", SAMPLED)
def test_what_is_drawn_under_a_schema_is_valid(tiny: Live, name: str) -> None:
    reply = ask_chat(
        tiny,
        "anything",
        stream=len(name) % 2 == 0,
        n=4,
        temperature=1,
        seed=len(name),
        max_tokens=48,
        logit_bias={str(ord(char)): bias for char, bias in CLOSERS.items()},
        response_format=schema_format(SAMPLED[name]),
        reasoning_effort="none",
    )
    ended = [choice for choice in reply.choices if choice.reasons == ["stop"]]
    assert ended or name in LONG
    assert all(is_valid(SAMPLED[name], choice.text) for choice in ended)
    expected = "enforced" if len(ended) == 4 else "failed"
    assert reply.usage["conformance"] == expected


def refused(live: Live, schema: Any, *, stream: bool = False) -> dict[str, Any]:
    """The error a schema is refused with, before any row is queued."""
    submitted = engine_of(live).stats().submitted
    answer = live.chat(stream=stream, response_format=schema_format(schema))
    assert engine_of(live).stats().submitted == submitted
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"].startswith("response_format")
    return dict(error)


@pytest.mark.parametrize("keyword", test_refusals.UNENFORCEABLE)
@pytest.mark.parametrize("has_type", [False, True], ids=["as it is", "with a type"])
@pytest.mark.parametrize("stream", MODES.values(), ids=MODES)
def test_a_keyword_that_cannot_be_enforced_is_named_with_its_place(
    tiny: Live, stream: bool, has_type: bool, keyword: str
) -> None:
    types = {"type": ["object", "array", "string", "number", "null"]} if has_type else {}
    schema = {**types, **test_refusals.UNENFORCEABLE[keyword]}
    error = refused(tiny, test_refusals.inside(schema), stream=stream)
    assert error["code"] == "invalid_schema"
    assert "/properties/x" in error["message"]
    assert keyword in error["message"]


@pytest.mark.parametrize("pattern", test_refusals.PATTERNS)
def test_a_pattern_that_cannot_be_read_is_named_each_time(tiny: Live, pattern: str) -> None:
    for stream in (False, True, False):
        error = refused(tiny, test_refusals.inside({"pattern": pattern}), stream=stream)
        assert error["code"] == "invalid_schema"
        assert re.search("pattern.*at /properties/x|/properties/x.*pattern", error["message"])


NOT_SCHEMAS = [
    case
    for case in test_refusals.NOT_SCHEMAS
    if isinstance(case[0], dict | bool) and "const" not in (case[0] or {})
]


@pytest.mark.parametrize("case", NOT_SCHEMAS, ids=lambda case: str(case[0])[:60])
def test_what_is_no_schema_is_refused_with_the_place(tiny: Live, case: Any) -> None:
    schema, pointer, keyword = case
    error = refused(tiny, schema)
    assert error["code"] == "invalid_schema"
    assert (pointer or "") in error["message"]
    assert (keyword or "") in error["message"]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (schema_format('{"type":"object"}'), ".json_schema.schema"),
        (schema_format(None), ".json_schema.schema"),
        (schema_format([]), ".json_schema.schema"),
        (schema_format(5), ".json_schema.schema"),
        ({"type": "json_schema"}, ".json_schema"),
        ({"type": "json_schema", "json_schema": {}}, ".json_schema.schema"),
        ({"type": "json_schema", "json_schema": None}, ".json_schema"),
        ({"type": "yaml"}, ".type"),
        ({}, ".type"),
        ("json_object", ""),
        ({"type": "json_object", "schema": {"type": "object"}}, ".schema"),
        ({"type": "json_object", "json_schema": {"schema": {}}}, ".json_schema"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", MODES.values(), ids=MODES)
def test_a_response_format_that_is_none_is_refused_by_its_place(
    tiny: Live, stream: bool, value: Any, place: str
) -> None:
    answer = tiny.chat(response_format=value, stream=stream)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == f"response_format{place}"


def test_refusals_disturb_no_reply_and_leave_no_grammar(tiny: Live) -> None:
    # Without an end token the reply runs as long as its budget.
    body = chat_body("stay", max_tokens=600, ignore_eos=True, stream=True, return_token_ids=True)
    body["stream_options"] = {"include_usage": True}
    alone = tiny.client.post(CHAT, json=body)
    before = tiny.client.get("/stats").json()["grammar_cache"]
    with (
        httpx2.Client(base_url=tiny.url, timeout=WAIT_S) as neighbour,
        neighbour.stream("POST", CHAT, json=body) as answer,
    ):
        for _ in range(2):
            for pattern in ("foo**[", "(?!x)y", "[z-a]", r"(a)\1", "a{5,2}", "(", r"\p{No}"):
                refused(tiny, test_refusals.inside({"pattern": pattern, "title": "meanwhile"}))
        answer.read()
    assert streamed(answer).said.outcome == streamed(alone).said.outcome
    after = tiny.client.get("/stats").json()["grammar_cache"]
    assert after["compiles"] == before["compiles"]
    assert after["failures"] == before["failures"] + 14
    assert tiny.chat("after").status_code == 200


def deep_object(depth: int) -> tuple[Any, str]:
    schema, text = '{"type":"integer"}', "1"
    for _ in range(depth):
        schema = f'{{"type":"object","properties":{{"a":{schema}}},"required":["a"]}}'
        text = f'{{"a":{text}}}'
    return schema, text


def deep_union(depth: int) -> tuple[Any, str]:
    schema = '{"type":"integer"}'
    for _ in range(depth):
        schema = f'{{"anyOf":[{schema}]}}'
    return schema, "1"


@pytest.mark.parametrize("depth", [20, 50, 60, 100, 500, 3000])
@pytest.mark.parametrize("kind", [deep_object, deep_union])
def test_deep_nesting_is_compiled_or_refused_by_the_limit(
    echo: Live, kind: Any, depth: int
) -> None:
    schema, text = kind(depth)
    body = json.dumps(chat_body(text, max_tokens=400))[:-1]
    sent = f'{body}, "response_format": {json.dumps(schema_format("HERE"))}}}'
    answer = echo.client.post(
        CHAT,
        content=sent.replace('"HERE"', schema).encode(),
        headers={"content-type": "application/json"},
    )
    if depth <= 50:
        assert answer.json()["choices"][0]["message"]["content"] == text
    else:
        assert answer.status_code == 400
        assert re.search(r"nested deeper than .*\d+ levels", answer.json()["error"]["message"])


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "x": {"type": "number"}},
    "required": ["name", "age", "x"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    "wanted",
    [
        '{"name":"a","age":4' + "0" * 400,
        '{"name":"a","age":4,"x":3' + ".5" * 200,
        '{"name":"a","age":4,"x":3e999' + "9" * 200,
        '{"name":"a","age":4,"x":-0.' + "0" * 300,
    ],
    ids=["digits", "points", "exponent", "zeros"],
)
def test_a_number_does_not_run_away(echo: Live, wanted: str, lane: str, mode: str) -> None:
    reply = ask_chat(
        echo,
        wanted,
        stream=MODES[mode],
        fm=LANES[lane],
        max_tokens=120,
        response_format=schema_format(PERSON),
    )
    numbers = re.findall(r'(?<=[":,])-?\d[^,}]*', reply.said.text)
    assert numbers
    for number in numbers:
        assert re.fullmatch(r"-?\d{1,15}(\.\d{0,9})?", number)
    is_whole = reply.said.reasons == ["stop"]
    assert reply.usage["conformance"] == ("enforced" if is_whole else "failed")
    assert not is_whole or is_valid(PERSON, reply.said.text)


BLANKS = {str(ord(char)): 100 for char in " \n\t\r"}
"""Biases of a model that writes blanks wherever it may."""


def fruits(word: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"items": {"type": "array", "items": word, "minItems": 3}, "note": word},
        "required": ["items", "note"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lane", LANES)
def test_blanks_stand_in_strings_alone(echo: Live, lane: str, mode: str) -> None:
    def said(content: str, schema: Any, **fields: Any) -> Said:
        form = schema_format(schema)
        fields = {"max_tokens": 200, "fm": LANES[lane], "response_format": form, **fields}
        return ask_chat(echo, content, stream=MODES[mode], **fields).said

    words = fruits({"type": "string", "pattern": "^[a-z]*$"})
    compact = '{"items":["fig","kiwi","plum"],"note":"ripe"}'
    eager = said(compact, words, logit_bias=BLANKS)
    assert (eager.text, eager.reasons) == (compact, ["stop"])
    assert said("7", {"type": "integer"}, logit_bias=BLANKS).text == "7"
    spaced = '{"items":[" fig  ","\\n","a  b"],"note":"  "}'
    kept = said(spaced, fruits({"type": "string"}))
    assert (kept.text, kept.reasons) == (spaced, ["stop"])
    endless = said(compact, fruits({"type": "string"}), logit_bias=BLANKS)
    assert endless.reasons == ["length"]
    assert endless.text.startswith('{"items":["   ')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 2_000_000_000, "maxLength": 2_147_483_647},
        {
            "type": "array",
            "minItems": 1000,
            "items": {
                "type": "array",
                "minItems": 1000,
                "items": {"type": "array", "minItems": 1000, "items": {"type": "integer"}},
            },
        },
        {"type": "string", "minLength": 10**30},
        {"type": "string", "minLength": 40},
    ],
    ids=lambda schema: json.dumps(schema)[:60],
)
@pytest.mark.parametrize("stream", MODES.values(), ids=MODES)
def test_bounds_beyond_the_budget_are_refused_or_length(
    echo: Live, stream: bool, schema: Any
) -> None:
    process, answers = psutil.Process(), []
    before = process.memory_info().rss

    def ask() -> None:
        answers.append(echo.chat('"text"', stream=stream, response_format=schema_format(schema)))

    assert effort(ask) < 60
    assert process.memory_info().rss - before < 200e6
    (answer,) = answers
    if answer.status_code == 400:
        assert answer.json()["error"]["code"] == "invalid_schema"
    else:
        assert answer.status_code == 200
        assert '"length"' in answer.text
        assert '"stop"' not in answer.text


def test_a_large_enum_is_compiled_once_and_streams_go_on(echo: Live) -> None:
    values = [f"kind/of/thing/{index:04d}/{index * 7919 % 5000}" for index in range(5000)]
    text = "flowing " * 60
    body = chat_body(text, max_tokens=len(text), stream=True, return_token_ids=True)
    body["stream_options"] = {"include_usage": True}
    found: list[str] = []
    chosen: list[str] = []

    def flow() -> None:
        with httpx2.Client(base_url=echo.url, timeout=WAIT_S) as client:
            found.append(streamed(client.post(CHAT, json=body)).said.text)

    def choose(value: str) -> None:
        schema = schema_format({"enum": values})
        with httpx2.Client(base_url=echo.url, timeout=WAIT_S) as client:
            asked = chat_body(json.dumps(value), max_tokens=60, response_format=schema)
            message = client.post(CHAT, json=asked).json()["choices"][0]["message"]
            chosen.append(json.loads(message["content"]))

    before = echo.client.get("/stats").json()["grammar_cache"]
    asked = [values[0], values[-1], values[1234]]
    threads = [threading.Thread(target=flow) for _ in range(3)]
    threads += [threading.Thread(target=choose, args=(value,)) for value in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = echo.client.get("/stats").json()["grammar_cache"]
    assert found == [text] * 3
    assert sorted(chosen) == sorted(asked)
    assert after["compiles"] == before["compiles"] + 1
    assert after["hits"] == before["hits"] + 2
    assert after["seconds"] > before["seconds"]
