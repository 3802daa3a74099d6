"""Text from outside, made harmless: nothing in it moves the cursor, rings or hides."""

from __future__ import annotations

import unicodedata

_DELETE = "\x7f"
_KEPT = "\t\n"

MAX_LINE = 300


def visible(text: str) -> str:
    """Return the text with its control characters as pictures, tabs and line ends kept.

    A surrogate that UTF-8 cannot carry becomes its escape.
    """
    encodable = text.encode("utf-8", "backslashreplace").decode()
    return "".join(
        _picture(character)
        if unicodedata.category(character) == "Cc" and character not in _KEPT
        else character
        for character in encodable
    )


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


def _picture(character: str) -> str:
    if character == _DELETE:
        return "\u2421"
    return chr(0x2400 + ord(character)) if character < " " else "\ufffd"
