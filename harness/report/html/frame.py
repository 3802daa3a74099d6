"""The beginning and the end of a report: verdict, where and when; environment, how to repeat it."""

from __future__ import annotations

import re

from harness import exit_codes
from harness.report.checks import NONE_LINE
from harness.report.figures import RunReport
from harness.report.html.element import Content, Element, el
from harness.report.html.table import Column, still, table
from harness.report.html.words import listed, name, note
from harness.report.markdown import cap_of, flatten, origin
from harness.report.outcome import outcome_word

_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z")

_TONES = {exit_codes.PASS: "pass", exit_codes.INCOMPLETE: "incomplete"}

ENVIRONMENT = (Column("what"), Column("value"))


def title(report: RunReport) -> str:
    """Return the title of the page."""
    return f"{outcome_word(report.exit_code)}: {report.run.tag}"


def banner(report: RunReport) -> Element:
    """Return the verdict, whether it may be quoted and why not, and what was run."""
    run = report.run
    word = outcome_word(report.exit_code)
    tone = _TONES.get(report.exit_code, "fail")
    facts = (
        ("run", run.run_id),
        ("date", _instant(run.created_at)),
        ("preset", run.preset),
        ("blocks", str(run.blocks)),
        ("prompts a block", str(run.prompts)),
        ("seed", str(run.seed)),
        ("exit code", str(report.exit_code)),
        ("cap", f"{cap_of(run)} tokens a reply; a grammar cell keeps what its schema needs"),
    )
    return el(
        "header",
        {"class": f"banner tone-{tone}"},
        el(
            "h1",
            None,
            el("span", {"class": "tag"}, name(run.tag), ": "),
            el("span", {"class": "outcome"}, word),
        ),
        _quotable(report),
        el(
            "dl",
            {"class": "facts"},
            [
                el("div", None, el("dt", None, what), el("dd", None, name(value)))
                for what, value in facts
            ],
        ),
    )


def _instant(stored: str) -> str:
    """Return an instant as people read it, to the second; another text as it is."""
    found = _INSTANT.fullmatch(stored)
    return stored if found is None else f"{found[1]} {found[2]} UTC"


def _quotable(report: RunReport) -> Content:
    if report.is_quotable:
        return el("p", {"class": "quotable"}, el("strong", None, "QUOTABLE"))
    why = listed(el("bdi", None, reason) for reason in report.unquotable_reasons)
    return el("div", {"class": "quotable not"}, el("strong", None, "UNQUOTABLE"), why)


def environment(report: RunReport) -> Content:
    """Return what is known of the machine, and what its samples say."""
    rows = [list(map(still, map(name, row))) for row in flatten(report.environment)]
    known = table("environment", ENVIRONMENT, rows) if rows else note(NONE_LINE)
    said = {"The machine during the run": report.machine, "Warnings": report.warnings}
    lists = [
        (el("h3", None, title), listed(el("bdi", None, text) for text in texts))
        for title, texts in said.items()
        if texts
    ]
    return (known, lists)


def reproduce(report: RunReport) -> Content:
    """Return the command that repeats the run, and what it was run from."""
    run = report.run
    again = f"fm report {run.run_id} --format html"
    return (
        el("pre", {"tabindex": 0}, el("code", None, run.command)),
        el("p", None, el("bdi", None, origin(run))),
        el(
            "p",
            None,
            "The raw observations are in the database; ",
            el("code", None, again),
            " writes this file again.",
        ),
    )
