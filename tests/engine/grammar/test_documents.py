"""Whatever a model writes under a mask is valid, by two validators that share no code."""

from __future__ import annotations

import json
import random

import jsonschema_rs
import numpy as np
import pytest

from engine.grammar.text_check import parse_document
from engine.grammar.vocabulary import words

CLOSED = {"additionalProperties": False}
ADDRESS = {
    "type": "object",
    "properties": {
        "street": {"type": "string", "minLength": 1, "maxLength": 12},
        "zip": {"type": "string", "pattern": r"^\d{5}(-\d{4})?$"},
        "since": {"type": "string", "format": "date"},
    },
    "required": ["street", "since"],
    **CLOSED,
}
SCHEMAS: dict[str, object] = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 10},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "score": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            "homes": {"type": "array", "items": {"$ref": "#/$defs/a"}, "maxItems": 2},
            "kind": {"enum": ["x", 1, None, True, [1], {"a": 1}]},
        },
        "required": ["name", "homes", "kind"],
        "$defs": {"a": ADDRESS},
        **CLOSED,
    },
    "free": True,
    "object": {"type": "object", "required": ["a"]},
    "typeless": {"maxLength": 3, "minimum": -2, "maxItems": 2, "maxProperties": 2},
    "tree": {
        "$ref": "#/$defs/n",
        "$defs": {
            "n": {
                "type": "object",
                "properties": {
                    "v": {"type": "number"},
                    "c": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2},
                },
                "required": ["v"],
                **CLOSED,
            }
        },
    },
    "choice of objects": {
        "oneOf": [
            {"type": "object", "properties": {"t": {"const": "a"}, "v": {}}, "required": ["t"]},
            {"type": "object", "properties": {"t": {"const": "b"}}, "required": ["t"], **CLOSED},
            {"type": "array", "prefixItems": [{"type": "boolean"}], "items": {"type": "null"}},
        ]
    },
    "merged": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
            {"properties": {"a": {"minimum": 5}, "b": {"format": "ipv4"}}, "required": ["b"]},
        ],
        "maxProperties": 2,
        "required": ["a", "b"],
    },
    "patterned": {
        "type": "object",
        "patternProperties": {"^n": {"type": "integer"}, "^s": {"type": "string"}},
        **CLOSED,
    },
    "formats": {
        "type": "array",
        "items": {
            "anyOf": [
                {"type": "string", "format": name}
                for name in ("date-time", "time", "uuid", "email", "hostname", "ipv6", "duration")
            ]
        },
        "minItems": 1,
        "maxItems": 3,
    },
    "control characters": {"enum": ["a\u0001b", "\u007f", "é\n"]},
    "draft 4": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "array",
        "items": [{"type": "number", "minimum": 1, "exclusiveMinimum": True}],
        "additionalItems": {"enum": ["x"]},
        "maxItems": 3,
    },
}


def write(bench, grammar, random_source, max_tokens=600):
    """Emit random legal tokens, closing more and more eagerly; None when it does not end."""
    state, tokens = grammar.start(), []
    rows = np.empty((1, words(bench.vocab_size)), dtype=np.int32)
    closers = [bench.encode(text)[0] for text in ('"', "}", "]", '"}')]
    for count in range(max_tokens):
        assert state.fill((), rows) is None
        legal = set(np.flatnonzero(np.unpackbits(rows.view(np.uint8), bitorder="little")).tolist())
        going_on = sorted(legal - set(bench.ends))
        if state.is_accepting and (not going_on or random_source.random() < 0.3):
            return b"".join(bench.vocabulary.tokens[token] for token in tokens).decode(), state
        closing = sorted(legal & set(closers))
        eagerness = 0.2 + count / max_tokens
        pool = closing if closing and random_source.random() < eagerness else going_on
        tokens.append(random_source.choice(pool))
        state.advance(tokens[-1:])
    return None


def has_a_key_twice(text):
    """The hole that is known: a mask cannot remember the free keys of an object."""
    try:
        parse_document(text)
    except ValueError as error:
        return "twice" in str(error)
    return False


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_finished_document_is_valid(bench, name):
    schema = SCHEMAS[name]
    grammar = bench.compile(schema)
    second = jsonschema_rs.validator_for(schema, validate_formats=True)
    random_source = random.Random(7)
    documents = [write(bench, grammar, random_source) for _ in range(25)]
    finished = [found for found in documents if found is not None and not has_a_key_twice(found[0])]

    assert len(finished) >= 20
    for text, state in finished:
        assert state.check_text(text) == "enforced", text
        assert second.is_valid(json.loads(text)), text
