"""Every token has exact bytes, and two vocabularies are the same or not."""

from __future__ import annotations

import json

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from engine.errors import ModelError
from engine.models.vocabulary import (
    BYTE_TO_CHAR,
    CHAR_TO_BYTE,
    check_same_vocabulary,
    token_table,
)


def backend(texts: list[str], decoder: object) -> Tokenizer:
    made = Tokenizer(models.BPE({text: index for index, text in enumerate(texts)}, []))
    made.decoder = decoder
    return made


def table(made: Tokenizer, silent: frozenset[int] = frozenset(), rows: int = 8) -> list[bytes]:
    return token_table(made, json.loads(made.to_str())["decoder"], silent, rows)


def test_the_byte_alphabet_is_one_to_one() -> None:
    assert len(set(BYTE_TO_CHAR.values())) == 256
    assert all(CHAR_TO_BYTE[BYTE_TO_CHAR[byte]] == byte for byte in range(256))
    assert (BYTE_TO_CHAR[0x20], BYTE_TO_CHAR[0x0A], BYTE_TO_CHAR[0x41]) == ("Ġ", "Ċ", "A")


def test_byte_level_tokens_are_their_bytes() -> None:
    made = backend(["Ġthe", "ðŁĺ", "Ċ", "世"], decoders.ByteLevel())
    assert table(made)[:4] == [b" the", b"\xf0\x9f\x98", b"\n", "世".encode()]


def test_sentencepiece_tokens_are_their_bytes() -> None:
    decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    made = backend(["\u2581the", "<0xF0>", "日", "<0x0A>x"], decoder)
    assert table(made)[:4] == [b" the", b"\xf0", "日".encode(), b"<0x0A>x"]


def test_added_tokens_are_their_text_and_silent_ones_nothing() -> None:
    made = backend(["a"], decoders.ByteLevel())
    made.add_tokens(["<think>", " é"])
    made.add_special_tokens([AddedToken("<|end|>", special=True)])
    found = table(made, frozenset({3}), rows=6)
    assert found == [b"a", b"<think>", " é".encode(), b"", b"", b""]


def test_an_unknown_decoder_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="WordPiece is not supported; it must be one of"):
        table(backend(["a"], decoders.WordPiece()))


def test_equal_vocabularies_pass() -> None:
    check_same_vocabulary({"a": 0, "b": 1}, {"b": 1, "a": 0}, "big", "small")


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        pytest.param({"a": 0}, "1 tokens against 2, first difference at id 1", id="fewer"),
        pytest.param({"a": 1, "b": 0}, "2 tokens against 2, first difference at id 0", id="order"),
        pytest.param({"a": 0, "c": 1}, "2 tokens against 2, first difference at id 1", id="text"),
    ],
)
def test_another_vocabulary_is_refused_with_both_sizes(draft: dict[str, int], said: str) -> None:
    with pytest.raises(ModelError, match=f"'small' has another vocabulary than 'big': {said}"):
        check_same_vocabulary({"a": 0, "b": 1}, draft, "big", "small")
