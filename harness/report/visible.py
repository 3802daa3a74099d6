"""Text from outside, made harmless: nothing in it moves the cursor, rings or hides."""

from __future__ import annotations

import unicodedata

_KEPT = "\t\n"
_PICTURES = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in _KEPT},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}
"""Every control character of Unicode, and the picture of it: those of C1 have none."""

MAX_LINE = 300


def visible(text: str) -> str:
    """Return the text with its control characters as pictures, tabs and line ends kept.

    A surrogate that UTF-8 cannot carry becomes its escape.
    """
    return text.encode("utf-8", "backslashreplace").decode().translate(_PICTURES)


def one_line(text: str) -> str:
    """Return the visible text with blanks for its tabs, line ends and direction marks."""
    return "".join(
        " " if character in _KEPT or is_direction_mark(character) else character
        for character in visible(text)
    )


def in_one_line(text: str, most: int = MAX_LINE) -> str:
    """Return the first words of a text from outside, with one blank between any two."""
    return " ".join(one_line(text[: 4 * most]).split())[:most]


def is_direction_mark(character: str) -> bool:
    """True for the invisible characters that turn the direction of what follows."""
    return unicodedata.category(character) == "Cf" and unicodedata.bidirectional(character) != "BN"
