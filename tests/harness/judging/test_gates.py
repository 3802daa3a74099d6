"""Each gate turns red for what it is there for, and is never green for having seen nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.judging.gates import evaluate, exit_code
from harness.store import DivergenceRow, GateRow, LawRow, ModelRow
from harness.store.rows import GateStatus
from tests.harness.store.sample_run import EXTRACT, Sample, cell, reply


def gate(sample: Sample, folder: Path, name: str, where: str = "") -> GateRow | None:
    """Return one gate of a sample; `where` is a cell."""
    found = [row for row in evaluate(sample.load(folder)) if row.name == name]
    found = [row for row in found if not where or row.cell == where]
    assert len(found) <= 1
    return found[0] if found else None


def status(sample: Sample, folder: Path, name: str, where: str = "") -> str:
    found = gate(sample, folder, name, where)
    return "absent" if found is None else found.status


def graded(*outcomes: str | None) -> list:  # type: ignore[type-arg]  # of request rows
    return [
        reply(f"p{number}", conformance=outcome, conformance_detail="why" if outcome else "")
        for number, outcome in enumerate(outcomes)
    ]


@pytest.mark.parametrize(
    ("outcomes", "expected", "n"),
    [
        pytest.param(["ok", "ok"], "pass", 2, id="all conform"),
        pytest.param(["ok", "schema-invalid"], "fail", 2, id="one does not"),
        pytest.param(["ok", "truncated"], "fail", 2, id="one is cut"),
        pytest.param(["ok", "not-accepted"], "fail", 2, id="the matcher refuses one"),
        pytest.param([], "incomplete", 0, id="no reply"),
        pytest.param(["ok", None], "incomplete", 1, id="one was not graded"),
    ],
)
def test_conformance_needs_every_reply(
    tmp_path: Path, outcomes: list[str | None], expected: str, n: int
) -> None:
    sample = Sample()
    sample.add("serial+grammar", workload=EXTRACT, replies=graded(*outcomes))
    found = gate(sample, tmp_path, "conformance")
    assert found is not None
    assert (found.status, found.n) == (expected, n)
    assert (found.observed is None) == (n == 0)


def test_conformance_counts_a_failed_request_as_a_failure(tmp_path: Path) -> None:
    sample = Sample()
    replies = [*graded("ok"), reply("p9", ids=(), status="error", error="dead end", text=None)]
    sample.add("serial+grammar", workload=EXTRACT, replies=replies)
    found = gate(sample, tmp_path, "conformance")
    assert found is not None
    assert found.status == "fail"
    assert "dead end" in found.detail


def test_a_format_that_nothing_checks_leaves_conformance_incomplete(tmp_path: Path) -> None:
    sample = Sample()
    unchecked = reply(conformance="ok", unchecked_formats=("iri",))
    sample.add("serial+grammar", workload=EXTRACT, replies=[unchecked])
    found = gate(sample, tmp_path, "conformance")
    assert found is not None
    assert found.status == "incomplete"
    assert "iri" in found.detail


def test_free_text_has_no_conformance_gate(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", workload=EXTRACT, replies=graded("not-json"))
    assert status(sample, tmp_path, "conformance") == "absent"


def pair(ours: tuple[int, ...], theirs: tuple[int, ...], blocks: int = 1) -> Sample:
    """Return a run that came to its end, serial and serial+spec with one reply each a block."""
    sample = Sample(run={"status": "finished"})
    for block in range(blocks):
        sample.add("serial", block=block, replies=[reply("p1", theirs)])
        sample.add("serial+spec", block=block, replies=[reply("p1", ours)])
    return sample


def judge(sample: Sample, position: int, gap: float | None, trial: int = 1) -> None:
    sample.divergences.append(
        DivergenceRow(
            trial_id=sample.planned[trial].trial_id,
            prompt_id="p1",
            reference="serial",
            position=position,
            gap=gap,
        )
    )


def test_identity_passes_for_equal_ids(tmp_path: Path) -> None:
    found = gate(pair((1, 2), (1, 2), blocks=3), tmp_path, "identity", "serial+spec")
    assert found is not None
    assert (found.status, found.observed, found.n) == ("pass", 1.0, 1)


def test_identity_fails_for_a_parting_nobody_judged(tmp_path: Path) -> None:
    assert status(pair((1, 2), (1, 3)), tmp_path, "identity") == "fail"


@pytest.mark.parametrize(
    ("gap", "expected"), [(1e-5, "pass"), (2e-4, "fail"), (0.5, "fail"), (None, "fail")]
)
def test_identity_allows_a_near_tie_only(tmp_path: Path, gap: float | None, expected: str) -> None:
    sample = pair((1, 2), (1, 3))
    judge(sample, 1, gap)
    assert status(sample, tmp_path, "identity") == expected


def test_one_near_tie_that_every_block_repeats_counts_once(tmp_path: Path) -> None:
    sample = pair((1, 2), (1, 3), blocks=5)
    judge(sample, 1, 1e-5, trial=3)
    found = gate(sample, tmp_path, "identity")
    assert found is not None
    assert (found.status, found.n) == ("pass", 1)
    assert found.detail == "1 near-ties in 2 tokens"


def by_law(*laws: LawRow | None, temperature: float = 0.8) -> Sample:
    """Return serial and a rejection cell whose replies differ, each with what its draws say."""
    sample, sampling = Sample(run={"status": "finished"}), {"temperature": temperature}
    prompts = [f"p{place}" for place in range(len(laws))]
    sample.add("serial", replies=[reply(name, (1, 2), sampling=sampling) for name in prompts])
    ours = sample.add(
        "serial+spec@rejection",
        replies=[reply(name, (1, 3), sampling=sampling) for name in prompts],
    )
    sample.laws += [
        replace(law, trial_id=ours.trial_id, position=place)
        for place, law in enumerate(laws)
        if law is not None
    ]
    return sample


LAWFUL = LawRow(trial_id="", position=0, draws=3, impossible_at=None, evidence={"0.5": -1.0})


@pytest.mark.parametrize(
    ("laws", "expected", "detail"),
    [
        ([LAWFUL, LAWFUL], "pass", "6 draws of 2 replies"),
        ([LAWFUL, replace(LAWFUL, impossible_at=1)], "fail", "prompt p1 has an impossible token"),
        ([LAWFUL, replace(LAWFUL, evidence={"0.5": 30.0})], "fail", "do not come from the law"),
        ([LAWFUL, None], "incomplete", "1 replies were not judged"),
        ([None], "incomplete", "0 draws of 0 replies"),
    ],
    ids=["lawful", "impossible token", "evidence", "one unjudged", "nothing seen"],
)
def test_sampled_replies_under_rejection_are_judged_by_their_law_and_not_by_ids(
    tmp_path: Path, laws: list[LawRow | None], expected: str, detail: str
) -> None:
    sample = by_law(*laws)
    found = gate(sample, tmp_path, "law", "serial+spec@rejection")
    assert found is not None
    assert found.status == expected
    assert detail in found.detail
    assert found.n == 3 * sum(law is not None for law in laws)
    assert status(sample, tmp_path / "2", "identity", "serial+spec@rejection") == "absent"


def test_greedy_replies_under_rejection_are_judged_by_ids_and_by_no_law(tmp_path: Path) -> None:
    sample = by_law(LAWFUL, temperature=0.0)
    assert status(sample, tmp_path, "identity", "serial+spec@rejection") == "fail"
    assert status(sample, tmp_path / "2", "law") == "absent"


def test_sampled_replies_under_match_are_judged_by_ids(tmp_path: Path) -> None:
    sample, sampling = Sample(run={"status": "finished"}), {"temperature": 0.8}
    sample.add("serial", replies=[reply("p1", (1, 2), sampling=sampling)])
    sample.add("serial+spec", replies=[reply("p1", (1, 3), sampling=sampling)])
    assert status(sample, tmp_path, "identity", "serial+spec") == "fail"
    assert status(sample, tmp_path / "2", "law") == "absent"


def test_a_rejection_cell_that_measured_nothing_is_not_green(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial")
    sample.add("serial+spec@rejection", replies=[])
    assert status(sample, tmp_path, "identity", "serial+spec@rejection") == "incomplete"


def test_identity_without_the_reference_is_incomplete(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial+spec")
    sample.plan("serial")
    assert status(sample, tmp_path, "identity") == "incomplete"


def test_identity_compares_neither_warm_up_nor_failed_nor_other_prompts(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", replies=[reply("p1", (1,)), reply("p2", (2,)), reply("p3", (3,))])
    others = [
        reply("p1", (9,), phase="warmup"),
        reply("p2", (9,), status="error"),
        reply("p4", (9,)),
        reply("p3", (9,), sampling={"temperature": 0.8}),
    ]
    sample.add("serial+spec", replies=others)
    assert status(sample, tmp_path, "identity") == "incomplete"


def test_a_cell_without_reference_has_no_identity_gate(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial")
    sample.add("mlx-lm")
    assert status(sample, tmp_path, "identity") == "absent"


@pytest.mark.parametrize(
    ("lane", "reason", "expected"),
    [
        ("serial", "speculation runs serially", "pass"),
        ("batch", "", "fail"),
        ("serial", "", "fail"),
        ("", "", "incomplete"),
    ],
)
def test_a_routed_cell_takes_its_lane_and_says_why(
    tmp_path: Path, lane: str, reason: str, expected: str
) -> None:
    sample = Sample()
    sample.add("batch4+spec@routed", replies=[reply(lane_taken=lane, lane_reason=reason)])
    assert status(sample, tmp_path, "routing", "batch4+spec@routed") == expected


def test_a_lane_that_is_taken_as_declared_needs_no_reason(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", replies=[reply(lane_taken="serial")])
    assert status(sample, tmp_path, "routing") == "pass"


def test_a_reply_that_does_not_say_its_lane_is_not_taken_for_one_that_does(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", replies=[reply("p1"), reply("p2", lane_taken="")])
    found = gate(sample, tmp_path, "routing")
    assert found is not None
    assert (found.status, found.n) == ("incomplete", 1)
    assert found.detail == "1 of 2 replies name no lane"


def test_peers_have_no_routing_gate(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("mlx-lm", replies=[reply(lane_taken="serial")])
    assert status(sample, tmp_path, "routing") == "absent"


@pytest.mark.parametrize(
    ("drafted", "accepted", "expected"),
    [(30, 30, "pass"), (30, 27, "pass"), (30, 26, "fail"), (0, 0, "incomplete")],
)
def test_a_drafter_that_is_the_target_has_all_but_the_last_burst_accepted(
    tmp_path: Path, drafted: int, accepted: int, expected: str
) -> None:
    sample = Sample()
    replies = [reply(drafted=drafted, accepted=accepted)]
    sample.add("serial+spec@two-model", replies=replies)
    assert status(sample, tmp_path, "acceptance") == expected


def test_another_drafter_has_no_acceptance_gate(tmp_path: Path) -> None:
    sample = Sample()
    sample.cells["serial+spec@two-model"] = cell(
        "serial+spec@two-model", settings={"drafter": "two_model", "draft_model": "smaller"}
    )
    sample.add("serial+spec@two-model", replies=[reply(drafted=9, accepted=1)])
    sample.add("serial+spec", replies=[reply(drafted=9, accepted=1)])
    assert status(sample, tmp_path, "acceptance") == "absent"


def completeness(sample: Sample, folder: Path) -> GateRow:
    found = gate(sample, folder, "completeness")
    assert found is not None
    return found


def test_a_run_that_did_all_it_planned_is_complete(tmp_path: Path) -> None:
    sample = pair((1,), (1,), blocks=2)
    sample.plan("serial+grammar", status="skipped", reason="no constraint")
    found = completeness(sample, tmp_path)
    assert (found.status, found.observed, found.n, found.detail) == ("pass", 1.0, 4, "")


def test_a_run_of_nothing_is_incomplete(tmp_path: Path) -> None:
    assert completeness(Sample(), tmp_path).status == "incomplete"
    only_skipped = Sample()
    only_skipped.plan("serial+grammar", status="skipped", reason="no constraint")
    (tmp_path / "b").mkdir()
    assert completeness(only_skipped, tmp_path / "b").status == "incomplete"


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        pytest.param(lambda run: run.plan("serial", block=3), "pending", id="pending"),
        pytest.param(
            lambda run: run.add("serial", block=3, status="failed", reason="boom"),
            "failed: boom",
            id="failed",
        ),
        pytest.param(
            lambda run: run.add("serial", block=3, replies=[reply(status="error")]),
            "1 of 1 requests failed",
            id="a request failed",
        ),
        pytest.param(
            lambda run: run.add("serial", block=3, replies=[]), "measured no request", id="empty"
        ),
        pytest.param(
            lambda run: run.add("serial", block=3, tok_s=None), "has no speed", id="no speed"
        ),
        pytest.param(
            lambda run: run.add("serial", block=3, tok_s=float("nan")), "has no speed", id="NaN"
        ),
        pytest.param(
            lambda run: run.add("serial+spec", block=3), "has no baseline serial", id="no baseline"
        ),
        pytest.param(
            lambda run: run.plan(
                "serial",
                model=ModelRow(name="far"),
                status="skipped",
                reason="no network",
            ),
            "model far did not run: no network",
            id="a model that could not be reached",
        ),
    ],
)
def test_whatever_is_missing_leaves_the_run_incomplete(
    tmp_path: Path,
    break_it,  # type: ignore[no-untyped-def]  # changes a sample
    told: str,
) -> None:
    sample = pair((1,), (1,))
    break_it(sample)
    found = completeness(sample, tmp_path)
    assert found.status == "incomplete"
    assert told in found.detail


def test_a_routing_check_needs_no_speed(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial")
    sample.add("batch4+spec@routed", tok_s=None, replies=[reply(lane_reason="spec is serial")])
    assert completeness(sample, tmp_path).status == "pass"


def test_a_long_list_of_problems_is_cut(tmp_path: Path) -> None:
    sample = Sample()
    for block in range(9):
        sample.plan("serial", block=block)
    assert completeness(sample, tmp_path).detail.endswith("; and 6 more")


def row(state: GateStatus) -> GateRow:
    return GateRow(run_id="01X", name="identity", status=state)


@pytest.mark.parametrize(
    ("statuses", "interrupted", "unsaved", "code"),
    [
        (["pass", "pass"], False, False, 0),
        (["pass", "incomplete"], False, False, 6),
        (["incomplete", "fail"], False, False, 3),
        (["fail"], False, True, 3),
        (["pass"], False, True, 6),
        ([], False, False, 6),
        (["fail"], True, True, 130),
    ],
)
def test_the_exit_code_is_the_worst(
    statuses: list[GateStatus], interrupted: bool, unsaved: bool, code: int
) -> None:
    found = exit_code(list(map(row, statuses)), is_interrupted=interrupted, is_unsaved=unsaved)
    assert found == code


def test_a_server_that_tells_no_decode_steps_has_the_speed_of_its_wall_time(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", tok_s=None, client_stream_s=9.0)
    assert completeness(sample, tmp_path).status == "pass"
    sample = Sample()
    sample.add("serial", tok_s=None, client_stream_s=9.0, wall_s=None)
    assert "has no speed" in completeness(sample, tmp_path / "b").detail


NEVER_FULL = {"decode_steps": 3, "aggregate_tokens": 0, "aggregate_s": 0.0}


def test_a_trial_whose_steps_never_had_all_rows_is_complete_and_its_speed_is_explained(
    tmp_path: Path,
) -> None:
    """Replies end where the model ends them: to run the trial again would change nothing."""
    sample = Sample()
    for block in range(2):
        sample.add("serial", block=block)
        sample.add("batch4", block=block, **(NEVER_FULL if block else {}))
    found = completeness(sample, tmp_path)
    assert (found.status, found.observed) == ("pass", 1.0)
    assert "1 trial of" in found.detail
    assert "batch4 has no speed, since no decode step had all its rows" in found.detail


def test_a_run_without_any_speed_is_not_green(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial", **NEVER_FULL)
    sample.add("batch4", **NEVER_FULL)
    found = completeness(sample, tmp_path)
    assert found.status == "incomplete"
    assert "more --max-tokens" in found.detail


def test_steps_that_committed_tokens_in_no_time_are_no_speed(tmp_path: Path) -> None:
    sample = Sample()
    sample.add("serial")
    sample.add("batch4", decode_steps=3, aggregate_tokens=12, aggregate_s=0.0)
    assert "has no speed" in completeness(sample, tmp_path).detail
    assert completeness(sample, tmp_path / "again").status == "incomplete"


def test_a_reply_that_differs_waits_for_the_trials_that_come_before_its_judge(
    tmp_path: Path,
) -> None:
    sample = pair((1, 2), (1, 3))
    sample.plan("serial", block=1)
    found = gate(sample, tmp_path, "identity", "serial+spec")
    assert found is not None
    assert found.status == "incomplete"
    assert "1 replies that differ wait to be judged" in found.detail
    judge(sample, 1, 0.5)
    assert status(sample, tmp_path / "judged", "identity") == "fail"
