r"""Regular expressions of schemas: refused where dialects differ, narrowed where they overlap.

The mask reads a pattern in Rust's dialect, the validator in Python's, the standard means
ECMAScript's. A pattern that one of them cannot read is refused. `\d`, `\w`, `\s` and their
complements mean different sets in the three, so each is replaced by a set inside all of them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator

from engine.errors import FmError

NARROW = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r\f\v"}
"""What every dialect counts as a digit, word or space character."""

WIDE = {
    "d": r"\p{Nd}",
    "w": r"\p{L}\p{N}\p{M}\p{Pc}",
    "s": r"\s\x1c-\x1f\x{180e}\x{feff}",
}
"""What at least one dialect counts as one."""

_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")
_PIECE = re.compile(r"\\.|\[\^?|\]|[*+?}]\+|.", re.DOTALL)


class PatternError(FmError, ValueError):
    """A pattern that cannot be enforced; the text says why."""


def narrow_pattern(pattern: str) -> str:
    """Return the pattern for the mask: it matches no text that any of the dialects refuses.

    Raises:
        PatternError: not a regular expression, or one that dialects read differently.
    """
    if _VERBOSE.search(pattern):
        raise PatternError("has the flag x, under which dialects skip different blanks")
    check_readable(pattern)
    return "".join(_translate(pattern))


def check_readable(pattern: str) -> None:
    """Raise PatternError when Python's `re`, which the validator uses, does not read the pattern.

    A pattern that Python warns of is none either: "[[" and "&&" in a set, which other dialects
    take for set operators.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError, FutureWarning) as error:
        raise PatternError(f"is not a regular expression the validator reads: {error}") from error


def _translate(pattern: str) -> Iterator[str]:
    in_set = is_negated = at_start = False
    for match in _PIECE.finditer(pattern):
        piece = match.group()
        if in_set:
            if piece.startswith("[") or (piece == "]" and at_start):
                piece = "\\" + piece[0] + piece[1:].replace("^", r"\^")
            elif piece == "]":
                in_set = False
            at_start = False
            yield _class(piece, is_negated) if in_set else piece
        elif piece.startswith("["):
            in_set, is_negated, at_start = True, piece == "[^", True
            yield piece
        elif len(piece) == 2 and piece[1] == "+" and piece[0] != "\\":
            raise PatternError(f"{piece!r} is possessive in some dialects and a repeat in others")
        else:
            yield _outside(piece)


def _outside(piece: str) -> str:
    letter = piece[1:]
    if piece[0] != "\\" or letter.lower() not in NARROW:
        return piece
    if letter.islower():
        return f"[{NARROW[letter]}]"
    return f"[^{WIDE[letter.lower()]}]"


def _class(piece: str, is_negated: bool) -> str:
    """Translate one member of a set; inside a negated set narrow becomes wide and back."""
    letter = piece[1:]
    if piece[0] != "\\" or letter.lower() not in NARROW:
        return piece
    if letter.islower():
        return (WIDE if is_negated else NARROW)[letter]
    return f"[^{(NARROW if is_negated else WIDE)[letter.lower()]}]"
