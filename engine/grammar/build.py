"""Matchers made from grammar texts, and tried once before use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.errors import FmError
from engine.grammar.limits import GrammarLimits

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_CONTROL = re.compile(r"\\u00[01]|\x7f")


class BuildError(FmError):
    """The compiler refuses a grammar; the text is its reason, one line."""


_PLAIN = r'[^"\\\x00-\x1F\x7F]'
SLICES = [_PLAIN + repeat for repeat in ("{1,10}", "{1,20}", "{1,40}", "+")]
"""Sets of tokens tested as one where a string is bounded.

Against the compiler's own {1,10}, {1,30}, + a mask of a schema of bounded strings takes 46 us
instead of 87 on average (2-core CPU, vocabulary 49,152).
"""


@dataclass(frozen=True, slots=True)
class Builder:
    """Compiles grammar texts for one tokenizer, best one made `with_slices(SLICES)`."""

    tokenizer: LLTokenizer
    limits: GrammarLimits

    def schema_grammar(self, schema_text: str) -> str:
        """Return the grammar text of a JSON schema: compact, or with a bounded run of blanks.

        Raises:
            BuildError: the compiler cannot read it.
        """
        options: JsonCompileOptions = {
            "whitespace_flexible": False,
            "lenient": False,
            "coerce_one_of": False,
        }
        if self.limits.max_blanks:
            blanks = rf"[\x20\x0A\x0D\x09]{{0,{self.limits.max_blanks}}}"
            options["whitespace_flexible"] = True
            options["whitespace_pattern"] = blanks
        if not _has_control_characters(schema_text):
            # Without \u no key can be an alias of a declared one, as "\u0061" is of "a".
            options["json_allowed_escapes"] = 'nrbtf\\"'
        try:
            return LLMatcher.grammar_from_json_schema(schema_text, overrides=options)
        except ValueError as error:
            raise BuildError(_first_line(str(error))) from error

    def matcher(self, grammar: str) -> LLMatcher:
        """Compile, and see that a first token exists and can be taken back.

        Recurses deeply: to be called on a thread of a DeepPool.

        Raises:
            BuildError: the grammar is refused, or allows nothing at all.
        """
        limits = LLParserLimits(verbose_errors=False, max_lexer_states=self.limits.max_lexer_states)
        matcher = LLMatcher(self.tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise BuildError(_first_line(matcher.get_error()))
        self._probe(matcher.deep_copy())
        return matcher

    def _probe(self, matcher: LLMatcher) -> None:
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            raise BuildError(f"allows no document: {_first_line(matcher.get_error())}")
        legal = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        ends = set(self.tokenizer.eos_tokens)
        first = next((int(token) for token in legal if int(token) not in ends), None)
        if first is None:
            if not matcher.is_accepting():
                raise BuildError("allows no document: no token may come first")
            return
        if not (matcher.consume_token(first) and matcher.rollback(1)):
            raise BuildError(_first_line(matcher.get_error()))


def _has_control_characters(schema_text: str) -> bool:
    """True when the schema names a character that JSON text can hold only as an escape."""
    return _CONTROL.search(schema_text) is not None


def _first_line(message: str) -> str:
    """Return what a message says, without the source excerpts that follow."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("error: ")), "")
    text = lines[0] if lines else "no reason given"
    return f"{text} {reason}".strip()[:300]
