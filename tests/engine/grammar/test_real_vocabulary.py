"""The rules hold with the default model's vocabulary of 49,152 tokens that span JSON's own."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from engine.grammar.compile import GrammarCompiler
from engine.grammar.mask import MaskJob, fill_masks, words
from engine.models.load import load_model
from engine.request import Constraint, ConstraintKind

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 24},
        "born": {"type": "string", "format": "date"},
        "size": {"type": "number", "minimum": 0, "maximum": 10},
        "tags": {"type": "array", "items": {"enum": ["new", "newer", "old"]}, "maxItems": 3},
        "home": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "born", "size", "tags", "home"],
    "additionalProperties": False,
}
DOCUMENT = {
    "name": "Ada Lovelace, née Byron",
    "born": "1815-12-10",
    "size": 1.65,
    "tags": ["newer", "old"],
    "home": {"city": "St. James's Square 12, 伦敦 🏠", "zip": 12345},
}
TEXT = json.dumps(DOCUMENT, separators=(",", ":"), ensure_ascii=False)


@pytest.fixture(scope="module")
def model():
    return load_model("smollm2-135m")


@pytest.fixture(scope="module")
def grammar(model):
    compiler = GrammarCompiler(model.tokenizer.ll, model.vocab_size, model.eos_ids)
    return compiler.compile(Constraint(kind=ConstraintKind.JSON_SCHEMA, value=SCHEMA))


def masks(model, jobs, num_rows):
    bitmask = np.empty((num_rows, words(model.vocab_size)), dtype=np.int32)
    assert fill_masks(jobs, bitmask) == []
    return bitmask


def test_a_document_is_accepted_as_the_tokenizer_writes_it(model, grammar):
    tokens = model.tokenizer.encode(TEXT)
    state = grammar.start()

    assert state.legal_prefix(tokens) == len(tokens)
    state.advance(tokens)
    assert state.is_finished
    assert state.check_text(TEXT) == "enforced"


def test_control_tokens_are_never_legal_and_ends_only_at_the_end(model, grammar):
    tokens = model.tokenizer.encode(TEXT)
    bits = np.unpackbits(
        masks(model, [MaskJob(grammar.start(), 0, tokens)], len(tokens) + 1).view(np.uint8),
        axis=1,
        bitorder="little",
    )

    others = sorted(model.tokenizer.special_ids - model.eos_ids)
    assert not bits[:, others].any()
    assert not bits[:-1, sorted(model.eos_ids)].any()
    assert np.flatnonzero(bits[-1]).tolist() == sorted(model.eos_ids)


def test_draft_masks_equal_fresh_matchers_at_every_position(model, grammar):
    tokens = model.tokenizer.encode(TEXT)
    for start in range(0, len(tokens) - 4, 3):
        draft = tokens[start : start + 4]
        found = masks(model, [MaskJob(grammar.start(tokens[:start]), 0, draft)], 5)
        for offset in range(5):
            fresh = grammar.start(tokens[: start + offset])
            assert (found[offset] == masks(model, [MaskJob(fresh, 0)], 1)[0]).all()


def test_random_documents_are_valid(model, grammar):
    random_source = random.Random(3)
    validator = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)
    for _ in range(5):
        state, tokens = grammar.start(), []
        while not state.is_finished and len(tokens) < 300:
            row = masks(model, [MaskJob(state, 0)], 1).view(np.uint8)
            legal = np.flatnonzero(np.unpackbits(row, bitorder="little"))
            tokens.append(int(random_source.choice(legal.tolist())))
            state.advance(tokens[-1:])
        if state.is_finished:
            text = model.tokenizer.decode(tokens)
            assert validator.is_valid(json.loads(text)), text
            assert state.check_text(text) == "enforced"
