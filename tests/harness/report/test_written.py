"""The written reports: section by section, column by column, key by key, byte by byte."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from harness.report import (
    ReportError,
    RunReport,
    build_report,
    numbers,
    plain_report,
    print_report,
    report_name,
    to_json,
    to_markdown,
    write_report,
)
from harness.report.attribution import OTHER, PARTS
from harness.report.figures import Spread
from harness.report.tables import composition_table
from harness.stats import compare
from harness.store import DivergenceRow
from tests.harness.report.full_run import failed_run, full_run
from tests.harness.store.sample_run import CHAT, MODEL, Sample, reply

ROOT = Path(__file__).parents[3]

COLUMNS = (
    "cell | conc | tok/s (agg) | per stream | vs serial (95 % CI) | wins | TTFT p50 / p95 ms | "
    "accept | peak GB | conform (n, >=)"
)

SAMPLES = {
    "full": full_run,
    "short": lambda: full_run(blocks=3),
    "failed": failed_run,
    "empty": Sample,
}


@pytest.fixture(params=SAMPLES.values(), ids=SAMPLES.keys())
def report(request: pytest.FixtureRequest, tmp_path: Path) -> RunReport:
    return build_report(request.param().load(tmp_path))


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


def test_sections_come_in_the_order_in_which_they_are_read(report: RunReport) -> None:
    text = to_markdown(report)
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == [
        "## Gates",
        "## Composition",
        "## Grammar",
        "## Acceptance by position",
        "## Where a step's time goes",
        "## Routing checks",
        "## Failures and skips",
        "## Environment",
        "## How to reproduce",
    ]
    assert text.startswith("# feature-matrix[box]: ")
    assert text.endswith("\n")
    assert "QUOTABLE**" in text.split("## Gates")[0]


def test_every_table_has_as_many_cells_as_its_head_and_nothing_is_raw(report: RunReport) -> None:
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(to_markdown(report))
    widths: list[int] = []
    for token in tokens:
        if token.type == "table_open":
            widths = []
        if token.type == "tr_open":
            widths.append(0)
        if token.type in ("th_open", "td_open"):
            widths[-1] += 1
        if token.type == "table_close":
            assert len(set(widths)) == 1
        assert token.type != "html_block"
        assert all(child.type != "html_inline" for child in token.children or [])
    assert "table_open" in {token.type for token in tokens}


def test_no_row_of_a_table_is_read_as_a_paragraph(report: RunReport) -> None:
    tokens = MarkdownIt("commonmark").enable("table").parse(to_markdown(report))
    for before, token in pairwise(tokens):
        if before.type == "paragraph_open":
            assert not token.content.startswith("|")


def test_the_composition_table_has_the_columns_that_are_promised(tmp_path: Path) -> None:
    text = to_markdown(build_report(full_run().load(tmp_path)))
    assert text.count(f"| {COLUMNS} |\n| --- |{' --: |' * 9}\n") == 2
    assert "| serial+spec+grammar | 1 | " in text
    assert "| 28, >= 89.9 % |" in text
    assert "| 0 of 28, >= 0.0 % |" in text
    assert "Blocks: 7. Requests a cell: up to 28." in text
    assert "7 blocks of 2 prompts, cap 64 tokens" in text


def test_hostile_output_is_quoted_short_and_harmless(tmp_path: Path) -> None:
    text = to_markdown(build_report(failed_run().load(tmp_path)))
    assert "<script>" not in text
    assert "&lt;script>" in text
    assert "more characters)" in text
    assert "y" * 250 not in text


def test_near_ties_are_printed_with_position_and_gap(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", replies=[reply("p1", (1, 2))])
    trial = sample.add("serial+spec", replies=[reply("p1", (1, 3))])
    sample.divergences.append(
        DivergenceRow(
            trial_id=trial.trial_id, prompt_id="p1", reference="serial", position=1, gap=3.1e-5
        )
    )
    text = to_markdown(build_report(sample.load(tmp_path)))
    assert "| tiny | short-chat | serial+spec | serial | 1 | p1 | 1 | 0.0000310 |" in text


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        report = build_report(full_run().load(tmp_path / name))
        written.append((to_markdown(report), to_json(report), plain_report(report)))
    assert written[0] == written[1]


WRITE = r"""
import sys
from pathlib import Path
from harness.report import write_report
write_report(Path(sys.argv[1]), "\u65e5\u672c \u2014 \u0435\u0301 \ud800\n")
"""


def test_reports_are_utf_8_whatever_the_locale_says(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.md"
    environment = {
        **os.environ,
        "LC_ALL": "C",
        "LANG": "C",
        "PYTHONIOENCODING": "ascii",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    subprocess.run([sys.executable, "-c", WRITE, str(path)], cwd=ROOT, env=environment, check=True)
    assert path.read_bytes() == "\u65e5\u672c \u2014 \u0435\u0301 \\ud800\n".encode()
    assert [item.name for item in path.parent.iterdir()] == ["report.md"]


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match=r"cannot be written .*--out") as caught:
        write_report(tmp_path / "file" / "report.md", "x")
    assert "\n" not in str(caught.value)


def test_a_report_is_named_by_date_and_run() -> None:
    assert report_name(Sample().row, "md") == "2026-03-04-050607-01M8R0000000000000000000A1.md"


CELL_KEYS = [
    "model",
    "workload",
    "cell",
    "lane",
    "lane_taken",
    "baseline",
    "n_blocks",
    "tok_s",
    "ttft_ms",
    "ratio",
    "acceptance",
    "grammar_overhead_pct",
    "grammar_free_ratio_pct",
    "mask_us_per_token",
    "conformance",
    "peak_bytes",
    "step_parts_ms",
    "accept_histogram",
    "roofline",
]
PARTED_KEYS = [
    "trial_id",
    "block",
    "prompt_id",
    "position",
    "token",
    "reference_token",
    "judged",
    "text",
]
OBJECT_KEYS = {
    "tok_s": ["aggregate", "per_stream", "e2e"],
    "ttft_ms": ["p50", "p95"],
    "ratio": ["estimate", "low", "high", "verdict"],
    "acceptance": ["rate", "drafted", "accepted", "target_calls", "per_position"],
    "conformance": ["n", "ok", "lower_bound"],
    "peak_bytes": ["mlx", "rss"],
    "step_parts_ms": [*PARTS, OTHER],
    "roofline": ["bytes_per_token", "bandwidth_gb_s", "bound_tok_s", "share"],
}


def test_json_has_exactly_the_keys_of_the_contract(report: RunReport) -> None:
    content = strict(to_json(report))
    assert list(content) == [
        "schema_version",
        "run_id",
        "exit_code",
        "quotable",
        "gates",
        "cells",
        "environment",
        "partings",
    ]
    for gate in content["gates"]:
        assert list(gate) == ["name", "status", "observed", "n"]
        assert gate["status"] in ("pass", "fail", "incomplete")
    for parted in content["partings"]:
        assert list(parted) == ["model", "workload", "cell", "reference", "n", "replies"]
        assert all(list(item) == PARTED_KEYS for item in parted["replies"])
    for item in content["cells"]:
        assert list(item) == CELL_KEYS
        for key, keys in OBJECT_KEYS.items():
            assert item[key] is None or list(item[key]) == keys
            assert item[key] is None or any(value is not None for value in item[key].values())


def test_json_of_a_full_run(tmp_path: Path) -> None:
    content = strict(to_json(build_report(full_run().load(tmp_path))))
    assert content["schema_version"] == 1
    assert content["exit_code"] == 0
    assert content["quotable"] is True
    assert [gate["name"] for gate in content["gates"]] == [
        "conformance",
        "identity",
        "routing",
        "completeness",
    ]
    assert content["environment"]["python"] == "3.11.4"
    cells = {(item["workload"], item["cell"]): item for item in content["cells"]}
    spec = cells["json-extract", "serial+spec+grammar"]
    assert (spec["lane"], spec["lane_taken"], spec["baseline"]) == (
        "serial",
        "serial",
        "serial+grammar",
    )
    assert spec["ratio"]["verdict"] == "faster"
    assert spec["ratio"]["low"] < spec["ratio"]["estimate"] < spec["ratio"]["high"]
    assert spec["acceptance"]["per_position"] == [0.75, 0.6, pytest.approx(1 / 3)]
    assert spec["conformance"] == {
        "n": 28,
        "ok": 28,
        "lower_bound": pytest.approx(0.8985, abs=1e-3),
    }
    assert spec["grammar_overhead_pct"] == pytest.approx(1.0)
    plain = cells["short-chat", "serial"]
    assert plain["ratio"] is None
    assert plain["acceptance"] is None
    assert plain["conformance"] is None
    assert plain["grammar_overhead_pct"] is None
    assert plain["ttft_ms"] == {"p50": 100.0, "p95": 100.0}
    routed = cells["short-chat", "batch4+spec@routed"]
    assert routed["tok_s"] is None
    assert (routed["lane"], routed["lane_taken"]) == ("batch", "serial")
    assert all(
        item["conformance"]["n"] >= 1 for item in content["cells"] if "grammar" in item["cell"]
    )


def test_json_has_no_95th_percentile_where_it_would_mean_nothing(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", replies=[reply(f"p{number}") for number in range(19)])
    content = strict(to_json(build_report(sample.load(tmp_path))))
    assert content["cells"][0]["ttft_ms"] == {"p50": 100.0, "p95": None}


def test_the_terminal_table_fits_80_columns(report: RunReport) -> None:
    stream = io.StringIO()
    for group in report.groups:
        Console(file=stream, width=80).print(composition_table(group))
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    if report.groups:
        assert "…" not in stream.getvalue()
        for item in report.cells:
            for part in item.place.cell.replace("@", "+").split("+"):
                assert part in stream.getvalue()


LONGEST = {
    "features": "batch128+spec+grammar@rejection",
    "settings": "serial+spec+grammar@rejection@num_draft_tokens=16@ngram_max=12",
    "variant": f"serial+spec@{'-'.join(['word'] * 20)}",
    "url": f"https://inference.example.org:8443/{'path/' * 30}v1+batch128",
}


@pytest.mark.parametrize("name", LONGEST.values(), ids=LONGEST.keys())
def test_the_terminal_table_fits_80_columns_for_the_longest_names_and_figures(
    name: str, tmp_path: Path
) -> None:
    sample = Sample(run={"blocks": 10})
    sample.cells["batch4"] = replace(sample.cells["batch4"], name=name, max_rows=128)
    replies = [
        reply(f"p{at}", ids=range(40), ttft_s=12.345, last_token_s=12.352, conformance="ok")
        for at in range(60)
    ]
    for block in range(10):
        sample.add("serial", block, 1000.0)
        sample.add("batch4", block, 12345.0 + 997 * (block % 3), replies, [(9999, 9998)])
    (group,) = build_report(sample.load(tmp_path)).groups
    stream = io.StringIO()
    Console(file=stream, width=80).print(composition_table(group))
    head, *rows = stream.getvalue().split("cell ", 1)[1].splitlines()
    assert max(map(len, stream.getvalue().splitlines())) <= 80
    width = len("cell ") + head.index("conc")
    column = [row[:width].strip() for row in rows]
    assert column[0] == "serial"
    assert "".join(column[1:]) == name
    figures = " ".join(row[width:] for row in rows[1:]).split()
    for figure in ("128", "13342", "5571", "13.30", "12.35-13.83", "10/10", "600/600", "99%"):
        assert figure in figures, stream.getvalue()


def test_plain_lines_hold_the_same_and_no_control_sequence(report: RunReport) -> None:
    text = plain_report(report)
    assert "\x1b" not in text
    for item in report.cells:
        assert item.place.cell in text
    assert f"run {report.run.run_id}, {report.run.blocks} blocks of 2 prompts, cap 64" in text
    stream = io.StringIO()
    print_report(report, Console(file=stream, width=200))
    assert text.splitlines()[-1] in stream.getvalue()


def test_each_reason_against_quoting_and_for_skipping_is_one_line(tmp_path: Path) -> None:
    sample = Sample(run={"unquotable_reasons": ("the first; with a part", "the second")})
    sample.add("serial", workload=CHAT)
    for cell in ("serial+grammar", "serial+spec"):
        sample.plan(cell, status="skipped", reason="no schema")
    report = build_report(sample.load(tmp_path))
    lines = plain_report(report).splitlines()
    assert "  - the first; with a part" in lines
    assert "  - the second" in lines
    (skipped,) = [line for line in lines if line.startswith("skipped ")]
    assert skipped.endswith("serial+grammar, serial+spec: no schema")
    page = to_markdown(report)
    assert "\n- the first; with a part\n- the second\n" in page


def test_a_setting_in_the_terminal_table_breaks_between_its_words(tmp_path: Path) -> None:
    sample = Sample()
    name = "serial+spec@draft_budgets=fixed@num_draft_tokens=1"
    sample.cells["serial"] = replace(sample.cells["serial"], name=name)
    sample.add("serial", workload=CHAT)
    (group,) = build_report(sample.load(tmp_path)).groups
    stream = io.StringIO()
    Console(file=stream, width=80).print(composition_table(group))
    for part in ("serial+spec", "@draft", "_budgets", "=fixed", "@num_draft", "_tokens=1"):
        assert any(line.strip().startswith(part) for line in stream.getvalue().splitlines()), part


def test_no_name_reaches_the_terminal_with_a_control_character(tmp_path: Path) -> None:
    sample = Sample()
    name = "evil\x1b[31m\n\u202e"
    sample.cells["serial"] = replace(sample.cells["serial"], name=f"serial{name}")
    sample.add("serial", workload=CHAT, model=replace(MODEL, name=name))
    sample.plan("serial+grammar", status="skipped", reason=name)
    report = build_report(sample.load(tmp_path))
    text = plain_report(report)
    assert "\x1b" not in text
    assert "\u202e" not in text
    stream = io.StringIO()
    print_report(report, Console(file=stream, width=80))
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [
        (None, 1, "—"),
        (-0.0, 1, "0.0"),
        (-0.04, 1, "0.0"),
        (1e-9, 2, "0.00"),
        (-1.25, 2, "-1.25"),
        (123456789.0, 0, "123456789"),
        (1e16, 0, "10000000000000000"),
    ],
)
def test_numbers_have_fixed_decimals_and_no_minus_zero(
    value: float | None, digits: int, shown: str
) -> None:
    assert numbers.fixed(value, digits) == shown


@pytest.mark.parametrize(
    ("n", "shown"), [(19, "100 / —"), (20, "100 / 250*"), (58, "100 / 250*"), (59, "100 / 250")]
)
def test_a_95th_percentile_is_marked_and_hidden_by_its_number(n: int, shown: str) -> None:
    assert numbers.latency(Spread(n, 0.1, 0.25)) == shown


def test_small_times_keep_a_decimal() -> None:
    assert numbers.milliseconds(0.0012) == "1.2"
    assert numbers.milliseconds(0.1234) == "123"
    assert numbers.milliseconds(None) == "—"


@pytest.mark.parametrize(
    ("logs", "refusals", "shown"),
    [
        ([0.2] * 6, (), ("1.22 [1.22, 1.22]", "faster", "6/6")),
        ([0.2] * 6, ("hot",), ("1.22 [1.22, 1.22]", "refused", "6/6")),
        ([0.2] * 3, (), ("1.22 [1.22, 1.22]", "provisional", "3/3")),
        ([0.06, -0.05, 0.04, -0.03, 0.05, -0.06], (), ("1.00 [0.94, 1.06]", "~", "3/6")),
        ([0.2], (), ("1.22", "—", "1/1")),
        ([], (), ("—", "—", "—")),
    ],
)
def test_a_ratio_is_written_with_interval_verdict_and_wins(
    logs: list[float], refusals: tuple[str, ...], shown: tuple[str, str, str]
) -> None:
    ratio = compare(logs, refusals=refusals)
    assert (numbers.interval(ratio), numbers.verdict(ratio), numbers.wins(ratio)) == shown
