"""Special tokens under names that no text spells, for a compiler that reads names in any text.

llguidance encodes text that a grammar determines, and reads a special token's name in it as the
token: the mask of `{"const": "<|im_end|>"}` would hold nothing but the end token. A grammar that
means the token itself writes its name outside of literals, and is given the other one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

HIDDEN = "\ufdd0"
"""A character that Unicode keeps out of texts."""

_LARK = re.compile(
    r"""(?P<literal>"(?:\\.|[^"\\])*"|/(?![/*])(?:\\.|[^/\\\n])+/|//.*|\#.*)|<(?=[^\[\s<>][^\s<>]*>)"""
)
"""A literal or a comment of a Lark grammar, or the beginning of a special token's name."""


def hidden_name(name: str) -> str:
    """Return the other name of a special token; one in angle brackets stays in them."""
    return f"<{HIDDEN}{name[1:]}" if name.startswith("<") else HIDDEN + name


@dataclass(frozen=True, slots=True)
class ControlTokens:
    """The tokens that no text of a grammar matches.

    Args:
        ids: name -> token id.
        silent: those of the ids that are no part of a reply's text.
    """

    ids: Mapping[str, int] = field(default_factory=dict)
    silent: frozenset[int] = frozenset()


def hidden_tokens(settings: Any) -> list[Any]:
    """Return the added tokens of a tokenizer.json that get another name.

    To llguidance any added token in angle brackets is special, and part of no text.
    """
    return [item for item in settings["added_tokens"] if item["special"] or _is_tag(item)]


def hide_names(settings: Any) -> Any:
    """Return a tokenizer.json whose special tokens have their other names."""
    added = hidden_tokens(settings)
    for item in added:
        item["special"] = True
    names = {item["content"]: hidden_name(item["content"]) for item in added}
    return _renamed(settings, names)


def hide_in_lark(grammar: str) -> str:
    """Return a Lark grammar that names special tokens by their other names."""
    return _LARK.sub(lambda found: found["literal"] or "<" + HIDDEN, grammar)


def shown_names(message: str) -> str:
    """Return a message of the compiler with the tokens' own names."""
    return message.replace(HIDDEN, "")


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    if isinstance(value, dict):
        return {names.get(key, key): _renamed(item, names) for key, item in value.items()}
    return value


def _is_tag(added_token: Mapping[str, Any]) -> bool:
    text = added_token["content"]
    return bool(text.startswith("<") and text.endswith(">"))
