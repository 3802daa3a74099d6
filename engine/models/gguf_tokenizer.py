"""A tokenizer folder (tokenizer.json and its configs) made from what a GGUF says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from engine.errors import ModelError
from engine.models.gguf import INSTEAD, REMEDY, GgufFile
from engine.models.gguf_sentencepiece import sentence_piece_backend

CONTROL, USER_DEFINED = 3, 4
"""Values of `tokenizer.ggml.token_type` that mark added tokens."""

END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
END_TEXTS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "</s>")
"""Control tokens that end a turn in whatever file they appear."""

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def _byte_level() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> Any:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _byte_level()])


def _split_by(pattern: str) -> Any:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, plain])


PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "gpt-2": _byte_level,
    "default": _byte_level,
    "smollm": _single_digits,
    "llama-bpe": lambda: _split_by(LLAMA3_SPLIT),
    "llama3": lambda: _split_by(LLAMA3_SPLIT),
    "qwen2": lambda: _split_by(QWEN2_SPLIT),
}
"""`tokenizer.ggml.pre` -> how text is cut before merges apply."""


WHOLE_WORDS = ("llama-bpe", "llama3")
"""Pre-tokenizers after which a word that is a token is taken as it is, whatever the merges say."""


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """A tokenizer built from a GGUF, and the settings that go beside it."""

    backend: Tokenizer
    settings: dict[str, Any]
    eos_ids: tuple[int, ...]

    def save(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json."""
        self.backend.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(self.settings, indent=1))


def build_tokenizer(file: GgufFile, num_rows: int) -> GgufTokenizer:
    """Build the tokenizer of a GGUF file.

    Args:
        num_rows: rows of the embedding; the vocabulary must not be larger.

    Raises:
        ModelError: an unknown kind of tokenizer, or one that contradicts itself.
    """
    tokens = _texts(file, "tokenizer.ggml.tokens")
    if len(set(tokens)) != len(tokens) or not 0 < len(tokens) <= num_rows:
        raise ModelError(
            f"{file.path}: {len(tokens)} tokens, {len(set(tokens))} different, "
            f"for {num_rows} embedding rows; {REMEDY}"
        )
    kind = file.value("tokenizer.ggml.model", str)
    if kind not in BACKENDS:
        raise ModelError(
            f"{file.path}: GGUF tokenizer {kind!r} is not supported "
            f"(known: {', '.join(BACKENDS)}); {INSTEAD}"
        )
    backend = BACKENDS[kind](file, tokens)
    control = _added(file, tokens, CONTROL)
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in control])
    ordinary = _added(file, tokens, USER_DEFINED)
    backend.add_tokens([AddedToken(text, normalized=False) for text in ordinary])
    named = _named_tokens(file, tokens)
    has_bos = file.value("tokenizer.ggml.add_bos_token", bool, kind == "llama")
    if has_bos and "bos_token" in named:
        backend.post_processor = _with_bos(named["bos_token"], tokens)
    return GgufTokenizer(backend, _settings(file, named), _eos_ids(file, tokens, control))


def _byte_level_backend(file: GgufFile, tokens: Sequence[str]) -> Tokenizer:
    cut = file.value("tokenizer.ggml.pre", str, "default")
    if cut not in PRE_TOKENIZERS:
        raise ModelError(
            f"{file.path}: GGUF pre-tokenizer {cut!r} is not supported "
            f"(known: {', '.join(PRE_TOKENIZERS)}); {INSTEAD}"
        )
    ids = {text: index for index, text in enumerate(tokens)}
    merges = []
    for line in _texts(file, "tokenizer.ggml.merges"):
        left, _, right = line.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise ModelError(f"{file.path}: merge {line!r} is not in the vocabulary; {REMEDY}")
        merges.append((left, right))
    backend = Tokenizer(models.BPE(ids, merges, ignore_merges=cut in WHOLE_WORDS))
    backend.pre_tokenizer = PRE_TOKENIZERS[cut]()
    backend.decoder = decoders.ByteLevel()
    return backend


def _score_backend(file: GgufFile, tokens: Sequence[str]) -> Tokenizer:
    scores = _list_beside(file, "tokenizer.ggml.scores", tokens)
    kinds = _list_beside(file, "tokenizer.ggml.token_type", tokens)
    has_prefix = file.value("tokenizer.ggml.add_space_prefix", bool, True)
    return sentence_piece_backend(tokens, scores, kinds, has_prefix)


BACKENDS: dict[str, Callable[[GgufFile, Sequence[str]], Tokenizer]] = {
    "gpt2": _byte_level_backend,
    "llama": _score_backend,
}
"""`tokenizer.ggml.model` -> how its tokenizer is built."""


def _list_beside(file: GgufFile, key: str, tokens: Sequence[str]) -> list[Any]:
    """A metadata list with one item for each token."""
    found: list[Any] = file.value(key, list)
    if len(found) != len(tokens):
        raise ModelError(
            f"{file.path}: {key!r} has {len(found)} items for {len(tokens)} tokens; {REMEDY}"
        )
    return found


def _texts(file: GgufFile, key: str) -> list[str]:
    found = file.value(key, list)
    if not all(isinstance(item, str) for item in found):
        raise ModelError(f"{file.path}: GGUF metadata {key!r} holds more than strings; {REMEDY}")
    return list(found)


def _added(file: GgufFile, tokens: Sequence[str], wanted: int) -> list[str]:
    if "tokenizer.ggml.token_type" not in file.metadata:
        return []
    types = _list_beside(file, "tokenizer.ggml.token_type", tokens)
    return [text for text, kind in zip(tokens, types, strict=True) if kind == wanted]


def _named_tokens(file: GgufFile, tokens: Sequence[str]) -> dict[str, str]:
    """Map "bos_token", "eos_token", ... to texts, where the file names them."""
    keys = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    found = {}
    for short, long in keys.items():
        index = file.metadata.get(f"tokenizer.ggml.{long}_token_id")
        if isinstance(index, int) and index < len(tokens):
            found[f"{short}_token"] = tokens[index]
    return found


def _with_bos(text: str, tokens: Sequence[str]) -> TemplateProcessing:
    return TemplateProcessing(
        single=f"{text} $A",
        pair=f"{text} $A {text}:1 $B:1",
        special_tokens=[(text, tokens.index(text))],
    )


def _settings(file: GgufFile, named: dict[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **named,
    }
    template = file.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        settings["chat_template"] = template
    return settings


def _eos_ids(file: GgufFile, tokens: Sequence[str], control: Sequence[str]) -> tuple[int, ...]:
    """The file's own end token first, then every other one that ends a turn."""
    named = [file.metadata.get(f"tokenizer.ggml.{key}") for key in END_KEYS]
    found = [index for index in named if isinstance(index, int) and index < len(tokens)]
    found += [tokens.index(text) for text in END_TEXTS if text in control]
    if not found:
        raise ModelError(f"{file.path}: the GGUF names no end token; {REMEDY}")
    return tuple(dict.fromkeys(found))
