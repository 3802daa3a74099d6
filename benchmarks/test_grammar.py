"""What a grammar costs a step: `pytest benchmarks/test_grammar.py --benchmark-enable`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from llguidance import LLMatcher
from pytest_benchmark.fixture import BenchmarkFixture

from engine.grammar.build import SLICES, Builder
from engine.grammar.compile import CompiledGrammar, GrammarCompiler
from engine.grammar.limits import GrammarLimits
from engine.grammar.mask import MaskJob, apply_mask, fill_masks, words
from engine.grammar.schema_source import compile_schema
from engine.models.load import LoadedModel, load_model
from engine.reasoning import ReasoningTags
from engine.request import Constraint, ConstraintKind, Reasoning

DOCUMENT = {
    "name": "Ada Lovelace of London",
    "kind": "cat",
    "count": 1234567,
    "size": -12.3456,
    "tags": ["first one", "second", "third"],
    "day": "2024-02-29",
    "address": {"street": "Long Acre", "number": 12},
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "kind": {"enum": ["cat", "dog", "bird"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 10_000_000},
        "size": {"type": "number", "minimum": -100, "maximum": 100},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 4},
        "day": {"type": "string", "format": "date"},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
            "required": ["street", "number"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "kind", "count", "size", "tags", "day", "address"],
    "additionalProperties": False,
}
CONSTRAINT = Constraint(kind=ConstraintKind.JSON_SCHEMA, value=SCHEMA)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    """The default model."""
    return load_model("smollm2-135m")


@pytest.fixture(scope="module")
def grammar(model: LoadedModel) -> CompiledGrammar:
    """The schema, compiled."""
    return GrammarCompiler(model.tokenizer.ll, model.vocab_size, model.eos_ids).compile(CONSTRAINT)


@pytest.fixture(scope="module")
def tokens(model: LoadedModel) -> list[int]:
    """The document, as the tokenizer writes it."""
    return model.tokenizer.encode(json.dumps(DOCUMENT, separators=(",", ":")))


def test_compile(model: LoadedModel, benchmark: BenchmarkFixture) -> None:
    """Check, rewrite and compile; the tokenizer is there, the cache is empty."""
    compiler = GrammarCompiler(model.tokenizer.ll, model.vocab_size, model.eos_ids)
    number = iter(range(10**9))

    def compile_anew() -> None:
        schema = {**SCHEMA, "$comment": str(next(number))}
        compiler.compile(Constraint(kind=ConstraintKind.JSON_SCHEMA, value=schema))

    benchmark(compile_anew)


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("num_drafts", [0, 4])
def test_fill(
    model: LoadedModel,
    grammar: CompiledGrammar,
    tokens: list[int],
    num_rows: int,
    num_drafts: int,
    benchmark: BenchmarkFixture,
) -> None:
    """The masks of one step, averaged over every step of a document."""
    width = num_drafts + 1
    bitmask = np.empty((num_rows * width, words(model.vocab_size)), dtype=np.int32)
    steps = [
        [
            MaskJob(grammar.start(tokens[:start]), row * width, tokens[start : start + num_drafts])
            for row in range(num_rows)
        ]
        for start in range(len(tokens) - num_drafts)
    ]

    def fill_document() -> None:
        for jobs in steps:
            fill_masks(jobs, bitmask)

    benchmark.extra_info["steps"] = len(steps)
    benchmark(fill_document)


def test_cut_a_draft(
    grammar: CompiledGrammar, tokens: list[int], benchmark: BenchmarkFixture
) -> None:
    """Four drafted tokens cut to their legal prefix."""
    benchmark(grammar.start(tokens[:20]).legal_prefix, tokens[20:24])


def test_start(grammar: CompiledGrammar, benchmark: BenchmarkFixture) -> None:
    """A new row."""
    benchmark(grammar.start)


def test_check(
    grammar: CompiledGrammar, tokens: list[int], model: LoadedModel, benchmark: BenchmarkFixture
) -> None:
    """The final check of a document."""
    check: Callable[[str], str] = grammar.start(tokens).check_text
    benchmark(check, model.tokenizer.decode(tokens))


@pytest.mark.parametrize("num_rows", [1, 5, 20])
def test_apply(
    model: LoadedModel,
    grammar: CompiledGrammar,
    tokens: list[int],
    num_rows: int,
    benchmark: BenchmarkFixture,
) -> None:
    """Upload the bitmask of a stretch of the document and mask float32 logits with it."""
    bitmask = np.empty((num_rows, words(model.vocab_size)), dtype=np.int32)
    fill_masks([MaskJob(grammar.start(tokens[:5]), 0, tokens[5 : 4 + num_rows])], bitmask)
    logits = mx.random.normal((num_rows, model.vocab_size))
    mx.eval(logits)

    benchmark(lambda: mx.eval(apply_mask(logits, mx.array(bitmask))))


THOUGHTS = "She lives in London, so the address is there; the number is 12, as it says above. "
TAG = ReasoningTags((5,), (6,))
"""Two special tokens of the vocabulary stand for the tags: the default model has none."""


@pytest.fixture(scope="module")
def builder(model: LoadedModel) -> Builder:
    """The compiler itself, without a cache."""
    return Builder(model.tokenizer.ll.with_slices(SLICES), GrammarLimits())


def composed(builder: Builder) -> LLMatcher:
    """Reasoning and document in one grammar: what engine.grammar.behind is the other way to."""
    source = json.loads(compile_schema(SCHEMA, False, builder).grammar)
    lark = f"start: TEXT <[{TAG.closing[0]}]> @document\nTEXT: /(?s:.*)/\n"
    document = {"name": "document", "json_schema": source["grammars"][0]["json_schema"]}
    return builder.matcher(json.dumps({"grammars": [{"lark_grammar": lark}, document]}))


@pytest.mark.parametrize("way", ["behind", "composed"])
@pytest.mark.parametrize("num_drafts", [0, 4])
def test_fill_inside_reasoning(
    model: LoadedModel,
    grammar: CompiledGrammar,
    builder: Builder,
    way: str,
    num_drafts: int,
    benchmark: BenchmarkFixture,
) -> None:
    """The masks of one step of a row that still reasons, averaged over a sentence."""
    ids = model.tokenizer.encode(THOUGHTS)
    rows = np.empty((num_drafts + 1, words(model.vocab_size)), dtype=np.int32)
    drafts = [ids[start : start + num_drafts] for start in range(len(ids) - num_drafts)]
    if way == "behind":
        states = [
            grammar.start_behind(TAG, Reasoning.OPEN, ids[:start]) for start in range(len(drafts))
        ]

        def fill() -> None:
            for state, draft in zip(states, drafts, strict=True):
                state.fill(draft, rows)
    else:
        matchers = []
        template = composed(builder)
        for start in range(len(drafts)):
            matcher = template.deep_copy()
            assert matcher.consume_tokens(ids[:start])
            matchers.append(matcher)

        def fill() -> None:
            for matcher, draft in zip(matchers, drafts, strict=True):
                for index, row in enumerate(rows):
                    matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
                    if index < len(draft):
                        matcher.consume_token(draft[index])
                matcher.rollback(len(draft))

    benchmark.extra_info["steps"] = len(drafts)
    benchmark(fill)


def test_compile_composed(builder: Builder, benchmark: BenchmarkFixture) -> None:
    """A constraint's second grammar, were reasoning part of it."""
    benchmark(composed, builder)


STRUCTURES = [
    {
        "begin": f'<tool_call>\n{{"name": "tool{index}", "arguments": ',
        "schema": {**SCHEMA, "title": str(index)},
        "end": "}\n</tool_call>",
    }
    for index in range(8)
]
TOOLS = Constraint(
    kind=ConstraintKind.STRUCTURAL_TAG,
    value={"structures": STRUCTURES, "triggers": ["<tool_call>"]},
)


def test_compile_structures(model: LoadedModel, benchmark: BenchmarkFixture) -> None:
    """Eight tools; the tokenizer is there, the cache is empty."""
    compiler = GrammarCompiler.of(model)
    number = iter(range(10**9))

    def compile_anew() -> None:
        changed = [{**item, "end": f"\n</tool_call>{next(number)}"} for item in STRUCTURES]
        value = {"structures": changed, "triggers": ["<tool_call>"]}
        compiler.compile(Constraint(kind=ConstraintKind.STRUCTURAL_TAG, value=value))

    benchmark(compile_anew)


def test_fill_in_free_text(model: LoadedModel, benchmark: BenchmarkFixture) -> None:
    """The mask of one step of a row that may call a tool, averaged over a sentence."""
    grammar = GrammarCompiler.of(model).compile(TOOLS)
    ids = model.tokenizer.encode(THOUGHTS)
    states = [grammar.start(ids[:start]) for start in range(len(ids))]
    rows = np.empty((1, words(model.vocab_size)), dtype=np.int32)

    def fill() -> None:
        for state in states:
            state.fill((), rows)

    benchmark.extra_info["steps"] = len(states)
    benchmark(fill)
