"""What a gate writes: JUnit that parsers take, Markdown that stays a table, JSON without NaN."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from engine.errors import SettingError
from harness.policy.gate_files import Files
from harness.policy.json_form import to_json
from harness.policy.judgement import Judgement
from harness.policy.junit import to_junit
from harness.policy.policy_file import Floor, load_policy
from harness.policy.summary import to_lines, to_markdown
from harness.report import ReportError
from tests.harness.policy.gate_runs import both, compared, judged
from tests.harness.store.sample_run import EXTRACT, Sample, reply

HOSTILE = 'tab\there | pipe `tick` <b>&amp;</b> \x1b[31mred\x00 \u202eback\nline "quote"'


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Judgement:
    """A gate with everything in it: a document that fails, a slower cell, a count, a busy base."""
    plain = {"workload": EXTRACT}
    sample = both(
        compared(command="fm gate --base bbbb"),
        head=lambda block: {**plain, "tok_s": 10.0, "counters": {"steps": 3}},
        base=lambda block: {**plain, "tok_s": 20.0, "counters": {"steps": 2}},
    )
    bad = {"replies": [reply(conformance="schema-invalid", conformance_detail=HOSTILE)], **plain}
    both(sample, "serial+grammar", head=lambda block: bad, base=lambda block: bad)
    return judged(sample, tmp_path_factory.mktemp("gate"))


def suites(judgement: Judgement) -> dict[str, ElementTree.Element]:
    root = ElementTree.fromstring(to_junit(judgement).encode())
    assert root.tag == "testsuites"
    return {str(suite.get("name")): suite for suite in root}


def test_junit_has_a_suite_of_each_kind_with_counts_that_add_up(mixed: Judgement) -> None:
    found = suites(mixed)
    assert list(found) == [
        "fm gate: correctness",
        "fm gate: counter",
        "fm gate: metric",
    ]
    for suite in found.values():
        cases = suite.findall("testcase")
        assert suite.get("tests") == str(len(cases)) != "0"
        for attribute, tag in (
            ("failures", "failure"),
            ("errors", "error"),
            ("skipped", "skipped"),
        ):
            assert suite.get(attribute) == str(sum(case.find(tag) is not None for case in cases))


def test_junit_fails_what_decides_and_skips_what_is_advisory(mixed: Judgement) -> None:
    cases = {
        (case.get("name"), case.get("classname")): case
        for case in suites(mixed)["fm gate: correctness"]
    }
    ours = cases["conformance", "tiny.json-extract.serial+grammar"]
    theirs = cases["conformance", "tiny.json-extract.serial+grammar@base"]
    assert ours.find("failure") is not None
    assert theirs.find("failure") is None
    skipped = theirs.find("skipped")
    assert skipped is not None
    assert "advisory" in str(skipped.get("message"))


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> Judgement:
    """A gate whose speculative cell emits another token than serial, in every block."""
    name, other = "serial+spec@draft_budgets=fixed", [reply(ids=(5, 9, 7), text=f"5 9 {HOSTILE}")]
    sample = both(compared())
    both(sample, name, head=lambda block: {"replies": other})
    return judged(sample, tmp_path_factory.mktemp("parted"))


def test_junit_names_the_prompt_and_quotes_both_texts_where_a_reply_parts(
    parted: Judgement,
) -> None:
    (failure,) = (
        detail
        for case in suites(parted)["fm gate: correctness"]
        for detail in case.findall("failure")
        if case.get("name") == "identity"
    )
    first, second = str(failure.text).splitlines()
    assert first == "prompt p1 differs at token 1 and was not judged"
    assert second.startswith(
        'block 1, prompt p1, token 1: 9 / 6, not judged; both begin "5 ", the reply goes on "9 tab'
    )
    assert second.endswith('that of serial "6 7"')
    assert "\u202e" not in second


def test_the_summary_and_the_json_show_replies_that_part(parted: Judgement) -> None:
    text = to_markdown(parted)
    section = text.partition("## Replies that part from their reference\n")[2].partition("\n## ")[0]
    assert "fixed | serial | 1 | p1 | 1 | 9 / 6 | not judged | — | 5&#32; | 9 " in section
    assert section.rstrip().endswith("| 6 7 |")
    found = [item["partings"] for item in json.loads(to_json(parted))["findings"]]
    (cell,) = filter(None, found)
    assert (cell["n"], cell["replies"][0]["text"]["reference"]) == (1, "6 7")


def test_a_gate_without_such_replies_has_no_section_for_them(mixed: Judgement) -> None:
    assert "Replies that part" not in to_markdown(mixed)


def test_what_is_missing_is_an_error_of_junit_and_never_green(tmp_path: Path) -> None:
    sample = Sample()
    sample.plan("serial")
    found = suites(judged(sample, tmp_path))
    assert all(suite.get("errors") != "0" for suite in found.values())


ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "errors", "disabled"},
    "testsuite": {
        *("name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"),
        *("id", "package", "disabled"),
    },
    "testcase": {"name", "classname", "time", "status", "assertions"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"type", "message"},
}
"""What the schema of Jenkins' xUnit plugin knows of elements that are written."""

NEEDED = {
    "testsuite": {"name", "tests", "failures", "errors", "time", "timestamp"},
    "testcase": {"name", "classname", "time"},
    "failure": {"type"},
    "error": {"type"},
}
"""What that one or that of Ant's junitreport asks for."""


def with_floors(folder: Path) -> Judgement:
    """A gate with two floors and a metric of one name in one cell, one of which fails."""
    sample = both(compared())
    floors = (Floor(cell="serial", metric="tok_s", at_least=least) for least in (1.0, 99.0))
    return judged(sample, folder, replace(load_policy(), floors=tuple(floors)))


@pytest.mark.parametrize("name", ["mixed", "floors"])
def test_junit_keeps_to_what_schemas_know(mixed: Judgement, tmp_path: Path, name: str) -> None:
    judgement = mixed if name == "mixed" else with_floors(tmp_path)
    root = ElementTree.fromstring(to_junit(judgement).encode())
    for element in root.iter():
        given = set(element.keys())
        assert given <= ATTRIBUTES[element.tag]
        assert NEEDED.get(element.tag, set()) <= given
    for attribute in ("tests", "failures", "errors"):
        assert root.get(attribute) == str(sum(int(suite.get(attribute, "")) for suite in root))
    for suite in root:
        assert datetime.fromisoformat(str(suite.get("timestamp"))).tzinfo is None


def test_junit_names_each_case_once(tmp_path: Path) -> None:
    """Readers keep one of two cases of a name, and which one failed would be chance."""
    cases = [
        (case.get("classname"), case.get("name"))
        for suite in suites(with_floors(tmp_path)).values()
        for case in suite
    ]
    assert len(cases) == len(set(cases))
    assert {("tiny.short-chat.serial", name) for name in ("tok_s", "tok_s floor 2")} <= set(cases)


def test_text_of_models_survives_in_xml_and_in_a_markdown_table(mixed: Judgement) -> None:
    xml = to_junit(mixed)
    assert "\x1b" not in xml
    assert "\x00" not in xml
    assert "<b>" not in xml
    lines = to_markdown(mixed).splitlines()
    (row,) = [
        line for line in lines if line.startswith("| conformance") and "serial+grammar |" in line
    ]
    assert row.replace("\\|", "").count("|") == 7
    assert "<b>" not in row
    assert "\x1b" not in row


def test_the_summary_says_first_what_failed_and_shows_repeats_and_spread(mixed: Judgement) -> None:
    text = to_markdown(mixed)
    assert text.startswith("# fm gate: FAIL\n")
    assert text.index("## Failed") < text.index("## Correctness") < text.index("## Measured")
    for heading in ("n", "wins", "spread", "detectable", "p (family)"):
        assert f"| {heading} |" in text
    assert "-50.0 %" in text
    assert "fm gate --base bbbb" in text
    assert to_markdown(mixed) == text


def test_lines_for_a_terminal_end_with_the_verdict(mixed: Judgement) -> None:
    lines = list(to_lines(mixed))
    assert lines[-1].startswith("gate: FAIL, ")
    assert any(
        line.startswith("fail: tok_s on tiny json-extract serial: -50.0 %") for line in lines
    )


def test_text_of_models_does_nothing_to_a_terminal(mixed: Judgement) -> None:
    """One line a finding, whatever a document holds: no escape sequences, no turned direction."""
    (line,) = [line for line in to_lines(mixed) if line.startswith("fail: conformance")]
    assert not {"\x1b", "\x00", "\n", "\t", "\u202e"} & set(line)
    assert "back line" in line


def test_what_a_busy_machine_refuses_is_one_line_however_many_cells(tmp_path: Path) -> None:
    sample = both(compared(machine_refusals=("load is 9.0 on 2 cores",)))
    both(sample, "serial+spec@draft_budgets=fixed")
    lines = [line for line in to_lines(judged(sample, tmp_path)) if line.startswith("refused")]
    assert lines == ["refused: 6 comparisons of times: load is 9.0 on 2 cores"]


def test_json_is_strict_and_says_what_decides(mixed: Judgement) -> None:
    def refuse(word: str) -> Any:
        raise ValueError(word)

    content = json.loads(to_json(mixed), parse_constant=refuse)
    assert (content["exit_code"], content["verdict"]) == (3, "FAIL")
    speeds = [item for item in content["findings"] if item["name"] == "tok_s"]
    assert all(item["effect"]["ratio"] > 0 and item["decides"] for item in speeds)
    steps = [item for item in content["findings"] if item["name"] == "steps"]
    assert steps[0]["count"] == {"head": 21, "base": 14, "exact": True}


def test_files_are_written_where_they_are_wanted(mixed: Judgement, tmp_path: Path) -> None:
    files = Files(junit=tmp_path / "a" / "j.xml", summary=tmp_path / "s.md", json=None)
    files.check()
    assert len(list(files.write(mixed))) == 2
    assert (tmp_path / "a" / "j.xml").read_text() == to_junit(mixed)
    assert (tmp_path / "s.md").read_text() == to_markdown(mixed)


def test_files_of_an_earlier_gate_do_not_stand_for_this_one(
    mixed: Judgement, tmp_path: Path
) -> None:
    files = Files(junit=tmp_path / "j.xml", summary=tmp_path / "s.md", json=tmp_path / "g.json")
    list(files.write(mixed))
    files.clear()
    files.clear()
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_told_and_the_others_are_written(
    mixed: Judgement, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    files = Files(junit=tmp_path / "file" / "j.xml", summary=tmp_path / "s.md", json=None)
    told = list(files.write(mixed))
    assert isinstance(told[0], ReportError)
    assert (tmp_path / "s.md").is_file()


def test_a_folder_in_the_place_of_a_file_is_found_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="name a file with --summary"):
        Files(junit=None, summary=tmp_path, json=None).check()
