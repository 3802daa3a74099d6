"""Masks of many positions equal those of fresh matchers, and what they forbid has no score."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import SettingError
from engine.grammar.mask import MaskJob, apply_mask, fill_masks, words

SCHEMA = {"type": "array", "items": {"enum": ["aa", "ab", 12, None]}, "minItems": 1}
TEXT = '["aa",12,null,"ab"]'
UNTOUCHED = 0x55555555


def legal_ids(row):
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def one_by_one(bench, grammar, tokens):
    """The mask after `tokens`, from a matcher that has seen nothing else."""
    bitmask = np.empty((1, words(bench.vocab_size)), dtype=np.int32)
    assert fill_masks([MaskJob(grammar.start(tokens), 0)], bitmask) == []
    return bitmask[0]


@given(data=st.data())
@settings(max_examples=60)
def test_all_positions_of_all_rows_equal_fresh_matchers(bench, data):
    grammar, tokens = bench.compile(SCHEMA), bench.encode(TEXT)
    starts = data.draw(st.lists(st.integers(0, len(tokens)), min_size=1, max_size=4))
    lengths = [data.draw(st.integers(0, min(5, len(tokens) - start))) for start in starts]
    jobs = []
    num_rows = 0
    for start, length in zip(starts, lengths, strict=True):
        gap = data.draw(st.integers(0, 2))
        draft = tokens[start : start + length]
        jobs.append(MaskJob(grammar.start(tokens[:start]), num_rows + gap, draft))
        num_rows += gap + length + 1
    bitmask = np.full((num_rows + 1, words(bench.vocab_size)), UNTOUCHED, dtype=np.int32)

    assert fill_masks(jobs, bitmask) == []

    written = set()
    for job, start in zip(jobs, starts, strict=True):
        assert job.state.num_tokens == start
        for offset in range(len(job.draft) + 1):
            written.add(job.row + offset)
            expected = one_by_one(bench, grammar, tokens[: start + offset])
            assert (bitmask[job.row + offset] == expected).all()
    untouched = [row for row in range(len(bitmask)) if row not in written]
    assert (bitmask[untouched] == UNTOUCHED).all()


def test_a_document_may_end_inside_a_draft(bench):
    grammar, tokens = bench.compile(SCHEMA), bench.encode(TEXT)
    state = grammar.start(tokens[:-2])
    draft = [*tokens[-2:], *bench.encode(",null")]
    draft = draft[: state.legal_prefix(draft)]
    bitmask = np.empty((len(draft) + 1, words(bench.vocab_size)), dtype=np.int32)

    assert fill_masks([MaskJob(state, 0, draft)], bitmask) == []
    assert draft == tokens[-2:]
    assert legal_ids(bitmask[-1]) == set(bench.ends)


def test_a_row_that_fails_is_named_and_the_others_are_filled(bench):
    good, bad = bench.compile(SCHEMA), bench.compile('start: "a" <|end0|>', kind="lark")
    bitmask = np.full((3, words(bench.vocab_size)), UNTOUCHED, dtype=np.int32)
    jobs = [
        MaskJob(good.start(), 0),
        MaskJob(bad.start(bench.encode("a")), 1),
        MaskJob(good.start(), 2),
    ]

    failures = fill_masks(jobs, bitmask)

    assert [index for index, _ in failures] == [1]
    assert (bitmask[0] == bitmask[2]).all()


def test_an_illegal_draft_fails_its_row_and_not_the_state(bench):
    grammar = bench.compile(SCHEMA)
    state = grammar.start()
    bitmask = np.full((2, words(bench.vocab_size)), UNTOUCHED, dtype=np.int32)

    failures = fill_masks([MaskJob(state, 0, bench.encode("x"))], bitmask)

    assert failures[0][0] == 0
    assert "not legal" in failures[0][1]
    assert (bitmask[1] == UNTOUCHED).all()
    assert fill_masks([MaskJob(state, 0, bench.encode("["))], bitmask) == []
    assert state.num_tokens == 0


@pytest.mark.parametrize("surplus", [1, 3, 31, 32, 33, 100])
def test_ids_that_only_the_logits_have_are_illegal(bench, make_bench, surplus):
    wide = make_bench(vocab_size=bench.vocab_size + surplus)
    bitmask = np.full((2, words(wide.vocab_size)), -1, dtype=np.int32)

    state = wide.compile({"type": "string"}).start(wide.encode('"'))
    assert fill_masks([MaskJob(state, 0, wide.encode('"'))], bitmask) == []

    assert max(legal_ids(bitmask[0])) < bench.vocab_size
    assert legal_ids(bitmask[1]) == set(wide.ends)


def test_an_end_token_beyond_the_tokenizer_is_still_an_end(bench, make_bench):
    beyond = bench.vocab_size + 70
    wide = make_bench(vocab_size=bench.vocab_size + 100, ends=[beyond])
    bitmask = np.full((1, words(wide.vocab_size)), -1, dtype=np.int32)

    state = wide.compile({"const": 1}).start(wide.encode("1"))
    assert fill_masks([MaskJob(state, 0)], bitmask) == []

    assert legal_ids(bitmask[0]) == {beyond}


def test_ids_that_only_the_tokenizer_has_are_illegal(bench, make_bench):
    narrow = make_bench(vocab_size=bench.vocab_size - 2, ends=[ord("~")])
    bitmask = np.full((1, words(narrow.vocab_size)), -1, dtype=np.int32)

    state = narrow.compile({"const": 1}).start(narrow.encode("1"))
    assert fill_masks([MaskJob(state, 0)], bitmask) == []

    assert legal_ids(bitmask[0]) == {ord("~")}


def test_a_tokenizer_of_another_model_is_refused(bench, make_bench):
    with pytest.raises(SettingError, match="do not belong together"):
        make_bench(vocab_size=100, ends=[1])
    with pytest.raises(SettingError, match="end tokens"):
        make_bench(ends=[bench.vocab_size])


@pytest.mark.parametrize(("vocab_size", "expected"), [(1, 1), (32, 1), (33, 2), (49152, 1536)])
def test_a_mask_takes_one_bit_a_token(vocab_size, expected):
    assert words(vocab_size) == expected


@pytest.mark.parametrize("vocab_size", [32, 33, 50, 64, 300])
@pytest.mark.parametrize("num_words", [1, 2, 10])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_an_applied_mask_equals_numpy(vocab_size, num_words, dtype):
    random = np.random.default_rng(vocab_size + num_words)
    bitmask = random.integers(-(2**31), 2**31, (4, num_words), dtype=np.int64).astype(np.int32)
    bitmask[2] = -1
    logits = mx.array(random.normal(size=(4, vocab_size)).astype(np.float32)).astype(dtype)

    masked = apply_mask(logits, mx.array(bitmask))

    legal = np.zeros((4, max(vocab_size, 32 * num_words)), dtype=bool)
    legal[:, : 32 * num_words] = np.unpackbits(bitmask.view(np.uint8), axis=1, bitorder="little")
    expected = np.where(legal[:, :vocab_size], np.array(logits.astype(mx.float32)), -np.inf)
    assert masked.dtype == dtype
    assert masked.shape == logits.shape
    assert (np.array(masked.astype(mx.float32)) == expected).all()
