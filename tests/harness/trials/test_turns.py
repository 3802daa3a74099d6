"""A trial in turns is the trial in one go: every figure adds up, is largest, or is told once."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from harness.store import AcceptRow, RequestRow, TrialRecord, TrialRow
from harness.trials.turns import ONCE, PEAKS, SUMS, has_replay, joined

PLAN = TrialRow(
    trial_id="t", run_id="r", block=2, order_in_block=1, model="m", workload="w", cell="c"
)
DONE = replace(PLAN, status="done", lane_taken="batch", lane_reason="rows")


def request(position: int, phase: str = "measured", lane: str = "batch") -> RequestRow:
    return RequestRow(
        trial_id="t",
        position=position,
        prompt_id=f"p{position}",
        phase=phase,  # type: ignore[arg-type]  # one of its words
        lane_taken=lane,
        lane_reason="rows",
    )


def turn(value: float | None, **changes: object) -> TrialRecord:
    figures = dict.fromkeys((*SUMS, *PEAKS), value)
    trial = replace(DONE, **figures, **changes)  # type: ignore[arg-type]  # numbers will do
    return TrialRecord(trial=trial, requests=(request(0),))


def test_every_column_of_a_trial_has_its_rule() -> None:
    """A column that is added has to say here what becomes of it."""
    of_last = {item.name for item in fields(TrialRow)} - {*SUMS, *PEAKS, *ONCE}
    assert of_last == {
        *("trial_id", "run_id", "block", "order_in_block", "model", "workload", "cell"),
        *("status", "reason", "failed_before", "started_at", "finished_at", "counters"),
        *("weight_bytes", "kv_token_bytes", "kv_row_bytes"),
        *("lane_declared", "lane_taken", "lane_reason"),
    }


def test_one_turn_is_its_trial() -> None:
    only = turn(3)
    assert joined([only]) is only


def test_sums_add_up_and_peaks_do_not() -> None:
    trial = joined([turn(3), turn(5), turn(4)]).trial
    assert {getattr(trial, name) for name in SUMS} == {12}
    assert {getattr(trial, name) for name in PEAKS} == {5}


@pytest.mark.parametrize("turns", [(3, None), (None, 3)])
def test_what_one_turn_does_not_tell_is_told_by_none(turns: tuple[float | None, ...]) -> None:
    trial = joined([turn(value) for value in turns]).trial
    assert {getattr(trial, name) for name in (*SUMS, *PEAKS)} == {None}


def test_a_replay_is_that_of_the_turn_that_made_it() -> None:
    replayed = turn(1, replay_tokens=15, replay_plain_s=1.0, replay_masked_s=2.0, replay_mask_s=0.5)
    assert not has_replay([turn(1)])
    assert has_replay([turn(1), replayed])
    trial = joined([turn(1), replayed, turn(1)]).trial
    assert [getattr(trial, name) for name in ONCE] == [15, 1.0, 2.0, 0.5]


def test_work_adds_up_and_what_an_engine_has_come_to_does_not() -> None:
    one = turn(1, counters={"steps": 4, "kv_bytes": 100, "compiles": 1, "odd": 1})
    other = turn(1, counters={"steps": 5, "kv_bytes": 150, "compiles": 3})
    assert joined([one, other]).trial.counters == {"steps": 9, "kv_bytes": 150, "compiles": 3}


def test_requests_keep_their_order_and_have_places_of_their_own() -> None:
    warm = TrialRecord(trial=DONE, requests=(request(0, "warmup"), request(1)))
    rows = joined([warm, turn(1), turn(1)]).requests
    assert [row.position for row in rows] == [0, 1, 2, 3]
    assert [row.phase for row in rows] == ["warmup", "measured", "measured", "measured"]


def test_a_lane_that_changes_between_turns_is_no_lane() -> None:
    other = TrialRecord(
        trial=replace(DONE, lane_taken="serial"), requests=(request(0, lane="serial"),)
    )
    assert joined([turn(1), turn(1)]).trial.lane_taken == "batch"
    trial = joined([turn(1), other]).trial
    assert (trial.lane_taken, trial.lane_reason) == ("", "2 lanes were taken")


def test_drafts_are_summed_by_position() -> None:
    def drafted(*counts: tuple[int, int]) -> TrialRecord:
        rows = (
            AcceptRow(trial_id="t", position=place, drafted=drafts, accepted=taken)
            for place, (drafts, taken) in enumerate(counts)
        )
        return TrialRecord(trial=DONE, accepts=tuple(rows))

    whole = joined([drafted((4, 2)), drafted((3, 3), (3, 1))])
    assert [(row.position, row.drafted, row.accepted) for row in whole.accepts] == [
        (0, 7, 5),
        (1, 3, 1),
    ]


def test_a_trial_that_failed_in_a_turn_is_a_failed_one_with_all_its_requests() -> None:
    broken = TrialRecord(trial=replace(PLAN, status="failed", reason="gone"))
    record = joined([turn(1), broken])
    assert (record.trial.status, record.trial.reason) == ("failed", "gone")
    assert len(record.requests) == 1


def test_a_trial_lasts_from_its_first_turn_to_its_last() -> None:
    turns = [
        turn(1, started_at="2026-01-01T00:00:00Z", finished_at="2026-01-01T00:00:01Z"),
        turn(1, started_at="2026-01-01T00:00:05Z", finished_at="2026-01-01T00:00:06Z"),
    ]
    trial = joined(turns).trial
    assert (trial.started_at, trial.finished_at) == (
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:06Z",
    )
