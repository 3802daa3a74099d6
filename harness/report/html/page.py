"""The whole page: one file that asks for nothing, and a policy that would forbid it to."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

from harness.report.figures import RunReport
from harness.report.html import checks, frame, mechanisms
from harness.report.html.composition import composition
from harness.report.html.element import FAVICON, Content, Element, Inline, el, render
from harness.report.html.failures import failures
from harness.report.html.steps import steps


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the report, with its address."""

    address: str
    heading: str
    content: Callable[[RunReport], Content]


SECTIONS = (
    Section("gates", "Gates", checks.gates),
    Section("composition", "Composition", composition),
    Section("grammar", "Grammar", mechanisms.grammar),
    Section("acceptance", "Acceptance by position", mechanisms.acceptance),
    Section("steps", "Where a step's time goes", steps),
    Section("routing", "Routing checks", checks.routing),
    Section("failures", "Failures and skips", failures),
    Section("environment", "Environment", frame.environment),
    Section("reproduce", "How to reproduce", frame.reproduce),
)
"""The parts below the banner, in the order in which they are read."""


def to_html(report: RunReport) -> str:
    """Return the whole report as one HTML file, ending in a line end."""
    style, script = _inline("style", "report.css"), _inline("script", "report.js")
    head = el(
        "head",
        None,
        el("meta", {"charset": "utf-8"}),
        el("meta", {"http-equiv": "Content-Security-Policy", "content": policy(style, script)}),
        el("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        el("meta", {"name": "color-scheme", "content": "light dark"}),
        el("title", None, frame.title(report)),
        el("link", {"rel": "icon", "href": FAVICON}),
        style,
    )
    body = el(
        "body",
        None,
        el("a", {"class": "skip", "href": "#report"}, "Skip to the report"),
        frame.banner(report),
        _contents(),
        el("main", {"id": "report", "tabindex": -1}, list(_sections(report))),
        script,
    )
    return "<!doctype html>\n" + render(el("html", {"lang": "en"}, head, body))


def policy(*inlines: Inline) -> str:
    """Return a policy under which nothing is loaded, and nothing runs but these sources."""
    allowed = {f"{item.tag}-src": f"'sha256-{_digest(item.source)}'" for item in inlines}
    rules = {
        "default-src": "'none'",
        **allowed,
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _digest(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


@cache
def _inline(tag: str, file: str) -> Inline:
    source = resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
    return Inline(tag, f"\n{source}")


def _contents() -> Element:
    links = [el("a", {"href": f"#{section.address}"}, section.heading) for section in SECTIONS]
    return el(
        "nav", {"aria-label": "sections"}, el("ul", None, [el("li", None, link) for link in links])
    )


def _sections(report: RunReport) -> Iterator[Element]:
    for section in SECTIONS:
        address = f"{section.address}-heading"
        yield el(
            "section",
            {"id": section.address, "aria-labelledby": address},
            el("h2", {"id": address}, section.heading),
            section.content(report),
        )
