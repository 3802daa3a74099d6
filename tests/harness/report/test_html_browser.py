"""The HTML report in a real browser: wide and narrow, light and dark, by keyboard, on paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.report import RunReport, build_report, to_html
from harness.report.visible import visible
from harness.store import EvalStore
from tests.harness.report.chromium import Page, chromium
from tests.harness.report.full_run import failed_run, full_run, timed_run
from tests.harness.report.hostile_run import AWKWARD, XSS, hostile_run, page_of
from tests.harness.store.sample_run import Sample
from tests.waiting import wait_for

EVERYTHING = " ".join([*XSS.values(), *AWKWARD.values()])
SAMPLES = {
    "full": full_run,
    "failed": failed_run,
    "hostile": lambda: hostile_run(EVERYTHING),
    "long": lambda: hostile_run("n" * 300),
    "timed": timed_run,
    "empty": Sample,
}
SCHEMES = ("light", "dark")
WIDTHS = (1280, 720, 360)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvalStore]:
    with EvalStore.open(tmp_path_factory.mktemp("hostile") / "fm.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunReport]:
    return {
        name: build_report(make().load(tmp_path_factory.mktemp(name)))
        for name, make in SAMPLES.items()
    }


@pytest.fixture(scope="module")
def files(
    reports: dict[str, RunReport], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, report in reports.items():
        (folder / f"{name}.html").write_bytes(to_html(report).encode())
    return {name: folder / f"{name}.html" for name in reports}


@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_is_asked_for_and_nothing_is_complained_of(
    name: str, page: Page, files: dict[str, Path]
) -> None:
    page.open(files[name])
    asked = [address for address in page.requests() if address != "about:blank"]
    assert [address for address in asked if not address.startswith("data:")] == [
        files[name].as_uri()
    ]
    assert page.console() == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SAMPLES)
def test_the_page_does_not_scroll_sideways_and_what_is_wide_scrolls_in_its_box(
    name: str, width: int, page: Page, files: dict[str, Path]
) -> None:
    page.open(files[name], width=width)
    assert page.js("return innerWidth") == width
    assert page.js("return document.documentElement.scrollWidth") <= width
    outside = page.js(
        """return [...document.querySelectorAll('main *')].filter((item) =>
            !item.closest('.scroll') && !item.closest('.unseen') && !item.closest('.head')
            && item.getBoundingClientRect().right > innerWidth + 0.5
        ).map((item) => item.outerHTML.slice(0, 200))"""
    )
    assert outside == []


CONTRASTS = """
function luminance([red, green, blue]) {
  const [r, g, b] = [red, green, blue].map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function channels(colour) { return colour.match(/[\\d.]+/g).map(Number); }
function ground(item) {
  for (let at = item; at; at = at.parentElement) {
    const found = channels(getComputedStyle(at).backgroundColor);
    if (found.length === 3 || found[3] === 1) return found.slice(0, 3);
  }
  throw new Error('the page has no ground');
}
const found = [];
for (const item of document.querySelectorAll('body, body *')) {
  const texts = [...item.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
  if (!texts.length || item.closest('script, title')) continue;
  const style = getComputedStyle(item);
  const ink = channels(item.closest('svg') ? style.fill : style.color).slice(0, 3);
  const [light, dark] = [luminance(ink), luminance(ground(item))].sort((a, b) => b - a);
  found.push([(light + 0.05) / (dark + 0.05), item.outerHTML.slice(0, 120)]);
}
return found;
"""


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["full", "failed", "timed"])
def test_every_text_stands_out_from_its_ground(
    name: str, scheme: str, page: Page, files: dict[str, Path]
) -> None:
    page.open(files[name], scheme=scheme)
    measured = page.js(CONTRASTS)
    assert len(measured) > 50
    assert [item for item in measured if item[0] < 4.5] == []


def test_light_and_dark_differ_and_each_is_told_to_the_browser(
    page: Page, files: dict[str, Path]
) -> None:
    grounds = []
    for scheme in SCHEMES:
        page.open(files["full"], scheme=scheme)
        grounds.append(page.js("return getComputedStyle(document.body).backgroundColor"))
    assert len(set(grounds)) == 2
    assert page.js("return getComputedStyle(document.documentElement).colorScheme") == "light dark"


def column(page: Page, table: int, at: int) -> list[str]:
    return list(
        page.js(
            """const table = document.querySelectorAll('#composition table')[arguments[0]];
            return [...table.tBodies[0].rows].map((row) => row.cells[arguments[1]].textContent)""",
            table,
            at,
        )
    )


FOCUS = "return document.activeElement.textContent"


def tab_to(page: Page, text: str) -> None:
    for _ in range(200):
        page.press("Tab")
        if page.js(FOCUS) == text:
            return
    raise AssertionError(f"{text!r} cannot be reached by the Tab key")


def test_a_table_is_sorted_from_the_keyboard_and_says_so(
    page: Page, files: dict[str, Path], reports: dict[str, RunReport]
) -> None:
    page.open(files["full"])
    first = column(page, 0, 0)
    speeds = [cell.speed.aggregate for cell in reports["full"].groups[0].cells]
    tab_to(page, "tok/s (agg)")
    sort = "return document.activeElement.closest('th').getAttribute('aria-sort')"
    assert page.js(sort) == "none"
    rising = [
        name
        for _, name in sorted(
            zip(speeds, first, strict=True), key=lambda item: (item[0] is None, item[0] or 0)
        )
    ]
    falling = [*reversed(rising[:-1]), rising[-1]]
    assert speeds.count(None) == 1
    for key, told, order in (
        ("Enter", "ascending", rising),
        ("Space", "descending", falling),
        ("Enter", "none", first),
    ):
        page.press(key)
        assert page.js(sort) == told
        assert column(page, 0, 0) == order
    page.press("Enter")
    live = page.js("return document.querySelector('[aria-live]').textContent")
    assert live == "Table sorted by tok/s (agg), ascending"
    tab_to(page, "per stream")
    page.press("Enter")
    heads = "document.querySelector('#composition table').querySelectorAll('[aria-sort=ascending]')"
    assert page.js(f"return {heads}.length") == 1


def test_names_are_sorted_with_their_numbers_as_numbers(page: Page, files: dict[str, Path]) -> None:
    page.open(files["full"])
    page.js("document.querySelector('#composition th button').click()")
    names = column(page, 0, 0)
    assert names == sorted(names)
    assert len(names) == 7


def test_the_first_stop_of_the_tab_key_skips_to_the_report(
    page: Page, files: dict[str, Path]
) -> None:
    page.open(files["full"])
    page.press("Tab")
    assert page.js(FOCUS) == "Skip to the report"
    assert page.js("return document.activeElement.getBoundingClientRect().top") >= 0
    page.press("Enter")
    wait_for(lambda: page.js("return document.activeElement.id") == "report")


def test_what_has_the_focus_is_seen_to_have_it(page: Page, files: dict[str, Path]) -> None:
    page.open(files["failed"], width=360)
    kinds = set()
    for _ in range(200):
        page.press("Tab")
        kind = page.js("return document.activeElement.tagName")
        if kind == "BODY":
            break
        outline = page.js(
            """const style = getComputedStyle(document.activeElement);
            return [style.outlineStyle, style.outlineWidth]"""
        )
        assert outline[0] != "none", kind
        assert outline[1] != "0px", kind
        kinds.add(kind)
    assert {"A", "BUTTON", "SUMMARY", "DIV"} <= kinds  # DIV: a box that scrolls


def test_a_box_that_has_nothing_to_scroll_is_no_stop(page: Page, files: dict[str, Path]) -> None:
    stops = "return document.querySelectorAll('.scroll[tabindex]').length"
    page.open(files["full"], width=1280)
    assert page.js(stops) == 0
    page.open(files["full"], width=360)
    assert page.js(stops) > 0


@pytest.mark.parametrize("scripts", [True, False], ids=["with-scripts", "without"])
def test_a_link_to_a_failed_reply_unfolds_it(
    scripts: bool, page: Page, files: dict[str, Path], reports: dict[str, RunReport]
) -> None:
    page.open(files["failed"], scripts=scripts)
    folds = "return [...document.querySelectorAll('details')].map((fold) => fold.open)"
    assert page.js(folds) == [False, False, False]
    page.js("document.querySelector('#composition a[href=\"#failure-2\"]').click()")
    wait_for(lambda: page.js(folds) == [False, True, False])
    quote = next(item.quote for item in reports["failed"].failures if item.quote)
    assert page.js("return document.querySelector('details[open] pre').innerText") == quote


def test_a_gate_on_identity_leads_to_the_reply_that_parts(
    page: Page, files: dict[str, Path]
) -> None:
    page.open(files["failed"])
    page.js("document.querySelector('#gates a[href=\"#parting-1-1\"]').click()")
    shown = "return [...document.querySelectorAll('details[open] pre')].map((it) => it.innerText)"
    wait_for(lambda: len(page.js(shown)) == 2)
    reply, reference = page.js(shown)
    assert reply.startswith('{"a": "<script>')
    assert reference == "1 2"


def test_without_scripts_everything_is_there(page: Page, files: dict[str, Path]) -> None:
    page.open(files["full"])
    text = "return document.querySelector('main').innerText"
    seen = page.js(text)
    page.open(files["full"], scripts=False)
    assert page.js("return document.querySelectorAll('button').length") == 0
    assert page.js(text) == seen
    assert page.js("return document.querySelectorAll('main .plot > svg').length") > 20


@pytest.mark.parametrize("text", XSS.values(), ids=XSS.keys())
def test_what_a_model_writes_is_shown_and_never_run(
    text: str, page: Page, store: EvalStore, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    file.write_bytes(page_of(store, text).encode())
    page.open(file)
    assert page.js("return window.harmed === undefined")
    counted = "return document.querySelectorAll(arguments[0]).length"
    assert page.js(counted, "script") == 1
    assert page.js(counted, "style") == 1
    assert (
        page.js(counted, "img, iframe, base, template, animate, [onload], [onerror], [onfocus]")
        == 0
    )
    page.js("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    quotes = page.js(
        "return [...document.querySelectorAll('.reply pre')].map((item) => item.innerText)"
    )
    assert set(quotes) == {text}
    parted = page.js(
        "return [...document.querySelectorAll('.parting pre')].map((item) => item.innerText)"
    )
    assert set(parted) == {f"{text} 1 {text}", f"{text} 2 {text}"}
    assert page.console() == []


@pytest.mark.parametrize("text", AWKWARD.values(), ids=AWKWARD.keys())
def test_an_awkward_name_is_shown_as_it_is(
    text: str, page: Page, store: EvalStore, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    file.write_bytes(page_of(store, text).encode())
    page.open(file, width=360)
    names = page.js(
        "return [...document.querySelectorAll('th .name')].map((item) => item.textContent)"
    )
    assert visible(f"serial+grammar {text}") in names
    assert page.js("return document.documentElement.scrollWidth") <= 360
    rows = page.js(
        """return [...document.querySelectorAll('table')].map((table) =>
            [...table.rows].map((row) => row.cells.length))"""
    )
    assert all(len(set(lengths)) == 1 for lengths in rows)


def test_the_policy_alone_would_stop_what_got_through(
    page: Page, files: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    planted = (
        "<script>window.harmed=1</script><img src=x.png onerror='window.harmed=1'>"
        "<style>body{display:none}</style><iframe src='data:text/html,x'></iframe>"
    )
    file.write_text(files["full"].read_text().replace("</main>", f"{planted}</main>"))
    page.open(file)
    assert page.js("return window.harmed === undefined")
    assert page.js("return getComputedStyle(document.body).display") != "none"
    told: list[str] = []

    def is_told() -> bool:
        told.extend(page.console())
        return sum("Content Security Policy" in line for line in told) >= 4

    wait_for(is_told)


def test_a_chart_shows_each_interval_where_its_axis_says(
    page: Page, files: dict[str, Path], reports: dict[str, RunReport]
) -> None:
    page.open(files["full"])
    measured = page.js(
        """const chart = document.querySelector('.forest');
        const middle = (item) => {
          const box = item.getBoundingClientRect();
          return (box.left + box.right) / 2;
        };
        const ticks = [...chart.querySelectorAll('.head text')];
        const rows = [...chart.querySelectorAll('.row:not(.head)')];
        return [
          ticks.map((item) => [parseFloat(item.textContent), middle(item)]),
          rows.map((row) => [
            row.querySelector('.ratio').textContent, middle(row.querySelector('.point'))
          ]),
        ];"""
    )
    ticks, points = ({float(value): place for value, place in measured[0]}, measured[1])
    ratios = [
        against.ratio.estimate
        for cell in reports["full"].groups[0].cells
        for against in cell.ratios
    ]
    assert len(points) == len(ratios) + 1  # and the noise floor
    for estimate, (shown, place) in zip(ratios, points, strict=False):
        assert estimate is not None
        assert shown.startswith(f"{estimate:.2f} [")
        for value, tick in ticks.items():
            if abs(estimate - value) > 0.02:
                assert (place > tick) is (estimate > value)


def test_a_printed_page_is_light_unfolded_and_without_what_needs_a_screen(
    page: Page, files: dict[str, Path]
) -> None:
    page.open(files["failed"], scheme="dark")
    page.show_as("print", "dark")
    assert page.js("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.js("return getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.js(
        """const quote = document.querySelectorAll('details')[1].querySelector('pre');
        return quote.checkVisibility({contentVisibilityAuto: true})"""
    )
    assert page.pdf().startswith(b"%PDF")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SAMPLES)
def test_the_parts_of_a_chart_do_not_cover_each_other(
    name: str, width: int, page: Page, files: dict[str, Path]
) -> None:
    page.open(files[name], width=width)
    covered = page.js(
        """const found = [];
        for (const row of document.querySelectorAll('.row')) {
          const texts = [...row.children].map((part) => {
            const range = document.createRange();
            range.selectNodeContents(part);
            return [part, part.matches('.plot') ? part.getBoundingClientRect()
              : range.getBoundingClientRect()];
          }).filter(([part, box]) => box.width > 1 && getComputedStyle(part).clipPath === 'none');
          texts.forEach(([one, a], at) => texts.slice(at + 1).forEach(([other, b]) => {
            const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (wide > 0.5 && high > 0.5) found.push([one.textContent, other.textContent]);
          }));
        }
        return found;"""
    )
    assert covered == []


def test_screenshots_are_taken_for_people_to_look_at(
    page: Page, files: dict[str, Path], tmp_path: Path
) -> None:
    pictures = []
    for width in (1280, 360):
        for scheme in SCHEMES:
            page.open(files["full"], width=width, scheme=scheme)
            pictures.append(page.screenshot(tmp_path / f"{width}-{scheme}.png"))
    assert len(set(pictures)) == 4
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
