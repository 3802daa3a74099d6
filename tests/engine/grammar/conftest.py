"""A small byte-level tokenizer, and what tests ask of a grammar."""

from __future__ import annotations

import json

import pytest
from llguidance import LLTokenizer, TokenizerWrapper

from engine.errors import RowError
from engine.grammar.compile import CompiledGrammar, GrammarCompiler
from engine.grammar.limits import GrammarLimits
from engine.models.special_names import ControlTokens, hidden_name
from engine.request import Constraint, ConstraintKind

MERGED = ('{"', '":"', '","', '":', '"}', "true", "false", "null", "  ", "00", "12", "na", "name")
NUM_ENDS = 2


class ByteVocabulary:
    """256 byte tokens, some longer ones, two end tokens; encodes by the longest match."""

    def __init__(self) -> None:
        self.tokens = [bytes([value]) for value in range(256)] + [text.encode() for text in MERGED]
        self._ids = {token: index for index, token in enumerate(self.tokens)}
        self.special_token_ids = [len(self.tokens) + index for index in range(NUM_ENDS)]
        self.tokens += [hidden_name(f"<|end{index}|>").encode() for index in range(NUM_ENDS)]
        self.eos_token_id = self.special_token_ids[0]
        self.bos_token_id = None

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        found, position = [], 0
        while position < len(data):
            length = next(n for n in range(5, 0, -1) if data[position : position + n] in self._ids)
            found.append(self._ids[data[position : position + length]])
            position += min(length, len(data) - position)
        return found


class Bench:
    """A compiler over the byte vocabulary, and questions about grammars by text."""

    def __init__(
        self,
        limits: GrammarLimits | None = None,
        vocab_size: int | None = None,
        ends: list[int] | None = None,
    ) -> None:
        self.vocabulary = ByteVocabulary()
        self.ends = ends or self.vocabulary.special_token_ids
        self.vocab_size = vocab_size or len(self.vocabulary.tokens)
        self.tokenizer = LLTokenizer(
            TokenizerWrapper(self.vocabulary), eos_token=self.vocabulary.special_token_ids
        )
        self.limits = limits or GrammarLimits()
        self.name_controls({})

    def name_controls(self, ids: dict[str, int], silent: frozenset[int] = frozenset()) -> None:
        """Compile from now on with control tokens that structures may name."""
        self.compiler = GrammarCompiler(
            self.tokenizer,
            self.vocab_size,
            frozenset(self.ends),
            self.limits,
            ControlTokens(ids, silent),
        )

    def encode(self, text: str | bytes) -> list[int]:
        return self.vocabulary(text)

    def compile(
        self,
        value: object,
        kind: str = ConstraintKind.JSON_SCHEMA,
        on_unsupported: str = "refuse",
    ) -> CompiledGrammar:
        constraint = Constraint(
            kind=ConstraintKind(kind), value=value, on_unsupported=on_unsupported
        )
        return self.compiler.compile(constraint)

    def accepts(self, grammar: CompiledGrammar, text: str) -> bool:
        """Decide whether a row may write `text` and end there."""
        state = grammar.start()
        tokens = self.encode(text)
        if state.legal_prefix(tokens) < len(tokens):
            return False
        try:
            state.advance(tokens)
        except RowError:
            return False
        return state.is_accepting

    def verdicts(self, value: object, texts: list[str]) -> dict[str, bool]:
        grammar = self.compile(json.loads(json.dumps(value)))
        return {text: self.accepts(grammar, text) for text in texts}


@pytest.fixture(scope="session")
def bench() -> Bench:
    return Bench()


@pytest.fixture(scope="session")
def make_bench():
    """Build a bench of one's own: `make_bench(limits, vocab_size=..., ends=...)`."""
    return Bench
