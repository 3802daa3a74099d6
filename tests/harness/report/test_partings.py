"""Replies that fail the gate identity are told with the place and the texts where they part."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.judging import gates
from harness.report import RunReport, build_report, to_html, to_json, to_markdown
from harness.report.figures import Parting
from harness.report.partings import EXCERPT, gap_of, ids_of, told_lines
from harness.store import DivergenceRow, EvalStore, RequestRow, new_id
from harness.store.partings import SHOWN_OF_CELL, parted_cells
from tests.harness.report.hostile_run import AWKWARD, XSS, hostile_run
from tests.harness.report.test_html_element import Seen
from tests.harness.store.sample_run import Sample, reply

TEXTS = {**XSS, **AWKWARD}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvalStore]:
    with EvalStore.open(tmp_path_factory.mktemp("partings") / "fm.db") as opened:
        yield opened


def parted(
    expected: Sequence[RequestRow],
    replies: Sequence[RequestRow],
    places: Sequence[tuple[str, int, float | None]] = (),
) -> Sample:
    """Return a run of `serial` and `serial+spec`; `places` are prompt, position and gap."""
    sample = Sample(run_id=new_id())
    sample.add("serial", replies=expected)
    trial = sample.add("serial+spec", replies=replies)
    sample.divergences += [
        divergence(trial.trial_id, prompt, position, gap) for prompt, position, gap in places
    ]
    return sample


def divergence(trial_id: str, prompt: str, position: int, gap: float | None) -> DivergenceRow:
    return DivergenceRow(
        trial_id=trial_id, prompt_id=prompt, reference="serial", position=position, gap=gap
    )


def report_of(store: EvalStore, sample: Sample) -> RunReport:
    sample.store_in(store)
    return build_report(store.load_run(sample.run_id))


def shown(report: RunReport) -> list[Parting]:
    return [parting for cell in report.partings for parting in cell.shown]


def test_a_reply_is_told_with_its_place_its_gap_and_both_texts(store: EvalStore) -> None:
    expected = reply("p1", (4, 5, 6), text="It is a cat.")
    other = reply("p1", (4, 9), text="It is a dog.")
    report = report_of(store, parted([expected], [other], [("p1", 1, 0.25)]))
    (parting,) = shown(report)
    assert (parting.block, parting.prompt_id, parting.position) == (0, "p1", 1)
    assert (parting.token, parting.reference_token) == (9, 5)
    assert (parting.judged_at, parting.gap, parting.near_tie_below) == (1, 0.25, 2e-4)
    assert (parting.before, parting.reply, parting.reference_reply) == ("It is a ", "dog.", "cat.")
    row = (
        "| tiny | short-chat | serial+spec | serial | 1 | p1 | 1 | 9 / 5 | 0.25 | 0.0002 "
        "| It is a&#32; | dog. | cat. |"
    )
    assert row in to_markdown(report)
    page = Seen(to_html(report)).text
    assert "token 1: 9 / 5, gap 0.25, a near-tie is below 0.0002" in page
    assert "It is a dog." in page
    (cell,) = json.loads(to_json(report))["partings"]
    assert (cell["cell"], cell["reference"], cell["n"]) == ("serial+spec", "serial", 1)
    assert cell["replies"][0]["judged"] == {"position": 1, "gap": 0.25, "near_tie_below": 2e-4}
    assert cell["replies"][0]["text"] == {
        "before": "It is a ",
        "reply": "dog.",
        "reference": "cat.",
    }
    told = (
        "block 1, prompt p1, token 1: 9 / 5, gap 0.25, a near-tie is below 0.0002; both begin "
        '"It is a ", the reply goes on "dog.", that of serial "cat."'
    )
    assert told_lines(report.partings[0]) == [told]


@pytest.mark.parametrize(
    ("places", "gap"),
    [
        ([], "not judged"),
        ([("p1", 1, None)], "unknown"),
        ([("p1", 1, 3.0)], "3"),
        ([("p1", 1, 1e-5), ("p1", 3, 0.5)], "0.5 at token 3"),
    ],
    ids=["not-judged", "unknown", "clear", "behind-a-near-tie"],
)
def test_a_gap_is_told_or_why_there_is_none(
    places: list[tuple[str, int, float | None]], gap: str, store: EvalStore
) -> None:
    sample = parted([reply("p1", (4, 5, 6, 7))], [reply("p1", (4, 9, 8, 8))], places)
    (parting,) = shown(report_of(store, sample))
    assert gap_of(parting) == gap


@pytest.mark.parametrize(
    ("ids", "told"), [((4,), "end / 5"), ((4, 5, 6, 7), "7 / end"), ((), "end / 4")], ids=str
)
def test_where_a_reply_ends_first_its_end_is_what_differs(
    ids: tuple[int, ...], told: str, store: EvalStore
) -> None:
    (parting,) = shown(report_of(store, parted([reply("p1", (4, 5, 6))], [reply("p1", ids)])))
    assert ids_of(parting) == told


def test_near_ties_and_equal_replies_are_not_told(store: EvalStore) -> None:
    expected = [reply("p1", (4, 5)), reply("p2", (4, 5))]
    replies = [reply("p1", (4, 6)), reply("p2", (4, 5))]
    report = report_of(store, parted(expected, replies, [("p1", 1, 1e-5)]))
    assert report.partings == ()
    assert len(report.near_ties) == 1
    assert json.loads(to_json(report))["partings"] == []
    assert "Replies that part" not in to_markdown(report) + to_html(report)


def test_replies_that_wait_to_be_judged_are_not_told(store: EvalStore) -> None:
    expected = [reply("p1", (4, 5)), reply("p2", (4, 5))]
    replies = [reply("p1", (4, 6)), reply("p2", (4, 6))]
    sample = parted(expected, replies, [("p2", 1, 0.5)])
    sample.plan("serial+spec", block=1)
    assert [item.prompt_id for item in shown(report_of(store, sample))] == ["p2"]


def test_only_the_first_replies_of_a_cell_are_told_and_the_others_counted(
    store: EvalStore,
) -> None:
    prompts = [f"p{at}" for at in range(SHOWN_OF_CELL + 3)]
    expected = [reply(prompt, (4, 5)) for prompt in prompts]
    report = report_of(store, parted(expected, [reply(prompt, (4, 6)) for prompt in prompts]))
    assert [item.prompt_id for item in shown(report)] == prompts[:SHOWN_OF_CELL]
    more = "3 more of serial+spec (tiny on short-chat), in the database."
    assert f"- {more}" in to_markdown(report)
    assert more in Seen(to_html(report)).text
    assert to_html(report).count('class="parting"') == SHOWN_OF_CELL
    (cell,) = json.loads(to_json(report))["partings"]
    assert (cell["n"], len(cell["replies"])) == (len(prompts), SHOWN_OF_CELL)
    assert told_lines(report.partings[0])[-1] == more


def test_long_texts_are_cut_around_the_place_where_they_part(store: EvalStore) -> None:
    begin, end = "a" * 5000, "z" * 5000
    expected = reply("p1", (4, 5), text=f"{begin}1{end}")
    (parting,) = shown(
        report_of(store, parted([expected], [reply("p1", (4, 6), text=f"{begin}2{end}")]))
    )
    assert parting.before == f"...{'a' * EXCERPT}"
    assert parting.reply == f"2{'z' * (EXCERPT - 1)}... ({5001 - EXCERPT} more characters)"
    assert parting.reference_reply.startswith("1z")


def test_replies_without_a_text_or_with_the_same_are_told_by_their_ids(store: EvalStore) -> None:
    for text in (None, "the same"):
        expected, other = reply("p1", (4, 5), text=text), reply("p1", (4, 6), text=text)
        report = report_of(store, parted([expected], [other]))
        (parting,) = shown(report)
        assert (parting.before, parting.reply) == (text or "", "")
        assert "The texts are the same; the token ids differ." in Seen(to_html(report)).text


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_whatever_models_write_is_told_as_it_is(text: str, tmp_path: Path) -> None:
    report = build_report(hostile_run(text).load(tmp_path))
    (cell,) = report.partings
    assert cell.place.cell == f"serial+spec {text}"
    assert [item.is_judged for item in cell.shown] == [False, True]
    for item in json.loads(to_json(report))["partings"][0]["replies"]:
        assert item["text"] == {
            "before": f"{text} ",
            "reply": f"2 {text}",
            "reference": f"1 {text}",
        }
    assert all("\n" not in line for line in told_lines(cell))


def random_run(seed: int) -> Sample:
    """Return a run in which everything that the gate looks at is drawn."""
    rng = random.Random(seed)
    sample = Sample(run_id=new_id())
    cells = ("serial", "serial@aa", "serial+spec", "serial+spec@rejection", "batch4")
    for block in range(3):
        for name in cells:
            replies = [random_reply(rng, f"p{at}") for at in range(4)]
            trial = sample.add(name, block, replies=replies)
            sample.divergences += [
                divergence(trial.trial_id, item.prompt_id, 0, rng.choice([1e-5, 1e-5, 0.5, None]))
                for item in replies
                if name != "serial" and rng.random() < 0.6
            ]
    if rng.random() < 0.3:
        sample.plan("batch4", block=3)
    return sample


def random_reply(rng: random.Random, prompt: str) -> RequestRow:
    ids = [rng.randrange(2) for _ in range(rng.randrange(3))]
    row = reply(prompt, ids, sampling={"temperature": rng.choice([0.0, 0.0, 0, 0.8])})
    if rng.random() < 0.1:
        return replace(row, token_ids=None)
    return replace(row, status="error", error="x") if rng.random() < 0.1 else row


@pytest.mark.parametrize("seed", range(12))
def test_as_many_replies_are_told_as_the_gate_counts(seed: int, store: EvalStore) -> None:
    sample = random_run(seed)
    sample.store_in(store)
    data = store.load_run(sample.run_id)
    told = {cell.cell: cell.n for cell in data.parted}
    rows = [row for row in gates.evaluate(data) if row.name == "identity"]
    assert rows
    wrong = {row.cell: round((1 - (row.observed or 0.0)) * row.n) for row in rows if row.n}
    assert told == {cell: count for cell, count in wrong.items() if count}
    assert all(row.status == "fail" for row in rows if row.cell in told)


def statements(path: Path, sample: Sample) -> list[str]:
    """Return the statements that look for replies of a run whose gates are stored."""
    with EvalStore.open(path) as store:
        sample.store_in(store)
        store.record_gates(sample.run_id, gates.evaluate(store.load_run(sample.run_id)))
        data = store.load_report(sample.run_id)
    seen: list[str] = []
    raw = sqlite3.connect(path)
    raw.row_factory = sqlite3.Row
    raw.set_trace_callback(seen.append)
    assert parted_cells(raw, data) == data.parted
    raw.close()
    return seen


def test_texts_are_read_of_the_replies_that_are_told_and_of_no_others(tmp_path: Path) -> None:
    prompts = [f"p{at}" for at in range(40)]
    expected = [reply(prompt, (4, 5)) for prompt in prompts]
    sample = parted(expected, [reply(prompt, (4, 6)) for prompt in prompts])
    seen = statements(tmp_path / "fm.db", sample)
    whole = [line for line in seen if "text" in line or "*" in line]
    assert len(whole) == 2 * SHOWN_OF_CELL
    assert all("AND position = " in line for line in whole)


def test_no_reply_of_a_cell_that_passed_is_read_again(tmp_path: Path) -> None:
    expected = [reply(f"p{at}", (4, 5)) for at in range(4)]
    assert statements(tmp_path / "fm.db", parted(expected, expected)) == []
