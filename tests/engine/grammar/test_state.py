"""The rules of the matcher: each was a failure somewhere."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import RowError
from engine.grammar.limits import GrammarLimits
from engine.grammar.vocabulary import words

SCHEMA = {
    "type": "object",
    "properties": {
        "k": {"enum": ["aa", "ab", "b"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["k", "n"],
    "additionalProperties": False,
}
DOCUMENT = '{"k":"ab","n":42}'
FREE = {"type": "object", "required": ["a"]}
FREE_DOCUMENT = '{"a":[1,{"b":"x y","c":null}],"d":-1.25,"e":true}'


def mask(bench, state):
    """Return the legal ids after the state's last token."""
    rows = np.full((1, words(bench.vocab_size)), -1, dtype=np.int32)
    assert state.fill((), rows) is None
    return np.flatnonzero(np.unpackbits(rows.view(np.uint8), bitorder="little")).tolist()


def test_the_end_token_is_legal_exactly_where_the_document_may_end(bench):
    state = bench.compile(SCHEMA).start()
    for token in bench.encode(DOCUMENT):
        assert not state.is_accepting
        assert not set(mask(bench, state)) & set(bench.ends)
        state.advance([token])

    assert state.is_accepting
    assert mask(bench, state) == bench.ends


def test_a_number_may_end_or_go_on(bench):
    state = bench.compile({"type": "integer", "minimum": 0, "maximum": 99}).start(bench.encode("4"))

    assert (state.is_accepting, state.is_finished) == (True, False)
    assert set(bench.ends) < set(mask(bench, state))

    state.advance(bench.encode("2"))
    assert (state.is_accepting, state.is_finished) == (True, True)


def test_every_declared_end_token_is_legal_and_no_other(bench, make_bench):
    one = make_bench(ends=bench.ends[1:])
    state = one.compile(SCHEMA).start(one.encode(DOCUMENT))

    assert mask(one, state) == bench.ends[1:]


@pytest.mark.parametrize("position", [0, 3, 9])
def test_an_end_token_is_never_fed_to_the_matcher(bench, position):
    tokens = bench.encode(DOCUMENT)
    state = bench.compile(SCHEMA).start(tokens[:position])
    before = mask(bench, state)

    with pytest.raises(RowError, match="end token"):
        state.advance([*tokens[position : position + 1], bench.ends[0]])

    assert state.num_tokens == position
    assert mask(bench, state) == before


JUNK = st.one_of(
    st.integers(-(2**70), 2**70), st.integers(-2, 300), st.sampled_from([265, 266, 267, 268, 269])
)


@given(position=st.integers(0, 10), draft=st.lists(JUNK, max_size=8))
@settings(max_examples=200)
def test_a_junk_draft_is_cut_never_raised_and_leaves_no_trace(bench, position, draft):
    tokens = bench.encode(DOCUMENT)
    state = bench.compile(SCHEMA).start(tokens[:position])
    before = mask(bench, state)

    legal = state.legal_prefix(draft)

    assert 0 <= legal <= len(draft)
    assert not set(draft[:legal]) & set(bench.ends)
    assert (mask(bench, state), state.num_tokens) == (before, min(position, len(tokens)))


@pytest.mark.parametrize(
    ("draft", "legal"),
    [
        ("", ""),
        ("```json", ""),
        ('{"k":"a\nb"', '{"k":"a'),
        (DOCUMENT, DOCUMENT),
        (DOCUMENT + "}}}}}", DOCUMENT),
        ('{"k":"aa","n":100}', '{"k":"aa","n":1'),
        ("xxxxx", ""),
    ],
)
def test_a_draft_is_legal_up_to_its_first_illegal_token(bench, draft, legal):
    found = bench.compile(SCHEMA).start().legal_prefix(bench.encode(draft))

    assert b"".join(bench.vocabulary.tokens[token] for token in bench.encode(draft)[:found]) == (
        legal.encode()
    )


def test_an_end_token_inside_a_draft_cuts_it(bench):
    tokens = bench.encode(DOCUMENT)
    state = bench.compile(SCHEMA).start()

    for end in bench.ends:
        assert state.legal_prefix([*tokens, end, end]) == len(tokens)
        assert state.legal_prefix([*tokens[:4], end, *tokens[4:]]) == 4


def test_an_emitted_token_that_is_illegal_is_an_error_and_changes_nothing(bench):
    tokens = bench.encode(DOCUMENT)
    state = bench.compile(SCHEMA).start(tokens[:4])
    before = mask(bench, state)

    with pytest.raises(RowError, match="refuses"):
        state.advance(bench.encode("\n"))

    assert (state.num_tokens, mask(bench, state)) == (4, before)
    state.advance(tokens[4:])
    assert state.is_finished


@given(data=st.data())
@settings(max_examples=60)
def test_the_state_is_a_function_of_the_emitted_tokens(bench, data):
    """However the tokens came, in bursts or one by one, with drafts looked at between."""
    schema, text = data.draw(st.sampled_from([(SCHEMA, DOCUMENT), (FREE, FREE_DOCUMENT)]))
    grammar, tokens = bench.compile(schema), bench.encode(text)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(tokens) - 1), max_size=6)))
    state = grammar.start()
    for start, stop in itertools.pairwise([0, *cuts]):
        draft = tokens[start : start + data.draw(st.integers(0, 4))]
        rows = np.empty((len(draft) + 1, words(bench.vocab_size)), dtype=np.int32)
        assert state.fill(draft, rows) is None
        state.legal_prefix([*draft, 7, -1])
        state.advance(tokens[start:stop])

    emitted = tokens[: cuts[-1]] if cuts else []
    rebuilt = grammar.start(emitted)

    assert state.num_tokens == rebuilt.num_tokens == len(emitted)
    assert mask(bench, state) == mask(bench, rebuilt)
    assert state.is_accepting == rebuilt.is_accepting


def test_advancing_by_nothing_is_nothing(bench):
    state = bench.compile(SCHEMA).start()
    state.advance([])

    assert state.num_tokens == 0


def test_a_dead_end_is_reported(bench):
    """A grammar that asks for an end token by name: it is never fed, so nothing is left."""
    grammar = bench.compile('start: "a" <|end0|> "b"', kind="lark")
    state = grammar.start(bench.encode("a"))
    rows = np.empty((1, words(bench.vocab_size)), dtype=np.int32)

    assert "dead end" in state.fill((), rows)


def test_a_failed_lexer_does_not_take_its_neighbours_along(make_bench):
    """Matchers of one grammar share a lexer: one that hits a limit spoils them all."""
    bench = make_bench(GrammarLimits(max_lexer_states=40))
    schema = {"type": "array", "items": {"type": "string", "pattern": "^(ab|cd|ef){1,30}x$"}}
    grammar = bench.compile(schema)
    short = grammar.start(bench.encode('["abx'))
    long = grammar.start()
    rows = np.empty((1, words(bench.vocab_size)), dtype=np.int32)
    errors = []
    for token in bench.encode('["' + "abcdef" * 9):
        errors.append(long.fill((), rows))
        if errors[-1]:
            break
        long.advance([token])

    assert "states" in errors[-1]
    assert grammar.is_spoiled
    assert short.fill((), rows) is None
    short.advance(bench.encode('"]'))
    assert short.is_finished
    assert bench.compile(schema) is not grammar


@pytest.mark.parametrize(
    ("text", "kind"), [(" " * 40, "blanks"), ("1" * 40, "digits"), ("\n\t" * 20, "blanks")]
)
def test_a_row_that_makes_no_progress_is_ended_with_the_reason(make_bench, text, kind):
    bench = make_bench(GrammarLimits(max_idle_bytes=30))
    state = bench.compile(r"[\s\d]*x", kind="regex").start()

    state.advance(bench.encode(text)[:10])

    with pytest.raises(RowError, match=f"no progress: more than 30 {kind}"):
        state.advance(bench.encode(text)[10:])


def test_progress_between_blanks_is_progress(make_bench):
    bench = make_bench(GrammarLimits(max_idle_bytes=30))
    state = bench.compile(r"[\sa]*", kind="regex").start()

    state.advance(bench.encode((" " * 25 + "a") * 8))

    assert state.num_tokens > 50


def test_the_verdict_of_a_finished_text(bench):
    grammar = bench.compile(SCHEMA)

    assert grammar.start(bench.encode(DOCUMENT)).check_text(DOCUMENT) == "enforced"
    assert grammar.start(bench.encode(DOCUMENT[:-1])).check_text(DOCUMENT[:-1]) == "failed"
    assert grammar.start(bench.encode(DOCUMENT)).check_text(DOCUMENT + "x") == "failed"


def test_the_state_needs_no_tensors():
    code = "import sys, engine.grammar.state; sys.exit('mlx.core' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
