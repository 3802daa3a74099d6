"""Where reasoning ends and the reply begins: a pure function of the emitted ids.

A tag is its token ids in sequence, as the tokenizer encodes it, and nothing else: characters that
spell a tag are text. A reply that may begin with a block does so with its very first tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from engine.request import Reasoning
from engine.text import Said, TextStream


class Stage(Enum):
    """What the next token of a row belongs to."""

    OPENING = "opening"
    INSIDE = "inside"
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands.

    Args:
        begun: the latest tokens, if a tag may be under way with them; never a whole tag.
    """

    stage: Stage
    begun: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The tags of a model's reasoning blocks, in token ids; both empty where it has none."""

    opening: tuple[int, ...] = ()
    closing: tuple[int, ...] = ()

    def start(self, reasoning: Reasoning) -> Place:
        """Return where a reply begins."""
        return Place(_FIRST[reasoning])

    def after(self, place: Place, token: int) -> Place:
        """Return where a row stands behind one more token."""
        if place.stage is Stage.CONTENT:
            return place
        read = (*place.begun, token)
        if place.stage is Stage.OPENING:
            if read == self.opening:
                return Place(Stage.INSIDE)
            is_begun = self.opening[: len(read)] == read
            return Place(Stage.OPENING, read) if is_begun else Place(Stage.CONTENT)
        if read == self.closing:
            return Place(Stage.CONTENT)
        while self.closing[: len(read)] != read:
            read = read[1:]
        return Place(Stage.INSIDE, read)


_FIRST = {
    Reasoning.NONE: Stage.CONTENT,
    Reasoning.OPEN: Stage.INSIDE,
    Reasoning.OPTIONAL: Stage.OPENING,
}

NO_TAGS = ReasoningTags()


class ReplyText:
    """Turns one row's tokens into reasoning and text, a piece at a time.

    Both are streams of their own (engine.text.TextStream): what the reasoning holds back comes out
    before the text begins, and stop strings are looked for in the text alone. Tokens that may
    still become a tag are held back until that is certain.

    Args:
        token_bytes: token id -> its exact bytes.
        stop: texts that end the row and are not part of it; none of them empty.
        reasoning: where the reply begins.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        stop: tuple[str, ...] = (),
        tags: ReasoningTags = NO_TAGS,
        reasoning: Reasoning = Reasoning.NONE,
    ) -> None:
        self._tags = tags
        self._place = tags.start(reasoning)
        self._reasoning = TextStream(token_bytes)
        self._text = TextStream(token_bytes, stop)
        self._num_read = 0
        self._reasoning_tokens = 0

    @property
    def stopped(self) -> bool:
        """True once a stop string is complete; nothing comes out after that."""
        return self._text.stopped

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the reasoning block so far, its tags included."""
        return self._reasoning_tokens

    def push(self, token_id: int) -> Said:
        """Take the next token; returns what is now certain, often nothing."""
        before, after = self._place, self._tags.after(self._place, token_id)
        self._place = after
        self._num_read += 1
        read = (*before.begun, token_id)
        certain = read[: len(read) - len(after.begun)]
        if before.stage is Stage.INSIDE:
            self._reasoning_tokens = self._num_read
            if after.stage is Stage.CONTENT:
                return Said(reasoning=self._reasoning.finish())
            return Said(reasoning=_read(self._reasoning, certain))
        if after.stage is Stage.INSIDE:
            self._reasoning_tokens = self._num_read
            return Said()
        return Said(text=_read(self._text, certain))

    def finish(self) -> Said:
        """Return what was held back; an unfinished character becomes U+FFFD.

        Call it once, when the row ends; after a stop string it returns nothing.
        """
        begun, is_inside = self._place.begun, self._place.stage is Stage.INSIDE
        stream = self._reasoning if is_inside else self._text
        rest = _read(stream, begun) + stream.finish()
        return Said(reasoning=rest) if is_inside else Said(text=rest)


def _read(stream: TextStream, tokens: tuple[int, ...]) -> str:
    return "".join(map(stream.push, tokens))
