"""Text out of token bytes as it becomes certain: whole characters, and no stop string."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Said:
    """Text of a reply that has become certain, and reasoning that has."""

    text: str = ""
    reasoning: str = ""

    def __add__(self, other: Said) -> Said:
        """Return both, one behind the other."""
        return Said(self.text + other.text, self.reasoning + other.reasoning)


class TextStream:
    """Turns one row's tokens into text, a piece at a time.

    Held back are the bytes of an unfinished character and the longest suffix that may still
    become a stop string, nothing else. All pieces together, with `finish`, are the decoded bytes
    of all tokens up to the stop string that ends first; how the bytes were cut into tokens makes
    no difference.

    Args:
        token_bytes: token id -> its exact bytes.
        stop: texts that end the row and are not part of it; none of them empty.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stop: tuple[str, ...] = ()) -> None:
        self._token_bytes = token_bytes
        self._stop = stop
        self._longest_hold = max(map(len, stop), default=1) - 1
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """True once a stop string is complete; nothing comes out after that."""
        return self._stopped

    def push(self, token_id: int) -> str:
        """Take the next token; returns the text that is now certain, often empty."""
        return self._release(self._decoder.decode(self._token_bytes(token_id)))

    def finish(self) -> str:
        """Return what was held back; an unfinished character becomes U+FFFD.

        Call it once, when the row ends; after a stop string it returns nothing.
        """
        piece = self._release(self._decoder.decode(b"", final=True))
        rest, self._held = self._held, ""
        return piece + rest

    def _release(self, new_text: str) -> str:
        if self._stopped:
            return ""
        text = self._held + new_text
        cut = self._stop_place(text)
        self._stopped = cut is not None
        if cut is None:
            cut = len(text) - self._ambiguous(text)
        self._held = "" if self._stopped else text[cut:]
        return text[:cut]

    def _stop_place(self, text: str) -> int | None:
        """Where the stop string that is complete first begins; of several, the longest."""
        places = [(text.find(stop), len(stop)) for stop in self._stop]
        ends = [(place + length, place) for place, length in places if place >= 0]
        return min(ends)[1] if ends else None

    def _ambiguous(self, text: str) -> int:
        """Length of the longest suffix that begins a stop string."""
        for length in range(min(self._longest_hold, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0
