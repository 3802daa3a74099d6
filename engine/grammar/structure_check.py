"""The final check of free text with structures: read from left to right, by another route."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from llguidance import LLTokenizer

from engine.grammar.document import SchemaDocument
from engine.grammar.structures import Structures
from engine.grammar.text_check import SchemaCheck
from engine.models.special_names import ControlTokens

DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class StructureCheck:
    """Judges texts: every structure is whole, its document valid, and no trigger stands elsewhere.

    Args:
        checks: of each structure's schema, and last of the document's if there is one.
    """

    tag: Structures
    checks: tuple[SchemaCheck, ...]

    @classmethod
    def of(cls, tag: Structures, documents: Sequence[SchemaDocument]) -> StructureCheck:
        """Build the check from documents that are known to be schemas."""
        return cls(tag, tuple(map(SchemaCheck.of, documents)))

    def accepts(self, text: str) -> bool:
        """Decide whether a whole text conforms."""
        if self.tag.document is not None and self.checks[-1].accepts(text):
            return True
        place, found = 0, 0
        while True:
            start = self._next(text, place)
            if start is None:
                return self._ends(text[place:], found)
            end = self._structure(text, start)
            may_follow = not (found and self.tag.stop_after_first)
            if end is None or not may_follow or not self._separates(text[place:start], found):
                return False
            place, found = end, found + 1

    def _next(self, text: str, place: int) -> int | None:
        """Return where the next structure has to begin: at the trigger that is whole first."""
        if not self.tag.text:
            starts = tuple(structure.begin for structure in self.tag.structures)
            behind = place + 1 if place and text.startswith("\n", place) else place
            return next((at for at in (place, behind) if text.startswith(starts, at)), None)
        places = [(text.find(item, place), len(item)) for item in self.tag.triggers]
        ends = [(at + length, at) for at, length in places if at >= 0]
        return min(ends)[1] if ends else None

    def _structure(self, text: str, start: int) -> int | None:
        """Return where the structure at `start` ends; None when there is no whole, valid one."""
        for structure, check in zip(self.tag.structures, self.checks, strict=False):
            inner = start + len(structure.begin)
            if not text.startswith(structure.begin, start):
                continue
            try:
                _, end = DECODER.raw_decode(text, inner)
            except (ValueError, RecursionError):
                continue
            if text.startswith(structure.end, end) and check.accepts(text[inner:end]):
                return end + len(structure.end)
        return None

    def _separates(self, between: str, found: int) -> bool:
        return self.tag.text or between in (("", "\n") if found else ("",))

    def _ends(self, rest: str, found: int) -> bool:
        """Decide whether a reply may end with `rest`, which holds no structure."""
        tag = self.tag
        if not found and (tag.at_least_one or tag.document is not None):
            return False
        if rest and found and tag.stop_after_first:
            return False
        return tag.text or not rest


class Spelling:
    """Token ids as text, control tokens by their names."""

    def __init__(self, tokenizer: LLTokenizer, controls: ControlTokens) -> None:
        self._tokenizer = tokenizer
        self._names = {token: name.encode() for name, token in controls.ids.items()}
        self._silent = controls.silent

    def text(self, tokens: Sequence[int]) -> str:
        """Return every token's text, or name."""
        return b"".join(map(self._bytes, tokens)).decode("utf-8", "replace")

    def visible(self, tokens: Sequence[int]) -> str:
        """Return what a reader sees of it: control tokens are often silent."""
        return self.text([token for token in tokens if token not in self._silent])

    def _bytes(self, token: int) -> bytes:
        name = self._names.get(token)
        return self._tokenizer.decode_bytes([token]) if name is None else name
