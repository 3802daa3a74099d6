"""Stress scripts in small number: every row is its solo run, and what goes wrong is seen."""

from __future__ import annotations

import pytest

from engine.cache.slots import SlotCache
from engine.propose import Proposer
from engine.row_params import RowParams
from engine.testing import tiny_model
from harness.lane_audit.script import Join, make_script, tiny_limits
from harness.lane_audit.stress import ScriptResult, Stress, run_scripts

NUM_SCRIPTS = 5
"""The audit plays 200."""

BROKEN_SEED = 3
"""A script whose rows move, leave a drafter behind and change their parameters."""


def stress() -> Stress:
    return Stress(tiny_model(), tiny_limits(), is_exact=True, say=lambda line: None)


@pytest.fixture(scope="module")
def played() -> list[ScriptResult]:
    run = stress()
    report = run_scripts(run, NUM_SCRIPTS, 0, lambda line: None)
    assert report["failures"] == []
    return run.results


def test_every_row_of_random_scripts_is_its_solo_run(played: list[ScriptResult]) -> None:
    assert sum(result.equal for result in played) == sum(result.rows for result in played) > 30
    assert sum(result.tokens for result in played) > 500


def test_the_scripts_meet_what_they_are_there_for(played: list[ScriptResult]) -> None:
    for name in ("cancelled", "constrained", "moves", "twins", "cached_tokens", "accepted"):
        assert sum(getattr(result, name) for result in played) > 0, name


def test_a_seed_is_one_script_and_seeds_differ() -> None:
    one, same, other = (make_script(seed, tiny_limits()) for seed in (5, 5, 6))
    assert one == same != other


def test_copies_have_ids_and_seeds_of_their_own() -> None:
    joins = [
        action.does
        for seed in range(20)
        for action in make_script(seed, tiny_limits()).actions
        if isinstance(action.does, Join) and action.does.copies > 1
    ]
    for join in joins:
        assert len({row.request_id for row in join.rows}) == join.copies
        assert len({row.sampling.seed for row in join.rows}) == join.copies
    assert joins


def seat_once(params: RowParams, rows: object) -> None:
    """Write a slot's parameters only when it was idle."""
    for slot, row in rows:  # type: ignore[attr-defined]  # pairs of a slot and its row
        if params._rows[slot : slot + 1] in ([], [None]):
            params._write(slot, row)


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (SlotCache, "move", lambda cache, source, destination: None),
        (RowParams, "seat", seat_once),
        (Proposer, "leave", lambda proposer, sequence: None),
    ],
    ids=["a slot is not copied", "a moved row keeps no parameters", "the drafter is not told"],
)
def test_a_broken_engine_is_seen(
    owner: type, name: str, broken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    run = stress()
    run.run([BROKEN_SEED])
    assert run.results[0].failures
