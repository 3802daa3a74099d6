"""Where one row stands in its grammar: a pure function of the tokens it has emitted.

The matcher takes emitted tokens only. Drafts are looked at and taken back; the end token is kept
outside, legal exactly where the matcher accepts. mlx is not imported here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from engine.errors import RowError
from engine.grammar.report import SchemaReport
from engine.grammar.vocabulary import GrammarVocabulary

Bitmask = NDArray[np.int32]
"""[rows, words]: bit t % 32 of word t // 32 says whether token t is legal."""


class MatcherSource(Protocol):
    """What a state is started from (engine.grammar.compile.CompiledGrammar)."""

    def template(self) -> LLMatcher:
        """Return a matcher to copy."""

    def discard(self, template: LLMatcher) -> None:
        """Never return `template` again: a copy of it has failed."""

    def check_text(self, text: str, is_accepting: bool, tokens: Sequence[int]) -> str:
        """Judge a finished text, of these tokens: "enforced", "checked" or "failed"."""

    @property
    def report(self) -> SchemaReport:
        """The account of the constraint."""


class GrammarState:
    """The position of one row.

    Matchers of one grammar share a lexer. When it fails in one of them (a limit is hit), it fails
    in all; a state then starts over from a fresh compile and takes its emitted tokens again.

    Args:
        tokens: tokens emitted so far, for a row that is rebuilt.

    Raises:
        RowError: the grammar refuses `tokens`.
    """

    __slots__ = (
        "_idle_bytes",
        "_idle_kind",
        "_matcher",
        "_source",
        "_template",
        "_tokens",
        "_vocabulary",
    )

    def __init__(
        self, source: MatcherSource, vocabulary: GrammarVocabulary, tokens: Sequence[int] = ()
    ) -> None:
        self._source = source
        self._vocabulary = vocabulary
        self._template = source.template()
        self._matcher = self._template.deep_copy()
        self._tokens: list[int] = []
        self._idle_kind = ""
        self._idle_bytes = 0
        self.advance(tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens emitted."""
        return len(self._tokens)

    @property
    def is_accepting(self) -> bool:
        """True when the row may end here: the end token is legal."""
        return self._live().is_accepting()

    @property
    def is_finished(self) -> bool:
        """True when the document is complete and nothing but the end token is legal."""
        matcher = self._live()
        return matcher.is_accepting() and matcher.is_stopped() and not matcher.is_error()

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many leading tokens are legal; an end token or an unknown id is not.

        Never raises: an illegal draft is a draft to reject.
        """
        known = self._vocabulary.known_prefix(tokens)
        if not known:
            return 0
        try:
            found = self._live().validate_tokens(known)
            if self._matcher.is_error():
                found = self._live().validate_tokens(known)
        except RowError:
            return 0
        return 0 if self._matcher.is_error() else found

    def advance(self, tokens: Sequence[int]) -> None:
        """Take emitted tokens.

        Raises:
            RowError: the matcher refuses one, an end token is among them, or the row has written
                nothing but blanks, or nothing but digits, for too long.
        """
        taken = [int(token) for token in tokens]
        if not taken:
            return
        if len(self._vocabulary.known_prefix(taken)) < len(taken):
            raise RowError(f"tokens {taken} hold an end token or an id outside the vocabulary")
        if not self._live().consume_tokens(taken):
            self._restart()
            if not self._matcher.consume_tokens(taken):
                raise RowError(f"the grammar refuses tokens {taken}: {self._reason()}")
        self._tokens += taken
        self._watch(taken)

    def fill(self, draft: Sequence[int], rows: Bitmask) -> str | None:
        """Write the masks after the row's last token and after each drafted one.

        Args:
            draft: a legal prefix of drafted tokens; the state is where it was afterwards.
            rows: [len(draft) + 1, words], C-contiguous; rows after an error are not written.

        Returns:
            None, or why a row is unusable: an error of the matcher, or no legal token.
        """
        try:
            error = self._try_fill(draft, rows)
        except BaseException:
            self._restart()  # it may stand behind some of the draft
            raise
        if error is None or not self._matcher.is_error():
            return error
        try:
            self._restart()
        except RowError as failure:
            return str(failure)
        error = self._try_fill(draft, rows)
        if self._matcher.is_error():
            self._source.discard(self._template)
        return error

    def check_text(self, text: str) -> str:
        """Judge the row's finished text: "enforced", "checked" (validated after), or "failed"."""
        return self._source.check_text(text, self.is_accepting, self._tokens)

    @property
    def schema_report(self) -> Mapping[str, Any]:
        """The account of the constraint, as JSON."""
        return self._source.report.as_dict()

    def _try_fill(self, draft: Sequence[int], rows: Bitmask) -> str | None:
        matcher, num_words = self._matcher, self._vocabulary.num_words
        if rows.shape[1] > num_words:
            rows[: len(draft) + 1, num_words:] = 0
        words, address, stride = rows.data, rows.ctypes.data, rows.strides[0]
        error = self._fill_row(words, 0, address)
        num_taken = 0
        for token in draft:
            if error is not None:
                break
            if not matcher.consume_token(token):
                return f"draft token {token} is not legal: {self._reason()}"
            num_taken += 1
            error = self._fill_row(words, num_taken, address + num_taken * stride)
        if num_taken and not matcher.is_error() and not matcher.rollback(num_taken):
            return self._reason()
        return error

    def _fill_row(self, rows: memoryview, index: int, address: int) -> str | None:
        matcher = self._matcher
        matcher.unsafe_compute_mask_ptr(address, 4 * self._vocabulary.num_words)
        # In an error the mask looks like the end of a document, and nothing is raised.
        if matcher.is_error():
            return self._reason()
        was_cleared = self._vocabulary.set_ends(rows, index, matcher.is_accepting())
        if was_cleared and not any(rows[index, word] for word in range(self._vocabulary.num_words)):
            return "dead end: no token is legal and the document is not complete"
        return None

    def _live(self) -> LLMatcher:
        """Return the matcher, started over when a neighbour's failure has spoiled it."""
        if self._matcher.is_error():
            self._restart()
        return self._matcher

    def _restart(self) -> None:
        self._source.discard(self._template)
        self._template = self._source.template()
        self._matcher = self._template.deep_copy()
        if self._tokens:
            self._matcher.consume_tokens(self._tokens)

    def _reason(self) -> str:
        lines = self._matcher.get_error().splitlines()
        return lines[0][:200] if lines else "no reason given"

    def _watch(self, taken: Sequence[int]) -> None:
        """End a row that makes no progress: only blanks, or only digits, without an end."""
        for token in taken:
            kind, num_bytes = self._vocabulary.idle_kind(token)
            self._idle_bytes = num_bytes + (self._idle_bytes if kind == self._idle_kind else 0)
            self._idle_kind = kind
        limit = self._vocabulary.max_idle_bytes
        if self._idle_kind and self._idle_bytes > limit:
            raise RowError(
                f"no progress: more than {limit} {self._idle_kind} in one run; "
                "the model repeats itself"
            )
