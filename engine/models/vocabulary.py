"""What each token of a vocabulary is in bytes, and whether two vocabularies are one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer

from engine.errors import ModelError

SPACE_MARK = "\u2581"


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's alphabet: visible Latin-1 bytes stand for themselves, others from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in visible}
    hidden = (byte for byte in range(256) if byte not in table)
    return table | {byte: chr(256 + index) for index, byte in enumerate(hidden)}


BYTE_TO_CHAR = _byte_alphabet()
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}


def token_table(
    backend: Tokenizer, decoder: Mapping[str, Any] | None, silent: frozenset[int], num_rows: int
) -> list[bytes]:
    """Return the exact bytes of every token id below `num_rows`.

    Args:
        decoder: the "decoder" of its tokenizer.json.
        silent: ids that stand for no text; they and ids without a token become b"".

    Raises:
        ModelError: the tokenizer's decoder is neither byte-level nor SentencePiece's.
    """
    decode = DECODERS[_decoder_kind(decoder)]
    added = backend.get_added_tokens_decoder()
    table = [b""] * num_rows
    for text, index in backend.get_vocab(with_added_tokens=True).items():
        if index < num_rows and index not in silent:
            table[index] = added[index].content.encode() if index in added else decode(text)
    return table


def check_same_vocabulary(
    target: Mapping[str, int], draft: Mapping[str, int], target_name: str, draft_name: str
) -> None:
    """Raise ModelError unless both map the same texts to the same ids."""
    if target == draft:
        return
    odd = min(target.items() ^ draft.items(), key=lambda item: item[1])
    raise ModelError(
        f"drafter {draft_name!r} has another vocabulary than {target_name!r}: {len(draft)} tokens "
        f"against {len(target)}, first difference at id {odd[1]}; choose a drafter with the "
        "target's tokenizer"
    )


def _byte_level(text: str) -> bytes:
    try:
        return bytes(map(CHAR_TO_BYTE.__getitem__, text))
    except KeyError:
        return text.encode()


def _sentence_piece(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes.fromhex(text[3:5])
    return text.replace(SPACE_MARK, " ").encode()


DECODERS = {"ByteLevel": _byte_level, "ByteFallback": _sentence_piece, "Metaspace": _sentence_piece}
"""Decoder type -> bytes of a token's text."""


def _decoder_kind(decoder: Mapping[str, Any] | None) -> str:
    kinds = list(_decoder_types(decoder or {}))
    for kind in kinds:
        if kind in DECODERS:
            return kind
    raise ModelError(
        f"tokenizer decoder {'/'.join(kinds) or 'none'} is not supported; "
        f"it must be one of {', '.join(DECODERS)}"
    )


def _decoder_types(decoder: Mapping[str, Any]) -> Iterator[str]:
    if "type" in decoder:
        yield decoder["type"]
    for inner in decoder.get("decoders", ()):
        yield from _decoder_types(inner)
