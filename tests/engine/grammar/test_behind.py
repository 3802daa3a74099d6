"""Masks of rows that may reason first: those of a draft are those of a row that has emitted it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RowError
from engine.grammar.behind import BehindReasoning
from engine.grammar.compile import GrammarCompiler
from engine.grammar.mask import words
from engine.reasoning import ReasoningTags
from engine.request import Constraint, ConstraintKind, Reasoning
from engine.testing import tiny_model

OPENING, CLOSING = 259, 260
JSON = Constraint(kind=ConstraintKind.JSON_SCHEMA, value={"required": ["a"], "type": "object"})


@cache
def choice_grammar() -> Any:
    value = ("ab", "abba", "b")
    return GrammarCompiler.of(tiny_model()).compile(
        Constraint(kind=ConstraintKind.CHOICE, value=value)
    )


STATE_TAGS = ReasoningTags((OPENING, 97), (CLOSING, 98))
STATE_IDS = st.lists(st.sampled_from([97, 98, 99, OPENING, CLOSING, 258, 10**6]), max_size=7)


def masks_of(state: BehindReasoning, draft: Sequence[int]) -> np.ndarray:
    rows = np.zeros((len(draft) + 1, words(tiny_model().vocab_size)), dtype=np.int32)
    assert state.fill(draft, rows) is None
    return rows


@given(STATE_IDS, STATE_IDS, st.sampled_from(list(Reasoning)))
def test_the_masks_of_a_draft_are_those_of_rows_that_have_emitted_it(
    emitted: list[int], draft: list[int], reasoning: Reasoning
) -> None:
    start = choice_grammar().start_behind
    emitted = emitted[: start(STATE_TAGS, reasoning).legal_prefix(emitted)]
    state = start(STATE_TAGS, reasoning, emitted)
    num_legal = state.legal_prefix(draft)
    rows = masks_of(state, draft[:num_legal])
    assert state.legal_prefix(draft) == num_legal, "looking at a draft has moved the row"
    for taken in range(num_legal + 1):
        rebuilt = start(STATE_TAGS, reasoning, [*emitted, *draft[:taken]])
        assert (rows[taken] == masks_of(rebuilt, ())).all()
        legal = np.unpackbits(rows[taken].view(np.uint8), bitorder="little").astype(bool)
        for token in (97, 98, 99, OPENING, CLOSING):
            assert legal[token] == (rebuilt.legal_prefix([token]) == 1)
        assert legal[258] == legal[256] == rebuilt.is_accepting
        assert not legal[tiny_model().vocab_size :].any()
        if rebuilt.is_finished:
            assert not legal[:256].any()


def test_a_run_of_blanks_ends_no_reasoning() -> None:
    grammar = GrammarCompiler.of(tiny_model()).compile(JSON)
    tags = tiny_model().tokenizer.tags
    state = grammar.start_behind(tags, Reasoning.OPEN, [32] * 3000 + [48] * 3000 + [CLOSING])
    assert state.legal_prefix(list(b'{"a"')) == 4
    free = GrammarCompiler.of(tiny_model()).compile(
        Constraint(kind=ConstraintKind.REGEX, value=r"[ 0-9]*x")
    )
    with pytest.raises(RowError, match="no progress"):
        free.start_behind(tags, Reasoning.OPEN, [32] * 3000 + [CLOSING] + [32] * 3000)
