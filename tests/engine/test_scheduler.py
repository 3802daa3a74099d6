"""Plans: first come first served, one contiguous range, budgets kept, nobody lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.plan import StepKind, StepPlan, step_width
from engine.request import FinishReason, Request
from engine.routing import Lane, route
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.text import TextStream

configs = st.builds(
    EngineConfig,
    max_rows=st.integers(1, 4),
    prefill_chunk=st.integers(1, 9),
    num_draft_tokens=st.integers(0, 7),
    spec_batching=st.sampled_from(["serial", "batched"]),
)
rows = st.tuples(st.integers(1, 30), st.integers(1, 12), st.sampled_from([None, 0, 3]))


def sequence(config: EngineConfig, length: int, max_tokens: int, drafts: int | None) -> Sequence:
    """A row with a prompt of a given length."""
    request = Request(
        prompt_ids=tuple(range(length)), max_tokens=max_tokens, num_draft_tokens=drafts
    )
    return Sequence(request, route(config, request), 0, TextStream(lambda _: b"", ()))


def check_plan(config: EngineConfig, plan: StepPlan) -> None:
    """What holds for every plan by itself."""
    assert len(plan.slots) <= config.max_rows
    indices = [slot.index for slot in plan.slots]
    assert indices == list(range(plan.first, plan.first + len(indices)))
    assert {slot.sequence.route.lane for slot in plan.slots} == {Lane.BATCH} or len(indices) == 1
    for slot in plan.slots:
        row = slot.sequence
        assert slot.start == row.num_cached
        assert list(slot.tokens) == row.ids[slot.start : slot.start + len(slot.tokens)]
        if plan.kind is StepKind.PREFILL:
            assert 1 <= len(slot.tokens) <= config.prefill_chunk
            assert slot.draft_budget == 0
        else:
            assert slot.tokens == (row.ids[-1],)
            assert slot.draft_budget <= min(row.route.draft_budget, row.remaining - 1)


@given(config=configs, shapes=st.lists(rows, min_size=1, max_size=9), data=st.data())
def test_every_row_is_served_in_order_within_slots_and_budgets(
    config: EngineConfig, shapes: list[tuple[int, int, int | None]], data: st.DataObject
) -> None:
    scheduler = Scheduler(config)
    waiting = [sequence(config, *shape) for shape in shapes]
    for row in waiting:
        scheduler.add(row)
    first_served: list[Sequence] = []
    slots: dict[int, Sequence | None] = {}
    for _ in range(2_000):
        plan = scheduler.plan()
        if plan is None:
            break
        for source, destination in plan.moves:
            slots[destination] = slots.pop(source, None)
        check_plan(config, plan)
        for slot in plan.slots:
            row = slot.sequence
            if row not in first_served:
                first_served.append(row)
                slots[slot.index] = row
            assert slots[slot.index] is row
            emitted = 0
            if slot.samples:
                emitted = data.draw(st.integers(1, slot.draft_budget + 1))
            row.num_cached = slot.start + len(slot.tokens) + max(0, emitted - 1)
            row.ids.extend([7] * emitted)
        for slot in plan.slots:
            if slot.sequence.remaining <= 0 or data.draw(st.integers(0, 9)) == 0:
                slot.sequence.finish_reason = FinishReason.STOP
                scheduler.release(slot.sequence)
    assert not scheduler.has_work
    assert first_served == waiting


def test_a_chained_plan_only_moves_every_row_one_token_further() -> None:
    config = EngineConfig(max_rows=2)
    scheduler = Scheduler(config)
    for length in (3, 5):
        scheduler.add(sequence(config, length, 4, None))
    for _ in range(2):
        plan = scheduler.plan()
        assert plan is not None
        assert scheduler.plan_ahead(plan) is None
        for slot in plan.slots:
            slot.sequence.num_cached = slot.start + len(slot.tokens)
            slot.sequence.ids.append(9)
    plan = scheduler.plan()
    assert plan is not None
    ahead = scheduler.plan_ahead(plan)
    assert ahead is not None
    assert ahead.starts == tuple(start + 1 for start in plan.starts)
    scheduler.add(sequence(config, 1, 1, None))
    assert scheduler.plan_ahead(plan) is not None, "the table is full: nobody can join yet"
    scheduler.release(plan.slots[0].sequence)
    assert scheduler.plan_ahead(plan) is None


def test_widths_come_from_the_declared_set() -> None:
    assert [step_width(number) for number in (1, 2, 3, 4, 5, 8, 9, 16)] == [
        1,
        2,
        4,
        4,
        8,
        8,
        16,
        16,
    ]
