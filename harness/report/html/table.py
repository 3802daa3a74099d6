"""Tables: real ones, which scroll in a box of their own, and whose columns a script can sort by."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.report.html.element import Attributes, Content, Element, el
from harness.report.html.words import name


@dataclass(frozen=True, slots=True)
class Column:
    """A heading; numbers are aligned to the right."""

    heading: str
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """What one cell shows.

    Args:
        key: what its column is sorted by; None comes last, whichever way.
        is_sortable: False for a column that has no order worth asking for.
    """

    content: Content
    key: float | str | None = None
    is_sortable: bool = True


_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")


def text_cell(text: str) -> Cell:
    """Return a cell that shows a name or another short text from outside."""
    return Cell(name(text), text)


def still(content: Content) -> Cell:
    """Return a cell of a column that nobody needs to sort."""
    return Cell(content, is_sortable=False)


def number_cell(shown: str, value: float | None) -> Cell:
    """Return a cell that shows a number as reports print it and is sorted by its value."""
    return Cell(shown, value)


def table(
    label: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], heads: int = 1
) -> Element:
    """Return a table in its box.

    Args:
        label: what it holds, for those who hear the page.
        heads: how many cells at the beginning of a row name it.
    """
    assert all(len(row) == len(columns) for row in rows), "a row has another number of cells"
    head = [
        el("th", {"scope": "col", "class": _kind(column)}, column.heading) for column in columns
    ]
    body = [
        el("tr", None, [_cell(cell, columns[at], at < heads) for at, cell in enumerate(row)])
        for row in rows
    ]
    return scroll_box(
        label,
        el("table", None, el("thead", None, el("tr", None, head)), el("tbody", None, body)),
    )


def scroll_box(label: str, content: Content) -> Element:
    """Return a box in which wide content scrolls, also by keyboard, while the page stays."""
    attributes: Attributes = {
        "class": "scroll",
        "role": "region",
        "aria-label": label,
        "tabindex": 0,
    }
    return el("div", attributes, content)


def _cell(cell: Cell, column: Column, is_head: bool) -> Element:
    attributes: Attributes = {
        "scope": "row" if is_head else None,
        "class": _kind(column),
        "data-sort": _key(cell),
    }
    return el("th" if is_head else "td", attributes, cell.content)


def _kind(column: Column) -> str | None:
    return "number" if column.is_number else None


def _key(cell: Cell) -> str | None:
    """Return what a script sorts by: a number to its last digit, or a text; "" comes last."""
    if not cell.is_sortable:
        return None
    if cell.key is None:
        return ""
    return cell.key if isinstance(cell.key, str) else repr(float(cell.key))


def shown_table(
    label: str, columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]], heads: int = 1
) -> Element:
    """Return a table of texts as the other reports print them, sorted by what is shown.

    Args:
        columns: the headings, each with whether it is aligned to the right.
    """
    cells = [
        [
            number_cell(text, shown_number(text)) if is_number else text_cell(text)
            for text, (_, is_number) in zip(row, columns, strict=True)
        ]
        for row in rows
    ]
    return table(label, [Column(*column) for column in columns], cells, heads)


def shown_number(text: str) -> float | None:
    """Return the number a text begins with, None for a dash."""
    found = _NUMBER.match(text)
    return None if found is None else float(found.group())
