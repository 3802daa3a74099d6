"""Every moment of a step belongs to one part or to the remainder, and to the right one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine import arrays, emit, flight
from engine.config import EngineConfig
from engine.loop import Engine
from engine.request import Constraint, ConstraintKind, Provenance, Request
from engine.step_time import PARTS, StepTimer
from engine.telemetry import StepReport
from engine.testing import ScriptedDrafter, tiny_model

CLOSED = Constraint(
    kind=ConstraintKind.JSON_SCHEMA,
    value={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
)
SPEC = EngineConfig(num_draft_tokens=3, draft_budgets="fixed")
LANES = {
    "serial": (EngineConfig(), None),
    "serial, not pipelined": (EngineConfig(pipelined=False), None),
    "serial+grammar": (EngineConfig(), CLOSED),
    "batch": (EngineConfig(max_rows=4), None),
    "serial+spec": (SPEC, None),
    "serial+spec+grammar": (SPEC, CLOSED),
    "batch+spec": (replace(SPEC, max_rows=4, spec_batching="batched"), None),
}


class Steps:
    """A clock that only the pieces of a step move, each by its own number of seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.spent_s: Counter[str] = Counter()
        self._monkeypatch = monkeypatch

    def charge(self, part: str, seconds: float, owner: Any, name: str) -> None:
        """Let every call of a real function take so long, and note where it belongs."""
        call: Callable[..., Any] = getattr(owner, name)

        def slow(*args: Any, **kwargs: Any) -> Any:
            self.now_s += seconds
            self.spent_s[part] += seconds
            return call(*args, **kwargs)

        self._monkeypatch.setattr(owner, name, slow)


def busy(config: EngineConfig, constraint: Constraint | None) -> Engine:
    """An engine whose rows wait to be served."""
    engine = Engine(tiny_model(), config, ScriptedDrafter(lambda row: [65, 66]))
    for start in range(config.max_rows):
        ids = tuple(range(40 + start, 60 + start))
        engine.submit(Request(prompt_ids=ids, max_tokens=12 + start, constraint=constraint))
    return engine


@pytest.mark.parametrize(("config", "constraint"), LANES.values(), ids=LANES.keys())
def test_each_piece_of_a_step_is_charged_to_its_part_and_the_rest_to_none(
    config: EngineConfig, constraint: Constraint | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, steps = busy(config, constraint), Steps(monkeypatch)
    engine._timer.clock = lambda: steps.now_s
    for part, seconds, owner, name in (
        ("plan", 1, engine._scheduler, "plan"),
        ("plan", 2, engine._scheduler, "plan_ahead"),
        ("draft", 4, engine._proposer, "propose"),
        ("build", 8, engine._runner, "forward"),
        ("build", 16, engine._runner, "prefill"),
        ("launch", 32, engine._runner, "launch"),
        ("mask", 64, flight, "_fill"),
        ("sample", 128, flight, "adjust"),
        ("wait", 256, arrays, "read_tokens"),
        ("commit", 512, emit, "commit"),
        ("", 1024, type(engine._tally), "add"),
        ("", 2048, engine, "_tell"),
    ):
        steps.charge(part, seconds, owner, name)
    seen: set[str] = set()
    while engine.has_work:
        before_s = steps.now_s
        steps.spent_s.clear()
        engine.step()
        report = engine.last_step
        assert report is not None
        told = {part: seconds for part, seconds in report.parts_s.items() if seconds}
        assert told == {part: seconds for part, seconds in steps.spent_s.items() if part}
        remainder = (steps.now_s - before_s) - sum(report.parts_s.values())
        assert remainder == steps.spent_s[""]
        seen |= set(told)
    assert seen == set(PARTS) - (set() if constraint else {"mask"})


def test_a_step_that_computes_nothing_has_no_report() -> None:
    engine = Engine(tiny_model(), EngineConfig())
    engine.generate([Request(prompt_ids=(65, 66), max_tokens=3)])
    assert isinstance(engine.last_step, StepReport)
    assert engine.step() == []
    assert engine.last_step is None


def test_a_timer_shares_out_all_that_it_does_not_skip() -> None:
    now = iter([1.0, 3.0, 7.0, 15.0, 31.0, 63.0])
    timer = StepTimer(lambda: next(now))
    timer.start()
    assert timer.lap("plan") == 7.0
    assert timer.skip() == 15.0
    timer.lap("wait")
    timer.lap("plan")
    assert timer.seconds == {**dict.fromkeys(PARTS, 0.0), "plan": 4.0 + 32.0, "wait": 16.0}


@pytest.mark.parametrize("rows", [1, 3])
def test_counts_by_position_tell_how_many_drafts_every_call_accepted(rows: int) -> None:
    """What reports derive from positions is what a count of every call gives."""
    model = tiny_model()
    requests = [
        Request(prompt_ids=tuple(range(40 + start, 70 + start)), max_tokens=40, ignore_eos=True)
        for start in range(rows)
    ]
    truth = [item.token_ids for item in Engine(model, EngineConfig()).generate(requests)]

    def half_right(row: Any) -> list[int]:
        """Right for a number of tokens that changes from step to step, none in some steps."""
        answer = truth[row.request.prompt_ids[0] - 40]
        ahead = list(answer[row.num_emitted : row.num_emitted + 3])
        right = row.num_emitted % 4
        return [*ahead[:right], *[(token + 1) % 60 for token in ahead[right:]]][
            : row.num_emitted % 5
        ]

    config = replace(SPEC, max_rows=rows, spec_batching="batched")
    engine = Engine(model, config, ScriptedDrafter(half_right))
    ids = [engine.submit(request) for request in requests]
    counted: dict[str, Counter[int]] = {request_id: Counter() for request_id in ids}
    while engine.has_work:
        events = engine.step()
        report = engine.last_step
        assert report is not None
        if report.is_decode:
            for request_id in {event.request_id for event in events}:
                own = [event for event in events if event.request_id == request_id]
                kept = sum(event.provenance is Provenance.ACCEPTED for event in own)
                counted[request_id][kept] += 1
    for request_id, expected in zip(ids, truth, strict=True):
        done = engine.completion(request_id)
        assert done.token_ids == expected
        reached = [done.target_calls, *done.accepted_by_position, 0]
        derived = [reached[k] - reached[k + 1] for k in range(len(reached) - 1)]
        assert {k: n for k, n in enumerate(derived) if n} == dict(counted[request_id])
        assert len(counted[request_id]) > 2
