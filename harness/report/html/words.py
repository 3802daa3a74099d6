"""Small pieces of a page that many sections share: names, verdicts, notes, addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable

from harness.report.html.element import Content, Element, el
from harness.store.index import Place

_BREAKS = re.compile(r"(?=[+@=])|(?<![/:])(?=/)")

MARKS = {"pass": "✓", "fail": "✕", "incomplete": "…"}
"""A sign beside the word of a gate's status, so that colour is not all that tells them apart."""


def name(text: str) -> Element:
    """Return a name from outside: its direction stays its own, and long ones break at `+ @ = /`."""
    first, *rest = _BREAKS.split(text)
    return el("bdi", {"class": "name"}, first, [(el("wbr"), part) for part in rest])


def place_name(place: Place) -> Content:
    """Return `cell, model on workload`."""
    return (name(place.cell), ", ", name(place.model), " on ", name(place.workload))


def cell_of(place: Place) -> Content:
    """Return the name of a cell, with its model and workload below it."""
    where = (" ", name(place.model), " on ", name(place.workload))
    return (name(place.cell), el("span", {"class": "aside below"}, where))


def status(word: str) -> Element:
    """Return the status of a gate as a sign and a word."""
    sign = el("span", {"aria-hidden": "true"}, MARKS.get(word, "?"), " ")
    return el("span", {"class": f"status status-{word}"}, sign, word)


def note(*content: Content) -> Element:
    """Return a paragraph of explanation."""
    return el("p", {"class": "note"}, *content)


def listed(items: Iterable[Content]) -> Element:
    """Return a list with one item a line."""
    return el("ul", {"class": "plain"}, [el("li", None, item) for item in items])


def unseen(text: str) -> Element:
    """Return a text for those who hear the page."""
    return el("span", {"class": "unseen"}, text)


def prose(text: str) -> Content:
    """Return a text of ours, in which backticks enclose code."""
    return [el("code", None, part) if at % 2 else part for at, part in enumerate(text.split("`"))]
