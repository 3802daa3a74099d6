"""Charts as rows: a label, a drawing as wide as there is room for, and its numbers.

Drawings measure their width in percent, so they need no script to fit a phone or a printed page.
A chart is a table for those who hear the page; roles say so, since its rows are laid out as grids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.report.html.element import Attributes, Content, Element, el
from harness.report.html.scale import percent


@dataclass(frozen=True, slots=True)
class Part:
    """One cell of a row: its kind (a class of the style sheet), and the heading it stands under."""

    kind: str
    heading: Content
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart of rows.

    Args:
        kind: class of the style sheet that says how its rows are laid out.
        label: what it shows, for those who hear the page.
        rows: as many contents a row as there are parts.
    """

    kind: str
    label: str
    parts: Sequence[Part]
    rows: Sequence[Sequence[Content]]

    def element(self) -> Element:
        """Return the element."""
        heads = [_part("columnheader", part, part.heading) for part in self.parts]
        body = [self._row(row) for row in self.rows]
        return el(
            "div",
            {"class": f"chart {self.kind}", "role": "table", "aria-label": self.label},
            el("div", {"class": "row head", "role": "row"}, heads),
            body,
        )

    def _row(self, row: Sequence[Content]) -> Element:
        parts = [
            _part("cell" if at else "rowheader", part, content)
            for at, (part, content) in enumerate(zip(self.parts, row, strict=True))
        ]
        return el("div", {"class": "row", "role": "row"}, parts)


def _part(role: str, part: Part, content: Content) -> Element:
    attributes: Attributes = {"class": part.kind, "role": role, "data-label": part.label or None}
    return el("div", attributes, content)


def drawing(label: str, height: int, content: Content, width: int | None = None) -> Element:
    """Return an SVG; `label` says in words what it shows.

    Args:
        width: pixels, where there is room for them; None takes all the room there is.
    """
    attributes: Attributes = {
        "role": "img",
        "aria-label": label,
        "width": "100%" if width is None else width,
        "height": height,
    }
    return el("svg", attributes, content)


def middle(*content: Content) -> Element:
    """Return content whose pixels count from the middle of a drawing, however high that is."""
    return el("svg", {"class": "middle", "y": "50%"}, content)


def band(kind: str, left: float, right: float) -> Element:
    """Return a stripe from left to right, in percent of the width, as high as the drawing."""
    place = {"x": percent(left), "width": percent(right - left), "height": "100%"}
    return el("rect", {"class": kind, **place})


def bar(kind: str, left: float, width: float, top: float, height: float, told: str = "") -> Element:
    """Return a bar, which tells its value when it is pointed at."""
    place = {
        "x": percent(left),
        "width": percent(width),
        "y": _short(top),
        "height": _short(height),
    }
    return el("rect", {"class": kind, **place}, el("title", None, told) if told else None)


def upright(kind: str, at: float) -> Element:
    """Return a vertical line as high as the drawing."""
    ends = {"x1": percent(at), "x2": percent(at), "y1": "0", "y2": "100%"}
    return el("line", {"class": kind, **ends})


def segment(kind: str, start: tuple[float, float], end: tuple[float, float]) -> Element:
    """Return a line between two points: percent of the width, and pixels from above."""
    ends = {
        "x1": percent(start[0]),
        "y1": _short(start[1]),
        "x2": percent(end[0]),
        "y2": _short(end[1]),
    }
    return el("line", {"class": kind, **ends})


def dot(kind: str, at: float, y: float, radius: float, told: str = "") -> Element:
    """Return a dot, which tells its value when it is pointed at."""
    place = {"cx": percent(at), "cy": _short(y), "r": _short(radius)}
    return el("circle", {"class": kind, **place}, el("title", None, told) if told else None)


def written(kind: str, at: float, y: float, text: str, anchor: str = "middle") -> Element:
    """Return a text in a drawing; anchor is start, middle or end."""
    place = {"x": percent(at), "y": _short(y), "text-anchor": anchor}
    return el("text", {"class": kind, **place}, text)


def key(items: Iterable[tuple[str, str]]) -> Element:
    """Return what the marks mean: pairs of a class of the style sheet and its meaning."""
    return el(
        "ul",
        {"class": "key"},
        [el("li", None, el("span", {"class": f"mark {kind}"}), text) for kind, text in items],
    )


def _short(pixels: float) -> str:
    return f"{pixels:.1f}".removesuffix(".0")
