"""What the mask takes for a pattern's text is one in Python's dialect and in ECMAScript's."""

from __future__ import annotations

import json
import re

import jsonschema_rs
import pytest

from engine.grammar.pattern import PatternError, narrow_pattern

PATTERNS = [
    r"^\d$", r"^\D$", r"^\w$", r"^\W$", r"^\s$", r"^\S$", r"^[^\W_]$", r"^[\D]$", r"^[^\d]$",
    r"^[\w-]$", r"^[^\s]$", r"^[\S]$", r"^[^\w\s]$", r"^[^\W\D]$", r"^[^\S]$", r"^.$",
    "^[a[]$", "^[^a[]$", "^[]a]$", "^[^]a]$", r"^[\]\\]$", "a", "", "^$", "^[.*+?]$", "^[-+]$",
    "^a|b$", "(^a)|(b$)", "^(?:a|1)$", "^[^a]$", r"^\.$", r"^\/$", r"^a\-$", "^(?P<n>a)$",
]  # fmt: skip
CHARACTERS = 'a b1_[]\\.*+?-/&"\té²٣१Ⅷ\u07c0_‿\xa0\u2003\u2029\ufeff\u180e\u0085ー\u02bc\u200d日ǅ😀'


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_dialect_refuses_what_the_mask_allows(bench, pattern):
    schema = {"type": "string", "pattern": pattern}
    second = jsonschema_rs.validator_for(schema)
    grammar = bench.compile(schema)
    texts = [*CHARACTERS, *(char + "a" for char in CHARACTERS), ""]
    allowed = [
        text for text in texts if bench.accepts(grammar, json.dumps(text, ensure_ascii=False))
    ]

    # Known: "." stands for a line separator in the mask and in Python, not in ECMAScript.
    allowed = [text for text in allowed if "." not in pattern or "\u2029" not in text]
    assert [text for text in allowed if not re.search(pattern, text)] == []
    assert [text for text in allowed if not second.is_valid(text)] == []


@pytest.mark.parametrize("pattern", PATTERNS)
def test_ascii_is_allowed_wherever_the_pattern_allows_it(bench, pattern):
    grammar = bench.compile({"type": "string", "pattern": pattern})
    texts = [chr(code) for code in range(32, 127)]

    allowed = [text for text in texts if bench.accepts(grammar, json.dumps(text))]

    assert allowed == [text for text in texts if re.search(pattern, text)]


def test_names_matched_by_a_pattern_are_held_to_its_schema(bench):
    schema = {
        "type": "object",
        "patternProperties": {r"^\w+$": {"type": "integer"}},
        "additionalProperties": False,
    }
    texts = {'{"ab_1":5}': True, '{"ab":"x"}': False, '{"a b":5}': False, "{}": True}

    assert bench.verdicts(schema, list(texts)) == texts


@pytest.mark.parametrize(
    "pattern",
    [
        "a++",
        "a*+",
        "a?+",
        "a{1,2}+",
        "(?x)a",
        "(?ix: a )",
        "[[:alpha:]]",
        "[a&&b]",
        "[a--b]",
        "[^[a]",
        "[+--]",
    ],
)
def test_what_dialects_read_differently_is_refused(pattern):
    with pytest.raises(PatternError):
        narrow_pattern(pattern)


def test_a_name_that_matches_for_the_validator_matches_for_the_mask(bench):
    """Where other names are free, one that is missed would be held to nothing."""
    schema = {"type": "object", "patternProperties": {r"^\w+$": {"const": 1}}}
    texts = {'{"a":1}': True, '{"é٣":1}': True, '{"é٣":2}': False, '{"-":2}': True}

    assert bench.verdicts(schema, list(texts)) == texts


@pytest.mark.parametrize(
    "pattern", ["^[a-z]{2,5}$", r"^\+?[1-9]+\.$", "[*+]", r"\++", "a+|b*", "[a][b]-[-c]"]
)
def test_a_pattern_without_classes_stays_as_it_is(pattern):
    assert narrow_pattern(pattern) == pattern
