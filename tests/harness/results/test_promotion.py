"""What `fm promote` writes, refuses, replaces and keeps."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from markdown_it import MarkdownIt

from harness import exit_codes
from harness.cli import cli
from harness.machine import machine_id
from harness.results import ResultsError, promote
from harness.results.page import (
    BEGIN,
    END,
    HEAD,
    NOTHING,
    Page,
    page_of,
    parse_page,
    read_page,
    write_page,
)
from harness.results.tables import machine_label
from harness.store import EvalStore
from tests.harness.results.published import MACHINE, ONE, THREE, TWO, database, finish, steady_run
from tests.harness.store.sample_run import CHAT, EXTRACT, MODEL, Sample, reply

NAME = 'evil|`x` "q" --> <!-- fm promote: end -->\n日本 \u202e'


def written(
    folder: Path, *samples: Sample, unquotable: bool = False, page: Path | None = None
) -> str:
    """Promote each run in its turn and return the page."""
    page = folder / "RESULTS.md" if page is None else page
    with EvalStore.open(database(folder, *samples)) as store:
        for sample in samples:
            promote(store, sample.run_id, page, with_unquotable=unquotable)
    return page.read_text(encoding="utf-8")


def tables(markdown: str) -> list[list[list[str]]]:
    """Return every table as rows of rendered text."""
    found: list[list[list[str]]] = []
    for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(markdown):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and found and token.level == 4:
            parts = [child.content for child in token.children or []]
            found[-1][-1].append("".join(parts))
    return found


def headings(markdown: str, level: int) -> list[str]:
    start = f"{'#' * level} "
    return [line.removeprefix(start) for line in markdown.splitlines() if line.startswith(start)]


def test_a_quotable_run_is_written_with_all_that_a_reader_needs(tmp_path: Path) -> None:
    text = written(tmp_path, steady_run(command="fm run --cells serial,spec --seed 0"))
    assert headings(text, 2) == ["Quotable"]
    (machine,) = headings(text, 3)
    assert machine == f"Toy CPU, 2 cores ({machine_id(MACHINE)})"
    assert headings(text, 4) == ["tiny on short-chat"]
    assert "\n    fm run --cells serial,spec --seed 0\n" in text
    caption = next(line for line in text.splitlines() if line.startswith("Run "))
    for told in (ONE, "2026-03-04", "Toy CPU, 2 cores", "6 blocks", "n = 6", "cap 64", "abc123"):
        assert told in caption
    speeds, ratios = tables(text)
    assert speeds[0][0] == "cell"
    assert speeds[0][-1] == "n"
    assert [row[0] for row in speeds[1:]] == ["serial", "serial+spec"]
    assert ratios[1][:4] == ["serial+spec", "serial", "1.30 [1.30, 1.30]", "faster"]


def test_a_run_that_is_not_quotable_is_refused_with_its_reasons(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    sample = steady_run(blocks=3, git_dirty=True)
    with (
        EvalStore.open(database(tmp_path, sample)) as store,
        pytest.raises(ResultsError, match=r"not quotable: .*changes; 3 blocks.*--unquotable"),
    ):
        promote(store, ONE, page, with_unquotable=False)
    assert not page.exists()


def test_unquotable_rows_go_to_a_section_marked_so_with_their_reasons(tmp_path: Path) -> None:
    text = written(tmp_path, steady_run(blocks=3), unquotable=True)
    assert headings(text, 2) == ["Unquotable"]
    assert "**Do not quote these figures**" in text
    speeds, ratios = tables(text)
    assert speeds[0][-1] == ratios[0][-1] == "why unquotable"
    assert {row[-1] for row in speeds[1:]} == {"3 blocks; a verdict needs 6"}
    assert {row[-1] for row in ratios[1:]} == {"the run is not quotable, see above"}


def test_a_ratio_that_varies_is_told_with_what_it_is_against(tmp_path: Path) -> None:
    sample = steady_run()
    for block, tok_s in enumerate((30.0, 60.0, 30.0, 60.0, 30.0, 60.0)):
        sample.add("batch4", block, tok_s, [reply(lane_taken="batch")])
    text = written(tmp_path, sample, unquotable=True)
    _, sound, speeds, ratios = tables(text)
    assert [row[0] for row in sound[1:]] == ["serial+spec"]
    for table in (speeds, ratios):
        (row,) = table[1:]
        assert row[0] == "batch4"
        assert row[-1].startswith("against serial: the ratio varies by ")


def test_one_spoiled_cell_is_left_out_of_a_quotable_run_and_named(tmp_path: Path) -> None:
    sample = steady_run()
    for block in range(6):
        sample.add("batch4", block, 50.0, [reply(count_source="estimated", lane_taken="batch")])
    page = tmp_path / "RESULTS.md"
    with EvalStore.open(database(tmp_path, sample)) as store:
        done = promote(store, ONE, page, with_unquotable=False)
        (note,) = done.notes
        assert "tiny short-chat batch4" in note
        assert "6 token counts are estimates" in note
        assert "batch4" not in page.read_text()
        promote(store, ONE, page, with_unquotable=True)
    text = page.read_text()
    assert headings(text, 2) == ["Quotable", "Unquotable"]
    assert [row[0] for row in tables(text)[0][1:]] == ["serial", "serial+spec"]
    assert [row[0] for row in tables(text)[2][1:]] == ["batch4"]


def test_a_run_that_has_not_ended_is_refused(tmp_path: Path) -> None:
    sample = steady_run(status="running")
    with EvalStore.open(tmp_path / "fm.db") as store:
        sample.store_in(store)
        with pytest.raises(ResultsError, match=r"is running; finish it first: fm run --resume"):
            promote(store, ONE, tmp_path / "RESULTS.md", with_unquotable=True)


def test_a_run_without_any_speed_has_nothing_to_promote(tmp_path: Path) -> None:
    with (
        EvalStore.open(database(tmp_path, Sample())) as store,
        pytest.raises(ResultsError, match="measured no speed"),
    ):
        promote(store, "latest", tmp_path / "RESULTS.md", with_unquotable=True)


def test_twice_is_the_same_as_once_in_the_page_and_in_the_database(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    with EvalStore.open(database(tmp_path, steady_run())) as store:
        first = promote(store, ONE, page, with_unquotable=False)
        before = page.read_bytes()
        second = promote(store, ONE, page, with_unquotable=False)
        (row,) = store.promotions(ONE)
    assert (first.is_changed, second.is_changed) == (True, False)
    assert page.read_bytes() == before
    assert (row.quotable, row.reasons, row.destination) == (True, (), str(page))


def test_the_promotion_of_unquotable_rows_is_kept_with_the_reasons(tmp_path: Path) -> None:
    with EvalStore.open(database(tmp_path, steady_run(blocks=3))) as store:
        promote(store, ONE, tmp_path / "RESULTS.md", with_unquotable=True)
        (row,) = store.promotions(ONE)
    assert (row.quotable, row.reasons) == (False, ("3 blocks; a verdict needs 6",))


@pytest.mark.parametrize(
    "around",
    [
        ("# My page\n\nWhat we did.\n\n", "\n## Notes | `x`\n\nno line end"),
        ("# 日本\r\n\r\nCRLF\r\n", "\r\nmore\r\n"),
        ("", ""),
    ],
    ids=["text", "carriage returns", "nothing"],
)
def test_what_stands_around_the_markers_is_kept_byte_for_byte(
    tmp_path: Path, around: tuple[str, str]
) -> None:
    before, after = around
    page = tmp_path / "RESULTS.md"
    page.write_bytes(f"{before}{BEGIN}\n{END}\n{after}".encode())
    written(tmp_path, steady_run(), page=page)
    content = page.read_bytes().decode()
    assert content.startswith(f"{before}{BEGIN}\n")
    assert content.endswith(f"{END}\n{after}")


def test_a_page_without_markers_keeps_its_text_and_gets_them_at_its_end(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("# Results\n\nBy hand.")
    text = written(tmp_path, steady_run(), page=page)
    assert text.startswith(f"# Results\n\nBy hand.\n\n{BEGIN}\n")
    assert text.count(BEGIN) == text.count(END) == 1


def test_machines_models_and_workloads_have_sections_of_their_own(tmp_path: Path) -> None:
    gpu = {"host": "other", "device": "cuda", "device_name": "Toy GPU", "usable_cores": 16}
    text = written(
        tmp_path,
        steady_run(ONE, environment=gpu),
        steady_run(TWO),
        steady_run(THREE, workload=EXTRACT, model=replace(MODEL, name="larger")),
    )
    assert [line.partition(" (")[0] for line in headings(text, 3)] == [
        "Toy CPU, 2 cores",
        "Toy GPU",
    ]
    assert headings(text, 4) == [
        "larger on json-extract",
        "tiny on short-chat",
        "tiny on short-chat",
    ]


def test_machines_that_read_alike_and_are_not_the_same_are_kept_apart(tmp_path: Path) -> None:
    twin = {**MACHINE, "host": "twin", "cpu": "another", "memory_bytes": None, "os": "other"}
    text = written(tmp_path, steady_run(ONE), steady_run(TWO, environment=twin))
    names = sorted([machine_id(MACHINE), machine_id(twin)])
    assert headings(text, 3) == [f"Toy CPU, 2 cores ({name})" for name in names]


def test_the_order_of_promotions_does_not_show(tmp_path: Path) -> None:
    runs = [steady_run(ONE, command="a"), steady_run(TWO, command="b"), steady_run(THREE)]
    pages = []
    for name, order in {"one": runs, "two": runs[::-1]}.items():
        (tmp_path / name).mkdir()
        pages.append(written(tmp_path / name, *order))
    assert pages[0] == pages[1]


def test_the_same_command_measured_again_takes_the_place_of_the_earlier_table(
    tmp_path: Path,
) -> None:
    text = written(tmp_path, steady_run(ONE), steady_run(TWO, speedup=1.5))
    assert ONE not in text
    assert "1.50 [1.50, 1.50]" in text


def test_an_unquotable_table_never_replaces_a_quotable_one_of_another_run(tmp_path: Path) -> None:
    text = written(tmp_path, steady_run(ONE), steady_run(TWO, git_dirty=True), unquotable=True)
    assert headings(text, 2) == ["Quotable", "Unquotable"]
    assert ONE in text
    assert TWO in text


def test_a_quotable_table_takes_the_place_of_an_unquotable_one(tmp_path: Path) -> None:
    text = written(tmp_path, steady_run(ONE, git_dirty=True), steady_run(TWO), unquotable=True)
    assert headings(text, 2) == ["Quotable"]
    assert ONE not in text


def test_hostile_names_neither_break_the_page_nor_its_tables(tmp_path: Path) -> None:
    sample = steady_run(model=replace(MODEL, name=NAME), command=f"fm run {NAME}\n{END}")
    sample.cells["serial+spec"] = replace(sample.cells["serial+spec"], name="x" * 300 + NAME)
    page = tmp_path / "RESULTS.md"
    with EvalStore.open(database(tmp_path, sample)) as store:
        promote(store, ONE, page, with_unquotable=True)
        before = page.read_bytes()
        promote(store, ONE, page, with_unquotable=True)
    text = before.decode()
    assert page.read_bytes() == before
    (table,) = parse_page(text, "page").tables
    assert table.origin.model == NAME
    for rows in tables(text):
        assert len({len(row) for row in rows}) == 1
    markers = ("<!-- fm promote:",)
    for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(text):
        assert token.type != "html_block" or token.content.startswith(markers)
        assert all(child.type != "html_inline" for child in token.children or [])


DAMAGED = {
    "no end": f"{BEGIN}\n",
    "no begin": f"{END}\n",
    "two begins": f"{BEGIN}\n{BEGIN}\n{END}\n",
    "end first": f"{END}\n{BEGIN}\n",
    "no table end": f'{BEGIN}\n<!-- fm promote: table {{"a": 1}} -->\n{END}\n',
    "table end alone": f"{BEGIN}\n<!-- fm promote: table end -->\n{END}\n",
    "not JSON": f"{BEGIN}\n<!-- fm promote: table {{nonsense}} -->\n{END}\n",
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_markers_out_of_order_are_refused_and_the_page_is_left(tmp_path: Path, text: str) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text(text)
    with (
        EvalStore.open(database(tmp_path, steady_run())) as store,
        pytest.raises(ResultsError, match=r"restore"),
    ):
        promote(store, ONE, page, with_unquotable=False)
    assert page.read_text() == text


def test_a_page_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_bytes(b"caf\xe9")
    with (
        EvalStore.open(database(tmp_path, steady_run())) as store,
        pytest.raises(ResultsError, match=r"not UTF-8.*--to"),
    ):
        promote(store, ONE, page, with_unquotable=False)


def test_a_write_protected_page_is_refused_and_left(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("kept\n")
    page.chmod(0o444)
    with (
        EvalStore.open(database(tmp_path, steady_run())) as store,
        pytest.raises(ResultsError, match=r"RESULTS.md is write-protected; .*--to"),
    ):
        promote(store, ONE, page, with_unquotable=False)
    assert page.read_text() == "kept\n"


def test_a_page_behind_a_link_is_written_where_it_lies(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "RESULTS.md"
    page.parent.mkdir()
    page.write_text("# Ours\n")
    link = tmp_path / "RESULTS.md"
    link.symlink_to(page)
    text = written(tmp_path, steady_run(), page=link)
    assert link.is_symlink()
    assert page.read_text() == text
    assert text.startswith("# Ours\n")


def test_of_two_promotions_at_once_neither_loses_the_others_tables(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    other = steady_run(TWO, command="fm run --seed 2")
    path = database(tmp_path, steady_run(), other)

    def promote_other() -> None:
        with EvalStore.open(path) as store:
            promote(store, TWO, page, with_unquotable=False)

    thread = threading.Thread(target=promote_other)
    with page_of(page) as file:
        before = read_page(file)
        thread.start()
        # Long enough for one that does not wait; one that does is seen to have waited.
        thread.join(1.0)
        (tmp_path / "elsewhere").mkdir()
        mine = parse_page(written(tmp_path / "elsewhere", steady_run()), "page").tables
        write_page(file, before.with_tables(mine))
    thread.join()
    found = parse_page(page.read_text(), "page").tables
    assert {table.origin.run_id for table in found} == {ONE, TWO}


@pytest.mark.parametrize("marker", [END, BEGIN, "<!-- fm promote: table end -->"])
def test_a_command_that_is_a_marker_stays_text(tmp_path: Path, marker: str) -> None:
    text = written(tmp_path, steady_run(command=marker))
    (table,) = parse_page(text, "page").tables
    assert table.origin.command == marker
    assert f"    {marker}\n" in text
    assert parse_page(text, "page").text() == text


def test_an_empty_page_says_so_and_reads_back_as_itself() -> None:
    text = Page(f"{HEAD}\n", (), "").text()
    assert NOTHING in text
    assert parse_page(text, "page").text() == text


def test_the_page_of_the_project_is_in_the_form_that_promote_writes() -> None:
    path = Path(__file__).parents[3] / "results" / "RESULTS.md"
    text = path.read_text(encoding="utf-8")
    assert parse_page(text, str(path)).text() == text


@pytest.mark.parametrize(
    ("environment", "label"),
    [
        ({}, "unknown machine"),
        ({"cpu": {"name": "x"}}, "unknown machine"),
        ({"device_name": "H200", "device": "cuda", "usable_cores": 16}, "H200"),
        (
            {**MACHINE, "memory_bytes": 8 * 2**30, "blas": "OpenBLAS 0.3"},
            "Toy CPU, 2 cores, 8 GiB, OpenBLAS 0.3",
        ),
        ({"device_name": "a\nb\x1b", "device": "cuda"}, "a b␛"),
    ],
)
def test_a_machine_is_named_by_what_decides_its_speed(
    environment: dict[str, object], label: str
) -> None:
    assert machine_label(environment) == label


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, standalone_mode=False)


def test_the_command_promotes_the_latest_run_and_names_the_page(tmp_path: Path) -> None:
    path, page = database(tmp_path, steady_run()), tmp_path / "out" / "RESULTS.md"
    done = call("promote", "--db", str(path), "--to", str(page))
    assert (done.return_value, done.output) == (exit_codes.PASS, f"results: {page}\n")
    assert ONE in page.read_text()
    again = call("promote", ONE[:24], "--db", str(path), "--to", str(page))
    assert again.exit_code == 0, again.output
    assert again.output == f"results: {page} (as it was)\n"


def test_runs_are_concluded_before_they_are_promoted(tmp_path: Path) -> None:
    """Keeps the runs of these tests honest: what `fm run` would store is what they hold."""
    with EvalStore.open(tmp_path / "fm.db") as store:
        finish(store, steady_run())
        finish(store, steady_run(TWO, blocks=3))
        assert [run.quotable for run in store.list_runs()] == [False, True]
    assert CHAT.name == "short-chat"


def test_what_a_kill_leaves_beside_the_page_is_no_change_of_the_checkout() -> None:
    ignored = (Path(__file__).parents[3] / ".gitignore").read_text().splitlines()
    assert any(Path("results/RESULTS.md.123.partial").match(pattern) for pattern in ignored)
