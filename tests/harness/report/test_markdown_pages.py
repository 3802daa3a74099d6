"""Case ha-13: whatever names and replies hold, a Markdown page shows it and stays a page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from harness.report import build_report, to_json, to_markdown
from harness.results.differences import compare_runs
from harness.results.differences_text import compared_json, compared_markdown
from harness.results.page import HEAD, Page, parse_page
from harness.results.tables import rows_of, tables_of
from harness.store import RunData
from tests.harness.report.hostile_run import AWKWARD, XSS, hostile_run
from tests.harness.report.test_gfm import HOSTILE, shown

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
TEXTS = {text: name for name, text in {**XSS, **AWKWARD, **HOSTILE}.items()}
"""What breaks careless pages, each once, with the name it has in a list."""
OURS = "<!-- fm promote: "


@pytest.fixture(params=TEXTS.keys(), ids=TEXTS.values())
def hostile(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, RunData]:
    return request.param, hostile_run(request.param).load(tmp_path)


def results_page(data: RunData) -> str:
    report = build_report(data)
    rows = rows_of(report)
    assert any(row.reasons for row in rows)
    return Page(f"{HEAD}\n", (), "").with_tables(tables_of(report, rows, "unquotable")).text()


def pages(data: RunData) -> dict[str, str]:
    """Return every page that is made of one run, or of it and another."""
    renamed = replace(data.run, run_id="01M8R0000000000000000000B2", tag="other", environment={})
    compared = compare_runs(data, replace(data, run=renamed, gates=()))
    return {
        "report": to_markdown(build_report(data)),
        "results": results_page(data),
        "comparison": compared_markdown(compared),
        "comparison JSON": compared_json(compared),
        "report JSON": to_json(build_report(data)),
    }


def rendered(cell: Token) -> str:
    return "".join(
        " " if child.type in ("softbreak", "hardbreak") else child.content
        for child in cell.children or []
    )


def tables(markdown: str) -> list[list[list[str]]]:
    """Return the tables of a page as rows of shown text; no raw HTML may be in it but ours."""
    found: list[list[list[str]]] = []
    inside = False
    for token in PARSER.parse(markdown):
        assert token.type != "html_block" or token.content.startswith(OURS)
        assert all(child.type not in ("html_inline", "image") for child in token.children or [])
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type in ("th_open", "th_close", "td_open", "td_close"):
            inside = token.type.endswith("open")
        elif inside:
            found[-1][-1].append(rendered(token))
    return found


def test_every_page_shows_the_text_and_stays_a_page(hostile: tuple[str, RunData]) -> None:
    text, data = hostile
    written = pages(data)
    assert pages(data) == written
    cell = f"serial {text}"
    for name, wanted in {"report": cell, "results": cell, "comparison": text}.items():
        found = tables(written[name])
        for table in found:
            assert {len(row) for row in table} == {len(table[0])}
        cells = {item.strip() for table in found for row in table for item in row}
        assert shown(wanted).strip() in cells, name
    assert parse_page(written["results"], "page").text() == written["results"]
    report = json.loads(written["report JSON"], parse_constant=pytest.fail)
    assert {item["model"] for item in report["cells"]} == {f"model {text}"}
    compared = json.loads(written["comparison JSON"], parse_constant=pytest.fail)
    assert {item["a"] for item in compared["settings"] if item["what"] == "tag"} == {text}
    for content in written.values():
        content.encode("utf-8")
