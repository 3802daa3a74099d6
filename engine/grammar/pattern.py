r"""Regular expressions of schemas: refused where dialects differ, narrowed where they overlap.

The mask reads a pattern in Rust's dialect, the validator in Python's, the standard means
ECMAScript's. A pattern that one of them cannot read is refused. `\d`, `\w`, `\s` and their
complements mean different sets in the three, so each is replaced by a set inside all of them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from enum import Enum

from engine.errors import FmError

Classes = dict[str, str]
"""Letter of a class, as in \\d -> the members of the set it stands for."""

NARROW: Classes = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r\f\v"}
"""What every dialect counts as a digit, word or space character."""

ANY = r"[^\n\r]"
"""What "." means, but for two separators that ECMAScript leaves out as well.

Without U+2028 and U+2029 too a mask of ".+" takes 57 us in place of 2 (2-core CPU).
"""

PYTHON: Classes = {"d": r"\p{Nd}", "w": r"\p{L}\p{N}_", "s": r"\s\x1c-\x1f"}
"""What the validator counts as one."""

WIDE: Classes = {
    "d": r"\p{Nd}",
    "w": r"\p{L}\p{N}\p{M}\p{Pc}",
    "s": r"\s\x1c-\x1f\x{180e}\x{feff}",
}
"""What at least one dialect counts as one."""

_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")
_PIECE = re.compile(r"\\.|\[\^?|\]|[*+?}]\+|.", re.DOTALL)


class Role(Enum):
    """What a piece of a pattern is."""

    OUTSIDE = "outside of sets"
    OPEN = "the start of a set"
    MEMBER = "in a set"
    CLOSE = "the end of a set"


class PatternError(FmError, ValueError):
    """A pattern that cannot be enforced; the text says why."""


def narrow_pattern(pattern: str) -> str:
    """Return the pattern for the mask: it matches no text that any of the dialects refuses.

    Raises:
        PatternError: not a regular expression, or one that dialects read differently.
    """
    return _checked(pattern, NARROW, WIDE)


def python_pattern(pattern: str) -> str:
    """Return the pattern for the mask as the validator reads it, no wider and no narrower.

    For the names of patternProperties: a name that does not match is held to another schema.

    Raises:
        PatternError: as narrow_pattern.
    """
    return _checked(pattern, PYTHON, PYTHON)


def _checked(pattern: str, narrow: Classes, wide: Classes) -> str:
    if _VERBOSE.search(pattern):
        raise PatternError("has the flag x, under which dialects skip different blanks")
    check_readable(pattern)
    return "".join(_translate(pattern, narrow, wide))


def check_readable(pattern: str) -> None:
    """Raise PatternError when Python's `re`, which the validator uses, does not read the pattern.

    A set that some dialects read as an operation on sets ("[[", "&&") is refused here as well:
    Python warns of it wherever it is compiled.
    """
    for (first, role), (second, next_role) in itertools.pairwise(_pieces(pattern)):
        is_nested = role is Role.OPEN and second.startswith("[")
        is_doubled = role is next_role is Role.MEMBER and first == second[:1] and first in "-&~|"
        if is_nested or is_doubled:
            raise PatternError(f"holds {first + second!r}, an operation on sets in some dialects")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternError(f"is not a regular expression the validator reads: {error}") from error


def _pieces(pattern: str) -> Iterator[tuple[str, Role]]:
    """Cut a pattern into escapes, brackets, doubled repeats and characters."""
    role = Role.OUTSIDE
    for match in _PIECE.finditer(pattern):
        piece = match.group()
        if role in (Role.OUTSIDE, Role.CLOSE):
            role = Role.OPEN if piece.startswith("[") else Role.OUTSIDE
        elif role is Role.MEMBER and piece == "]":
            role = Role.CLOSE
        else:
            role = Role.MEMBER
        yield piece, role


def _translate(pattern: str, narrow: Classes, wide: Classes) -> Iterator[str]:
    is_negated = False
    for piece, role in _pieces(pattern):
        if role is Role.OPEN:
            is_negated = piece == "[^"
        if role is Role.MEMBER:
            # In a negated set narrow becomes wide, and back.
            yield _in_set(piece, wide, narrow) if is_negated else _in_set(piece, narrow, wide)
        elif role is Role.OUTSIDE:
            yield _outside(piece, narrow, wide)
        else:
            yield piece


def _in_set(piece: str, plain: Classes, inverted: Classes) -> str:
    if piece[0] in "[]":
        return "\\" + piece[0] + piece[1:].replace("^", r"\^")
    return _class(piece, plain, inverted)


def _outside(piece: str, narrow: Classes, wide: Classes) -> str:
    if len(piece) == 2 and piece[1] == "+" and piece[0] != "\\":
        raise PatternError(f"{piece!r} is possessive in some dialects and a repeat in others")
    if piece == "." and narrow is NARROW:
        return ANY
    found = _class(piece, narrow, wide)
    return found if found == piece or found.startswith("[") else f"[{found}]"


def _class(piece: str, plain: Classes, inverted: Classes) -> str:
    """Return the members of a class, or, for a capital letter, the set outside of it."""
    letter = piece[1:]
    if piece[0] != "\\" or letter.lower() not in plain:
        return piece
    return plain[letter] if letter.islower() else f"[^{inverted[letter.lower()]}]"
