"""The tokenizer built from a GGUF cuts text as the one it was made from."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.errors import ModelError
from engine.models.gguf import read_gguf
from engine.models.gguf_sentencepiece import sentence_piece_backend
from engine.models.gguf_tokenizer import build_tokenizer

Build = Callable[..., Path]


def built(path: Path, num_rows: int = 262) -> Tokenizer:
    return build_tokenizer(read_gguf(path), num_rows).backend


def pieces(backend: Tokenizer, text: str) -> list[str]:
    return backend.encode(text, add_special_tokens=False).tokens


def test_merges_apply_and_bytes_fall_back(build_gguf: Build) -> None:
    backend = built(build_gguf())
    assert pieces(backend, "the the")[:2] == ["the", "Ġthe"]
    assert backend.decode(backend.encode("ďáb 日本").ids) == "ďáb 日本"


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        pytest.param("smollm", ["a", "1", "2", "3"], id="single-digits"),
        pytest.param("gpt-2", ["a", "123"], id="gpt-2"),
        pytest.param("qwen2", ["a", "1", "2", "3"], id="qwen2"),
        pytest.param("llama-bpe", ["a", "123"], id="llama-3"),
    ],
)
def test_digits_are_cut_as_the_named_pre_tokenizer_does(
    build_gguf: Build, cut: str, expected: list[str]
) -> None:
    backend = built(build_gguf(settings={"tokenizer.ggml.pre": cut}))
    assert backend.pre_tokenizer is not None
    assert [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("a123")] == expected


def test_the_files_own_end_token_comes_first_and_every_other_follows(build_gguf: Build) -> None:
    file = read_gguf(build_gguf())
    assert build_tokenizer(file, 262).eos_ids == (2, 0)


def test_a_first_token_is_added_only_where_the_file_wants_it(build_gguf: Build) -> None:
    wants = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.add_bos_token": True}
    assert built(build_gguf(settings=wants)).encode("x").ids[0] == 1
    assert built(build_gguf(settings={**wants, "tokenizer.ggml.add_bos_token": False})).encode(
        "x"
    ).ids == [built(build_gguf()).token_to_id("x")]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        pytest.param({"tokenizer.ggml.model": "bert"}, "'bert' is not supported", id="kind"),
        pytest.param({"tokenizer.ggml.pre": "chatglm"}, "'chatglm' is not supported", id="pre"),
        pytest.param({"tokenizer.ggml.merges": ["x yz"]}, "merge 'x yz'", id="merge"),
        pytest.param({"tokenizer.ggml.tokens": ["a", "a"]}, "2 tokens, 1 different", id="twice"),
        pytest.param({"tokenizer.ggml.token_type": [1, 1]}, "2 items for 262", id="types"),
        pytest.param(
            {"tokenizer.ggml.tokens": [str(number) for number in range(300)]},
            "300 tokens.* for 262 embedding rows",
            id="too-many",
        ),
        pytest.param(
            {"tokenizer.ggml.token_type": [1] * 262, "tokenizer.ggml.eos_token_id": None},
            "no end token",
            id="no-end",
        ),
    ],
)
def test_a_tokenizer_that_cannot_be_right_is_refused(
    build_gguf: Build, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        built(build_gguf(settings=settings))


WORDS = "the cat sat on the mat and the dog ran to the cat while a man read ten old books "


@pytest.fixture(scope="module")
def trained() -> sentencepiece.SentencePieceProcessor:
    """A small SentencePiece model of the kind Llama 2 uses."""
    output = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([WORDS * 3] * 20),
        model_writer=output,
        vocab_size=330,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=3,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=output.getvalue())


@pytest.fixture(scope="module")
def rebuilt(trained: sentencepiece.SentencePieceProcessor) -> Tokenizer:
    """The same from the lists a GGUF would hold."""
    ids = range(trained.get_piece_size())
    return sentence_piece_backend(
        [trained.id_to_piece(index) for index in ids],
        [trained.get_score(index) for index in ids],
        [kind_of(trained, index) for index in ids],
        has_prefix=True,
    )


def kind_of(trained: sentencepiece.SentencePieceProcessor, index: int) -> int:
    if trained.is_unknown(index):
        return 2
    if trained.is_control(index):
        return 3
    return 6 if trained.is_byte(index) else 1


@given(text=st.text("the catdogmn  é日", min_size=1, max_size=30))
def test_scores_give_the_merges_sentencepiece_makes(
    trained: sentencepiece.SentencePieceProcessor, rebuilt: Tokenizer, text: str
) -> None:
    ids = rebuilt.encode(text).ids
    assert ids == trained.encode(text)
    assert rebuilt.decode(ids) == text


def test_control_tokens_never_come_of_merges(rebuilt: Tokenizer) -> None:
    ids = rebuilt.encode("<s></s><unk>").ids
    assert not {rebuilt.token_to_id(text) for text in ("<s>", "</s>", "<unk>")} & set(ids)
