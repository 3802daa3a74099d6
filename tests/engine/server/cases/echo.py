"""A model that wants to write what it was sent, a drafter that knows it, and their server.

What a server makes of a text can then be asked for by that text: whether a schema allows it, how
it is cut, where it ends, however its bytes are cut into tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.loop import Engine
from engine.models.load import LoadedModel
from engine.models.tokenizer import Tokenizer as OwnTokenizer
from engine.models.vocabulary import BYTE_TO_CHAR
from engine.sequence import Sequence
from engine.testing import CLEAR, ScriptedDrafter, tiny_model
from tests.engine.server.live import LANES, Live, serving

SPLIT = ("f09f", "98", "80", "20e697", "a5", "e69cac", "c4", "8f", "c3a162", "f09f91a8", "e280",
         "8df09f91a9")  # fmt: skip
"""Parts of characters, as hex."""

TEXTS = ("Hi ", "ple", "as", "User", "x<", "|im_", "end", "ab", " c", "a\ufffdb", "\ufffd",
         "\u0301", "🏳", "\ufe0f", "\u200d", "🌈", "A 世", "    ", " ,", "'s", "\r\n")  # fmt: skip

PIECES = (*(bytes.fromhex(part) for part in SPLIT), *(text.encode() for text in TEXTS))
"""Tokens of several bytes."""

BEGIN, SAY = "<|begin|>", "<|say|>"
ENDS = ("<|end|>", "<|stop|>", "<|eos|>")
SPECIAL = (BEGIN, SAY, *ENDS)
FIRST_ALIAS = 0xE100
CONTEXT = 4096
TEMPLATE = "{{ '" + BEGIN + "' + messages[-1]['content'] + '" + SAY + "' }}"


def spelled(data: bytes) -> str:
    """Bytes as a byte-level vocabulary spells them."""
    return "".join(BYTE_TO_CHAR[byte] for byte in data)


def alias(token: bytes | str) -> str:
    """The character that stands for a token in what is sent: one of PIECES, or of SPECIAL."""
    place = PIECES.index(token) if isinstance(token, bytes) else len(PIECES) + SPECIAL.index(token)
    return chr(FIRST_ALIAS + place)


def pieces(*tokens: str | bytes) -> str:
    """A content that asks for these tokens one by one; one-byte texts are tokens already."""
    sent = ""
    for token in tokens:
        if isinstance(token, str) and len(token) == 1 and token.isascii():
            sent += token
        else:
            is_name = isinstance(token, bytes) or token in SPECIAL
            sent += alias(token if is_name else str(token).encode())
    return sent


class EchoModel(Module):
    """Says what stands between BEGIN and SAY in its prompt, token by token, and ends.

    It reads the prompt out of its cache, so a slot that is wrong by one position shows. A token
    that a mask puts in place of the wanted one does not move it: the next position wants the next
    token.

    Args:
        meant: the token that each token of a prompt asks for, [vocab].
        end: the end token behind a text that names none.
    """

    def __init__(self, meant: list[int], say: int, end: int) -> None:
        init: Any = super().__init__  # has no annotations
        init()
        self.meant = mx.array(meant, dtype=mx.int32)
        self.say, self.end = say, end
        self.layers: list[None] = [None]

    def __call__(self, ids: mx.array, cache: list[Any] | None = None) -> mx.array:
        """Return logits [rows, width, vocab]."""
        seen, offset = ids, mx.zeros((ids.shape[0],), dtype=mx.int32)
        if cache is not None:
            new = ids.astype(mx.float32)[:, None, :, None]
            held, _ = cache[0].update_and_fetch(new, new)
            seen = held[:, 0, :, 0].astype(mx.int32)
            offset = offset + mx.array(cache[0].offset)
        here = offset[:, None] + mx.arange(ids.shape[1])
        said = mx.argmax(seen == self.say, axis=1)[:, None]
        wanted = 1 + here - said
        is_text = (said >= 1) & (said <= here) & (wanted < said)
        found = mx.take_along_axis(seen, mx.where(is_text, wanted, 0), axis=1)
        token = mx.where(is_text, self.meant[found], self.end)
        return (mx.arange(self.meant.shape[0]) == token[..., None]).astype(mx.float32) * CLEAR


@cache
def echo_model() -> LoadedModel:
    """The model with its tokenizer: bytes, PIECES, an alias of each piece and special token."""
    backend = _backend()
    vocabulary = backend.get_vocab(with_added_tokens=True)
    size = len(vocabulary)
    meant = list(range(size))
    for token in (*PIECES, *SPECIAL):
        name = spelled(token) if isinstance(token, bytes) else token
        meant[vocabulary[spelled(alias(token).encode())]] = vocabulary[name]
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=ENDS[0])
    fast.chat_template = TEMPLATE
    ends = frozenset(vocabulary[name] for name in ENDS)
    wrapper: Any = TokenizerWrapper  # has no annotations
    tokenizer = OwnTokenizer(wrapper(fast, eos_token_ids=sorted(ends)), size, ends)
    return replace(
        tiny_model(),
        name="echo",
        model=EchoModel(meant, vocabulary[SAY], vocabulary[ENDS[0]]),
        tokenizer=tokenizer,
        eos_ids=ends,
        vocab_size=size,
        num_layers=1,
        config={"max_position_embeddings": CONTEXT},
        path=None,
    )


def _backend() -> Tokenizer:
    singles = [BYTE_TO_CHAR[byte] for byte in range(256)]
    aliases = [spelled(alias(token).encode()) for token in (*PIECES, *SPECIAL)]
    names = dict.fromkeys([*singles, *map(spelled, PIECES), *aliases])
    table = {name: index for index, name in enumerate(names)}
    backend = Tokenizer(models.BPE(table, [], ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"),  # no text adds up to a piece
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    return backend


def prompt_ids(text: str) -> list[int]:
    """The ids of a prompt that asks for a text."""
    messages = [{"role": "user", "content": text}]
    return echo_model().tokenizer.apply_chat_template(messages)


def wanted_ids(row: Sequence) -> list[int]:
    """What the model wants to say in a row, its end and junk behind it included."""
    loaded = echo_model()
    model: Any = loaded.model
    meant = model.meant.tolist()
    asked = [meant[token] for token in row.request.prompt_ids[1:-1]]
    return [*asked, model.end, *loaded.tokenizer.encode("zz")]


def knowing_drafter() -> ScriptedDrafter:
    """Knows what comes, and is wrong in the second place of every fourth proposal."""

    def propose(row: Sequence) -> list[int]:
        rest = wanted_ids(row)[row.num_emitted :]
        if row.num_emitted % 4 == 1 and len(rest) > 1:
            rest[1] = (rest[1] + 1) % echo_model().vocab_size
        return rest

    return ScriptedDrafter(propose)


@contextmanager
def echoing(**settings: Any) -> Iterator[Live]:
    """A server of the echo model that lets requests choose their lanes."""

    def opened() -> Engine:
        return Engine(echo_model(), LANES, knowing_drafter())

    with serving(opened, allow_overrides=True, **settings) as live:
        yield live
