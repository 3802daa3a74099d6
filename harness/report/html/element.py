"""HTML elements that escape by construction: whatever text goes in, only that text comes out.

There is no way to write markup but through `el`, which knows a closed set of elements and
attributes: none of them runs code, loads anything or leads out of the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from harness.report.visible import is_direction_mark, visible

HTML_TAGS = frozenset(
    "a bdi body br caption code dd details div dl dt figcaption figure footer h1 h2 h3 h4 head "
    "header html li link main meta nav ol p pre section span strong summary table tbody td th "
    "thead title tr ul wbr".split()
)
SVG_TAGS = frozenset("circle g line path polygon rect svg text".split())
"""`title` is of both; in an SVG it is what a pointer shows."""

ATTRIBUTES = frozenset(
    "aria-describedby aria-hidden aria-label aria-labelledby charset class colspan content cx cy d "
    "data-label data-sort dir height href http-equiv id lang name open points r rel role scope "
    "tabindex text-anchor viewBox width x x1 x2 y y1 y2".split()
)
VOID = frozenset("br link meta wbr".split())
OWN_LINE = frozenset(
    "body caption dd details div dl dt figcaption figure footer h1 h2 h3 h4 head header html li "
    "link main meta nav ol p pre section summary svg table tbody td th thead title tr ul".split()
)
"""Elements after which a line end changes nothing that is seen."""

FAVICON = "data:,"
"""The one address that is no place in the page: an empty icon, so that none is asked for."""


@dataclass(frozen=True, slots=True)
class Element:
    """One element; made by `el`."""

    tag: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Inline:
    """A style sheet or a script of the package itself, written as it is.

    Args:
        tag: `style` or `script`.
    """

    tag: str
    source: str

    def __post_init__(self) -> None:
        if self.tag not in ("style", "script"):
            raise ValueError(f"<{self.tag}> holds no source; use el")
        if "</" in self.source or "<!--" in self.source:
            raise ValueError(f"the source of <{self.tag}> would end it; write < apart from / and !")


Node = Element | Inline | str
Child = Node | None
Content = Child | Iterable["Content"]
"""What may stand in an element: texts, elements, None for nothing, and any nesting of them."""


Attributes = Mapping[str, str | int | None]


def el(tag: str, attributes: Attributes | None = None, *content: Content) -> Element:
    """Return an element.

    Args:
        attributes: those that are None are left out.

    Raises:
        ValueError: an element or an attribute that is not of the closed sets, or an address that
            is no place in the page.
    """
    if tag not in HTML_TAGS and tag not in SVG_TAGS:
        raise ValueError(f"<{tag}> is not an element of the reports")
    kept = tuple(
        (name, str(value)) for name, value in (attributes or {}).items() if value is not None
    )
    for name, value in kept:
        if name not in ATTRIBUTES:
            raise ValueError(f"{name!r} is not an attribute of the reports")
        if name == "href" and value != FAVICON and not value.startswith("#"):
            raise ValueError(f"href is {value!r}; reports lead only to places in themselves")
    return Element(tag, kept, tuple(flat(content)))


def flat(content: Content) -> Iterator[Node]:
    """Yield the nodes of any nesting, in order, without the Nones."""
    if content is None:
        return
    if isinstance(content, Element | Inline | str):
        yield content
    else:
        for item in content:
            yield from flat(item)


def render(node: Node) -> str:
    """Return the source of a node."""
    return "".join(_pieces(node))


def escape(text: str) -> str:
    """Return the source of a text, in an element or in double quotes.

    Control characters become their pictures; direction marks, which would disturb the source, are
    written by their numbers.
    """
    return "".join(map(_written, visible(text)))


def _pieces(node: Node) -> Iterator[str]:
    if isinstance(node, str):
        yield escape(node)
    elif isinstance(node, Inline):
        yield f"<{node.tag}>{node.source}</{node.tag}>\n"
    else:
        attributes = "".join(f' {name}="{escape(value)}"' for name, value in node.attributes)
        yield f"<{node.tag}{attributes}>"
        if node.tag not in VOID:
            for child in node.children:
                yield from _pieces(child)
            yield f"</{node.tag}>"
        if node.tag in OWN_LINE:
            yield "\n"


_WRITTEN = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}


@cache
def _written(character: str) -> str:
    if is_direction_mark(character):
        return f"&#{ord(character)};"
    return _WRITTEN.get(character, character)
