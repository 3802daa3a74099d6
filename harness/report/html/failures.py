"""The section on failures: failed replies in full and those that part, folded; and the skips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.report.checks import NONE_LINE, SKIPS, skip_rows
from harness.report.figures import Failure, RunReport
from harness.report.gfm import shorten
from harness.report.html.element import Content, Element, el
from harness.report.html.partings import partings
from harness.report.html.table import shown_table
from harness.report.html.words import name, note, place_name
from harness.store.index import Place

MAX_FAILURES = 100
MAX_REPLY = 20_000
"""Characters of a reply that are shown."""

MAX_WHAT = 200


def failure_id(number: int) -> str:
    """Return the address of the failure with this number, from 0."""
    return f"failure-{number + 1}"


def first_failures(report: RunReport) -> Mapping[Place, str]:
    """Return the address of the first failure that is shown of each place that has one."""
    found: dict[Place, str] = {}
    for at, failure in enumerate(report.failures[:MAX_FAILURES]):
        found.setdefault(failure.place, failure_id(at))
    return found


def failures(report: RunReport) -> Content:
    """Return the section."""
    parts = list(_parts(report))
    return parts or note(NONE_LINE)


def _parts(report: RunReport) -> Iterator[Content]:
    shown = report.failures[:MAX_FAILURES]
    if shown:
        yield el("h3", None, f"Failures ({len(report.failures)})")
        yield [_failure(failure, at) for at, failure in enumerate(shown)]
    if len(report.failures) > len(shown):
        yield note(f"And {len(report.failures) - len(shown)} more, in the database.")
    yield from partings(report)
    skips = skip_rows(report)
    if skips:
        yield el("h3", None, f"Skipped ({len(skips)})")
        yield shown_table("skipped pairs", SKIPS, skips, heads=3)


def _failure(failure: Failure, number: int) -> Element:
    """Return one failure; its address lies inside, so that following a link to it unfolds it."""
    asked = (", prompt ", name(failure.prompt_id)) if failure.prompt_id else None
    where = (place_name(failure.place), f", block {failure.block + 1}", asked)
    what = el("bdi", {"class": "what"}, shorten(failure.what, MAX_WHAT))
    summary = el("summary", None, what, el("span", {"class": "aside"}, where))
    return el(
        "details",
        {"class": "failure"},
        summary,
        el("div", {"id": failure_id(number), "class": "reply", "tabindex": -1}, _reply(failure)),
    )


def _reply(failure: Failure) -> Iterator[Content]:
    if len(failure.what) > MAX_WHAT:
        yield el("p", None, el("bdi", None, failure.what))
    if not failure.quote:
        yield note("There is no reply.")
        return
    yield el("pre", {"dir": "auto"}, el("code", None, shorten(failure.quote, MAX_REPLY)))
