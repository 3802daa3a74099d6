"""From choices, regular expressions and Lark grammars to a grammar text."""

from __future__ import annotations

from llguidance import LLMatcher

from engine.errors import SchemaError
from engine.grammar.limits import GrammarLimits
from engine.models.special_names import hide_in_lark

_META = frozenset(r"\.+*?()|[]{}^$#&-~/")


def choice_grammar(value: object, limits: GrammarLimits) -> str:
    """Return the grammar of exactly the given texts.

    Raises:
        SchemaError: not a list of texts, empty, or too many of them.
    """
    choices = choices_of(value)
    if len(choices) > limits.max_enum_values:
        raise SchemaError(f"{len(choices)} choices; the limit is {limits.max_enum_values}")
    if sum(len(text.encode()) for text in choices) > limits.max_schema_bytes:
        raise SchemaError(f"the choices take more than {limits.max_schema_bytes} bytes")
    return LLMatcher.grammar_from_regex("|".join(map(_literal, choices)))


def choices_of(value: object) -> tuple[str, ...]:
    """Return the texts of a choice; raises SchemaError when `value` is no list of texts."""
    if not isinstance(value, list | tuple) or not value:
        raise SchemaError(f"choice is {value!r:.60}; give a list of at least one text")
    for text in value:
        if not isinstance(text, str):
            raise SchemaError(f"choice {text!r:.60} is not a text")
    return tuple(value)


def regex_grammar(value: object, limits: GrammarLimits) -> str:
    """Return the grammar of the texts a regular expression matches from end to end.

    Raises:
        SchemaError: not a text, empty, or too long.
    """
    pattern = _text(value, "regex", limits.max_pattern_bytes)
    return LLMatcher.grammar_from_regex(pattern)


def lark_grammar(value: object, limits: GrammarLimits) -> str:
    """Return the grammar of a Lark text (EBNF; llguidance's dialect).

    Raises:
        SchemaError: not a text, empty, or beyond the limits on size and rules.
    """
    text = _text(value, "grammar", limits.max_grammar_bytes)
    num_rules = sum(":" in line for line in text.splitlines())
    if num_rules > limits.max_rules:
        raise SchemaError(f"the grammar has {num_rules} rules; the limit is {limits.max_rules}")
    return LLMatcher.grammar_from_lark(hide_in_lark(text))


def _text(value: object, kind: str, max_bytes: int) -> str:
    if not isinstance(value, str) or not value:
        raise SchemaError(f"{kind} is {value!r:.60}; give a text that is not empty")
    if len(value.encode()) > max_bytes:
        raise SchemaError(f"the {kind} takes {len(value.encode())} bytes; the limit is {max_bytes}")
    return value


def _literal(text: str) -> str:
    return "".join("\\" + char if char in _META else char for char in text)
