"""The HTML report as it is written: its order, its links, its bytes, and nothing from outside."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from itertools import pairwise
from pathlib import Path

import pytest

from harness.report import RunReport, build_report, numbers, to_html, to_markdown
from harness.report.html.failures import MAX_FAILURES, MAX_REPLY
from harness.report.html.scale import MARGIN, MIN_GAP, ratio_scale
from harness.report.html.table import shown_number
from harness.report.partings import PARTINGS
from harness.report.visible import visible
from harness.stats import TOLERANCE
from harness.store import EvalStore, new_id
from tests.harness.report.full_run import failed_run, full_run, timed_run
from tests.harness.report.hostile_run import AWKWARD, XSS, page_of
from tests.harness.report.test_html_element import Seen
from tests.harness.store.sample_run import EXTRACT, Sample, reply

SAMPLES = {
    "full": full_run,
    "short": lambda: full_run(blocks=3),
    "failed": failed_run,
    "timed": timed_run,
    "empty": Sample,
}
LAYOUT = {"reply", "block", "prompt", "what", *(heading for heading, _ in PARTINGS)}
MARKDOWN_ONLY = {"~": "unclear", **dict.fromkeys(LAYOUT, "")}
"""What the page says in other words, or by its layout."""

TEXTS = {**XSS, **AWKWARD}


@pytest.fixture(scope="module", params=SAMPLES.values(), ids=SAMPLES.keys())
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    return build_report(request.param().load(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    return build_report(full_run().load(tmp_path_factory.mktemp("full")))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvalStore]:
    with EvalStore.open(tmp_path_factory.mktemp("hostile") / "fm.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def harmless(store: EvalStore) -> str:
    return page_of(store, "harmless")


def test_sections_come_in_the_order_of_the_markdown_report(report: RunReport) -> None:
    headings = re.findall(r"<h2[^>]*>([^<]*)</h2>", to_html(report))
    told = re.findall(r"^## (.*)$", to_markdown(report), re.MULTILINE)
    assert list(map(unescape, headings)) == told


def test_the_banner_says_the_verdict_and_every_reason(report: RunReport) -> None:
    banner, _, _ = to_html(report).partition('<section id="gates"')
    seen = Seen(banner)
    shown = seen.text
    assert ("UNQUOTABLE" in shown) is not report.is_quotable
    assert "QUOTABLE" in shown
    assert report.run.run_id in shown
    assert report.run.tag in shown
    assert "2026-03-04 05:06:07 UTC" in shown
    assert all(reason in shown for reason in report.unquotable_reasons)


def test_every_figure_of_the_markdown_tables_is_there_too(report: RunReport) -> None:
    shown = " ".join(Seen(to_html(report)).text.split())
    for line in to_markdown(report).splitlines():
        if line.startswith("| ") and "---" not in line:
            for cell in line.strip("| ").split(" | "):
                plain = unescape(re.sub(r"\\([`*_~])", r"\1", cell))
                assert MARKDOWN_ONLY.get(plain, plain.partition("... (")[0]) in shown


def test_every_link_leads_to_one_place_in_the_page(report: RunReport) -> None:
    seen = Seen(to_html(report))
    places = Counter(attributes["id"] for _, attributes in seen.tags if "id" in attributes)
    assert set(places.values()) <= {1}
    links = [attributes["href"] for tag, attributes in seen.tags if tag == "a"]
    assert links
    assert all(link is not None and link.removeprefix("#") in places for link in links)
    named = [
        attributes["aria-labelledby"]
        for _, attributes in seen.tags
        if "aria-labelledby" in attributes
    ]
    assert set(named) <= set(places)


def test_nothing_is_asked_for_and_the_policy_lets_only_the_own_sources_run(
    report: RunReport,
) -> None:
    source = to_html(report)
    seen = Seen(source)
    for tag, attributes in seen.tags:
        assert not {"src", "srcset", "style", "action", "data", "poster"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        assert tag not in ("img", "iframe", "object", "embed", "form", "base", "video", "audio")
    assert [attributes["href"] for tag, attributes in seen.tags if tag == "link"] == ["data:,"]
    (policy,) = (
        attributes["content"]
        for tag, attributes in seen.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (inline,) = re.findall(rf"<{tag}>(.*?)</{tag}>", source, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
        assert "url(" not in inline
        assert "@import" not in inline
        assert "innerHTML" not in inline


def test_the_same_rows_give_the_same_bytes(full: RunReport, tmp_path: Path) -> None:
    assert to_html(build_report(full_run().load(tmp_path))) == to_html(full)


def shape(source: str) -> list[str]:
    """Return the elements of a page; where a long name may break is left out."""
    return [tag for tag, _ in Seen(source).tags if tag != "wbr"]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_no_text_from_outside_changes_what_the_page_is_made_of(
    text: str, store: EvalStore, harmless: str
) -> None:
    hostile = page_of(store, text)
    assert shape(hostile) == shape(harmless)
    assert Seen(hostile).text.count(visible(text)) == Seen(harmless).text.count("harmless")


def test_a_failing_cell_leads_to_its_reply_in_full(tmp_path: Path) -> None:
    report = build_report(failed_run().load(tmp_path))
    source = to_html(report)
    (failure,) = (item for item in report.failures if item.quote)
    number = report.failures.index(failure) + 1
    assert f'<a href="#failure-{number}">0 of 1, &gt;= 0.0 %</a>' in source
    assert source.count(f'href="#failure-{number}"') == 2  # the cell, and its gate
    assert visible(failure.quote) in Seen(source).text


def test_many_and_long_failures_are_cut_and_counted(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", workload=EXTRACT)
    replies = [
        reply(f"p{at}", text="y" * (MAX_REPLY + 5 if at == 0 else 3), conformance="not-json")
        for at in range(MAX_FAILURES + 2)
    ]
    sample.add("serial+grammar", workload=EXTRACT, replies=replies)
    source = to_html(build_report(sample.load(tmp_path)))
    assert source.count("<details") == MAX_FAILURES
    assert "And 2 more, in the database." in source
    assert f"{'y' * MAX_REPLY}... (5 more characters)" in source


def test_numbers_of_a_column_are_sorted_by_their_value(full: RunReport) -> None:
    keys = {
        attributes["data-sort"]
        for tag, attributes in Seen(to_html(full)).tags
        if tag in ("td", "th") and "data-sort" in attributes
    }
    assert {"", "serial+spec", "serial"} <= keys
    speeds = {repr(cell.speed.aggregate) for cell in full.cells if cell.speed.aggregate}
    assert speeds <= keys


@pytest.mark.parametrize(
    ("text", "number"),
    [("1.25 [1.20, 1.31]", 1.25), ("-4.1 %", -4.1), ("6/7", 6.0), (numbers.DASH, None), ("", None)],
)
def test_what_is_shown_is_what_is_sorted_by(text: str, number: float | None) -> None:
    assert shown_number(text) == number


@pytest.mark.parametrize(
    "ratios", [[], [1.0], [0.98, 1.04], [0.4, 3.7], [0.001, 900.0], [15.0]], ids=str
)
def test_a_scale_of_ratios_holds_all_of_them_and_the_tolerance(ratios: list[float]) -> None:
    scale = ratio_scale(ratios, TOLERANCE)
    for value in (*ratios, 1 - TOLERANCE, 1, 1 + TOLERANCE):
        assert MARGIN <= scale.at(value) <= 100 - MARGIN
    assert scale.at(1 - TOLERANCE) < scale.at(1) < scale.at(1 + TOLERANCE)
    ticks = scale.ticks()
    assert 1 in ticks
    places = [scale.at(tick) for tick in ticks]
    assert all(right - left >= MIN_GAP for left, right in pairwise(places))


def test_twice_and_half_as_fast_lie_as_far_from_the_same() -> None:
    scale = ratio_scale([0.25, 4.0], TOLERANCE)
    assert scale.at(1) - scale.at(0.5) == pytest.approx(scale.at(2) - scale.at(1))


def test_a_block_that_is_missing_leaves_a_gap_and_one_beyond_reach_is_marked(
    store: EvalStore,
) -> None:
    def lines_and_marks(speeds: list[float | None]) -> tuple[int, int]:
        sample = Sample(run_id=new_id(), run={"blocks": len(speeds)})
        for block, speed in enumerate(speeds):
            sample.add("serial", block, speed)
        sample.store_in(store)
        source = to_html(build_report(store.load_run(sample.run_id)))
        return source.count('class="trace"'), source.count('class="clipped"')

    even = [20.0] * 30
    assert lines_and_marks(even) == (29, 0)
    assert lines_and_marks([*even[:10], None, *even[11:]]) == (27, 0)
    assert lines_and_marks([*even[:10], 5.0, *even[11:]]) == (29, 1)


def test_a_report_without_anything_is_a_page_too(tmp_path: Path) -> None:
    report = build_report(Sample().load(tmp_path))
    empty = replace(report, environment={}, gates=(), summaries=())
    shown = Seen(to_html(empty)).text
    assert shown.count("None.") >= 4
    assert "Nothing ran." in shown
