"""Documents of a workload's schemas: written by chance, allowed by a mask, taken apart."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from engine.grammar.compile import GrammarCompiler
from engine.grammar.mask import words
from engine.grammar.state import GrammarState
from engine.request import Constraint, ConstraintKind

PLAIN_DATES = "^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$"

BYTES = LLTokenizer("byte")
GRAMMARS = GrammarCompiler(BYTES, BYTES.vocab_size, frozenset({BYTES.eos_token}))


def nodes(node: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(node, Mapping):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for value in node:
            yield from nodes(value)


def keys(schema: Mapping[str, Any]) -> set[str]:
    return {key for node in nodes(schema) for key in node.get("properties", {})}


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))


def matcher(schema: Mapping[str, Any]) -> LLMatcher:
    grammar = LLMatcher.grammar_from_json_schema(
        json.dumps(schema), overrides={"whitespace_flexible": False}
    )
    assert LLMatcher.validate_grammar(grammar, BYTES) == ""
    return LLMatcher(BYTES, grammar)


def mask_allows(schema: Mapping[str, Any], text: str) -> bool:
    state, ids = matcher(schema), list(text.encode())
    if state.validate_tokens(ids) < len(ids):
        return False
    state.consume_tokens(ids)
    return bool(state.is_accepting())


def walk(schema: Mapping[str, Any], rng: random.Random, avoid: bytes = b"") -> str:
    """Return a document of random legal bytes; one of `avoid` only where nothing else is legal."""
    state, written = matcher(schema), bytearray()
    while not state.is_accepting():
        bias = state.compute_logit_bias()
        legal = [token for token in range(256) if bias[token]]
        written.append(rng.choice([token for token in legal if token not in avoid] or legal))
        assert state.consume_token(written[-1])
    return written.decode()


def with_plain_dates(node: Any) -> Any:
    """Return a schema whose dates exist in every year.

    llguidance lets 29 February pass in all of them; closing that is the engine's part.
    """
    if isinstance(node, list):
        return [with_plain_dates(value) for value in node]
    if not isinstance(node, dict):
        return node
    if node.get("format") == "date":
        return {"type": "string", "pattern": PLAIN_DATES}
    return {key: with_plain_dates(value) for key, value in node.items()}


def enforced_walk(schema: Mapping[str, Any], rng: random.Random) -> str:
    """Return a document of random bytes that the engine's grammar allows."""
    state, written = GRAMMARS.compile(constraint(schema)).start(), bytearray()
    while not state.is_finished:
        written.append(rng.choice(legal_bytes(state)))
        state.advance(written[-1:])
    text = written.decode()
    assert state.check_text(text) == "enforced", text
    return text


def legal_bytes(state: GrammarState) -> list[int]:
    rows = np.zeros((1, words(BYTES.vocab_size)), dtype=np.int32)
    assert state.fill((), rows) is None
    bits = np.unpackbits(rows.view(np.uint8), bitorder="little")[:256]
    return [int(token) for token in np.flatnonzero(bits)]


def constraint(schema: Mapping[str, Any]) -> Constraint:
    return Constraint(kind=ConstraintKind.JSON_SCHEMA, value=dict(schema))
