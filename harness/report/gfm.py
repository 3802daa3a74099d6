"""GitHub-flavoured Markdown out of any text: a table cell shows its text and nothing else happens.

A pipe ends a cell even inside a code span, so it is written as an entity, as are direction marks,
which would disturb the source. Control characters become their pictures, which render everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from harness.report.visible import is_direction_mark, visible

_WRITTEN: dict[str, str] = {
    "|": "&#124;",
    "\\": "&#92;",
    "<": "&lt;",
    "&": "&amp;",
    "\t": "&#9;",
    **{character: f"\\{character}" for character in "`*_~"},
}
"""Characters that mean something to Markdown anywhere, and how each is written to mean itself."""

_LINE_END = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_LINK = re.compile(r":(?=//)|(?<=www)\.|\](?=\()", re.IGNORECASE)
_BLOCK_START = re.compile(r"[-+#>=\[]|\d{1,9}[.)]")


def escape(text: str) -> str:
    """Return Markdown that renders as `text` within a line; a line end becomes a blank."""
    line = visible(_LINE_END.sub(" ", text))
    start, end = len(line) - len(line.lstrip()), len(line.rstrip())
    written = "".join(map(_written, line[start:end]))
    linkless = _LINK.sub(lambda found: _entity(found[0]), written)
    # Blanks at the edges of a cell are not part of it, unless they are entities.
    return _entities(line[:start]) + linkless + _entities(line[max(start, end) :])


def bullets(texts: Iterable[str]) -> str:
    """Return a list with one escaped text a line, none of which starts a block of its own."""
    return "\n".join(f"- {_at_line_start(escape(text))}" for text in texts)


def shorten(text: str, width: int) -> str:
    """Return at most `width` characters of a text, and how many are missing."""
    if len(text) <= width:
        return text
    return f"{text[:width]}... ({len(text) - width} more characters)"


def table(columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; every cell is escaped.

    Args:
        columns: the headings, each with whether it is aligned to the right.
    """
    rule = ["--:" if right else "---" for _, right in columns]
    lines = [[escape(heading) for heading, _ in columns], rule]
    lines += [list(map(escape, row)) for row in rows]
    assert all(len(line) == len(columns) for line in lines), "a row has another number of cells"
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code_block(text: str) -> str:
    """Return a fenced block whose fence is longer than any run of backticks in the text."""
    shown = visible(text)
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{shown}\n{fence}"


def _at_line_start(written: str) -> str:
    """Write the character that would make a heading, list or quote of a line as an entity."""
    start = _BLOCK_START.match(written)
    if start is None:
        return written
    last = start.end() - 1
    return written[:last] + _entity(written[last]) + written[last + 1 :]


def _written(character: str) -> str:
    if is_direction_mark(character):
        return _entity(character)
    return _WRITTEN.get(character, character)


def _entity(character: str) -> str:
    return f"&#{ord(character)};"


def _entities(text: str) -> str:
    return "".join(map(_entity, text))
