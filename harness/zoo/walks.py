"""Random legal walks: documents written by chance, one legal token after the other, by no model.

Chance alone rarely closes a document, so tokens that close something become likelier as a walk
grows. What is legal is the mask's word alone; nothing here knows the schema.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from engine.grammar.compile import CompiledGrammar
from engine.grammar.vocabulary import words
from engine.models.tokenizer import Tokenizer

MAX_WALK_TOKENS = 400
PATIENCE_TOKENS = 24
"""After so many tokens a walk prefers what closes, more at every further one."""

CLOSERS = b'"]}'


@dataclass(frozen=True, slots=True)
class Walk:
    """One walk.

    Args:
        text: what was written.
        is_complete: False where the walk was cut at MAX_WALK_TOKENS.
        error: why no further token could be taken, "" for none.
        conformance: what the final check says of a complete text: "enforced", or "failed" where the
            mask let something through that only the whole shows, such as a key that stands twice.
        mask_s: host time of each mask.
    """

    token_ids: tuple[int, ...]
    text: str
    is_complete: bool
    error: str
    conformance: str
    mask_s: tuple[float, ...]


@dataclass
class Walker:
    """Walks for the grammars of one tokenizer."""

    tokenizer: Tokenizer
    vocab_size: int
    eos_ids: frozenset[int]
    rng: np.random.Generator
    max_tokens: int = MAX_WALK_TOKENS
    _row: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        self._row = np.zeros((1, words(self.vocab_size)), dtype=np.int32)

    @cached_property
    def _weights(self) -> NDArray[np.float64]:
        """How much each token closes: the share of its bytes that end something, [vocab]."""
        weights = np.zeros(32 * words(self.vocab_size))
        for token in range(self.vocab_size):
            if token not in self.eos_ids:
                text = self.tokenizer.token_bytes(token)
                closing = sum(byte in CLOSERS for byte in text)
                weights[token] = closing / len(text) if text else 0.0
        return weights

    def walk(self, grammar: CompiledGrammar) -> Walk:
        """Write one document by chance."""
        state, ids, mask_s = grammar.start(), list[int](), list[float]()
        while len(ids) < self.max_tokens:
            started_s = perf_counter()
            error = state.fill((), self._row)
            mask_s.append(perf_counter() - started_s)
            if error is not None:
                return self._walked(ids, mask_s, error=error)
            token = self._choose(len(ids))
            if token in self.eos_ids:
                text = self._text(ids)
                said = state.check_text(text)
                return Walk(tuple(ids), text, True, "", said, tuple(mask_s))
            state.advance([token])
            ids.append(token)
        return self._walked(ids, mask_s)

    def _choose(self, written: int) -> int:
        legal = np.flatnonzero(np.unpackbits(self._row.view(np.uint8), bitorder="little"))
        late = max(0, written - PATIENCE_TOKENS)
        ends = [token for token in self.eos_ids if token in legal]
        if ends and (len(ends) == len(legal) or self.rng.random() < 0.25 + 0.05 * late):
            return int(ends[0])
        others = legal[~np.isin(legal, ends)]
        weights = 1.0 + late**2 * len(others) / 64 * self._weights[others]
        return int(self.rng.choice(others, p=weights / weights.sum()))

    def _walked(self, ids: list[int], mask_s: list[float], error: str = "") -> Walk:
        return Walk(tuple(ids), self._text(ids), False, error, "", tuple(mask_s))

    def _text(self, ids: list[int]) -> str:
        data = b"".join(self.tokenizer.token_bytes(token) for token in ids)
        return data.decode("utf-8", "replace")
