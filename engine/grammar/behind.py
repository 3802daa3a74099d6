"""A constraint that begins behind the reasoning: open inside the block, a grammar after its tag.

Inside the block every token is legal but those that would end the row, so the closing tag can
always be reached; the grammar knows nothing of it, nor its watchdog. As a GrammarState it is a
pure function of emitted tokens: drafts are only looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import RowError
from engine.grammar.state import Bitmask, GrammarState
from engine.grammar.vocabulary import GrammarVocabulary
from engine.reasoning import Place, ReasoningTags, Stage
from engine.request import Reasoning


class BehindReasoning:
    """The position of one row that may begin with reasoning.

    A reply that takes the first token of the opening tag has to write the tag to its end.

    Args:
        state: the grammar at its start.
        tokens: tokens emitted so far, for a row that is rebuilt.

    Raises:
        RowError: `tokens` are not legal.
    """

    __slots__ = ("_place", "_state", "_tags", "_vocabulary")

    def __init__(
        self,
        state: GrammarState,
        vocabulary: GrammarVocabulary,
        tags: ReasoningTags,
        reasoning: Reasoning,
        tokens: Sequence[int] = (),
    ) -> None:
        self._state = state
        self._vocabulary = vocabulary
        self._tags = tags
        self._place = tags.start(reasoning)
        self.advance(tokens)

    @property
    def is_accepting(self) -> bool:
        """True when the row may end here."""
        return self._is_clear and self._state.is_accepting

    @property
    def is_finished(self) -> bool:
        """True when nothing but the end may follow."""
        return self._place.stage is Stage.CONTENT and self._state.is_finished

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many leading tokens are legal; never raises."""
        places = self._places(tokens)
        num_open = len(places) - 1
        if places[-1].stage is not Stage.CONTENT:
            return num_open
        return num_open + self._state.legal_prefix(tokens[num_open:])

    def advance(self, tokens: Sequence[int]) -> None:
        """Take emitted tokens; raises RowError when one is not legal."""
        places = self._places(tokens)
        num_open = len(places) - 1
        rest = tokens[num_open:]
        if rest and places[-1].stage is not Stage.CONTENT:
            raise RowError(f"token {rest[0]} may not stand inside reasoning or its tags")
        self._state.advance(rest)
        self._place = places[-1]

    def fill(self, draft: Sequence[int], rows: Bitmask) -> str | None:
        """Write the masks after the row's last token and after each drafted one.

        Args:
            draft: a legal prefix of drafted tokens.
            rows: [len(draft) + 1, words], C-contiguous; rows after an error are not written.

        Returns:
            None, or why a row is unusable.
        """
        places = self._places(draft)
        for place, row in zip(places, rows, strict=False):
            if place.stage is Stage.INSIDE:
                self._vocabulary.open_row(row)
            elif place.begun:
                self._vocabulary.only(self._tags.opening[len(place.begun)], row)
        num_open = len(places) - 1
        if places[-1].stage is Stage.CONTENT:
            error = self._state.fill(draft[num_open:], rows[num_open:])
            if error is not None:
                return error
        if self._place == Place(Stage.OPENING):
            if places[0] == self._place:  # else the grammar has written this row
                error = self._state.fill((), rows[:1])
                if error is not None:
                    return error
            self._vocabulary.allow(self._tags.opening[0], rows[0])
        return None

    def check_text(self, text: str) -> str:
        """Judge the row's finished text; one that never began has failed."""
        return self._state.check_text(text) if self._is_clear else "failed"

    @property
    def schema_report(self) -> Mapping[str, Any]:
        """The account of the constraint, as JSON."""
        return self._state.schema_report

    @property
    def _is_clear(self) -> bool:
        """True when the row stands where the grammar decides about its end."""
        return self._place.stage is not Stage.INSIDE and not self._place.begun

    def _places(self, tokens: Sequence[int]) -> list[Place]:
        """Return where the row stands before and after each leading token the grammar is not for.

        The last place is of stage CONTENT when the grammar is for the tokens behind them, if any.
        """
        places = [self._place]
        if self._place.stage is Stage.CONTENT:
            return places
        for token in self._vocabulary.known_prefix(tokens):
            place = self._tags.after(places[-1], token)
            if places[-1].stage is Stage.OPENING and place.stage is Stage.CONTENT:
                # no block after all: the token is the grammar's, unless a tag was begun
                if not places[-1].begun:
                    places[-1] = place
                break
            places.append(place)
            if place.stage is Stage.CONTENT:
                break
        return places
