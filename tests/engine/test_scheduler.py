"""Plans: first come first served, declared shapes, budgets kept, nobody starves or is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.kv_budget import KvBudget, KvCosts, Rectangle
from engine.plan import StepKind, StepPlan
from engine.reasoning import ReplyText
from engine.request import FinishReason, Request
from engine.routing import Lane, route
from engine.scheduler import Scheduler
from engine.sequence import MAX_FAILURES, Sequence
from engine.shapes import ROW_BUCKETS, prefill_width, whole_bucket

configs = st.builds(
    EngineConfig,
    max_rows=st.integers(1, 9),
    prefill_chunk=st.integers(1, 40),
    interleaved_prefill=st.integers(1, 40),
    num_draft_tokens=st.integers(0, 7),
    spec_batching=st.sampled_from(["serial", "batched"]),
)
rows = st.tuples(st.integers(1, 90), st.integers(1, 12), st.sampled_from([None, 0, 3]))

TOKEN_COST = KvCosts(per_token=1)


def scheduler_of(config: EngineConfig, limit: int | None = None) -> Scheduler:
    """A scheduler whose positions cost one byte."""
    return Scheduler(config, KvBudget(TOKEN_COST, limit))


def sequence(config: EngineConfig, length: int, max_tokens: int, drafts: int | None) -> Sequence:
    """A row with a prompt of a given length."""
    request = Request(
        prompt_ids=tuple(range(length)), max_tokens=max_tokens, num_draft_tokens=drafts
    )
    return Sequence(request, route(config, request), 0, ReplyText(lambda _: b"", ()))


def check_plan(config: EngineConfig, plan: StepPlan, held: Rectangle) -> None:
    """What holds for every plan by itself, `held` being the cache."""
    assert plan.num_rows in ROW_BUCKETS
    assert len(plan.slots) <= min(config.max_rows, plan.num_rows)
    indices = [slot.index for slot in plan.slots]
    assert indices == sorted(set(indices))
    assert plan.first <= indices[0]
    assert indices[-1] < plan.first + plan.num_rows
    assert plan.first + plan.num_rows <= held.num_slots
    assert {slot.sequence.route.lane for slot in plan.slots} == {Lane.BATCH} or len(indices) == 1
    width = max(slot.num_known + slot.draft_budget for slot in plan.slots)
    if plan.kind is StepKind.PREFILL:
        width = prefill_width(width)
    assert max(plan.starts) + width <= held.capacity, "a step stays in its cache"
    for slot in plan.slots:
        row = slot.sequence
        assert slot.start == row.num_cached == plan.starts[plan.row(slot)]
        assert list(slot.tokens) == row.ids[slot.start : slot.start + len(slot.tokens)]
        if plan.kind is StepKind.PREFILL:
            assert 1 <= len(slot.tokens) <= config.prefill_chunk
            assert slot.draft_budget == 0
        else:
            assert slot.tokens == (row.ids[-1],)
            assert slot.draft_budget <= min(row.route.draft_budget, row.remaining - 1)


class Bench:
    """Plays the engine: serves plans by extending rows, keeps what sits in every slot, and gives
    the cache the size it is asked for."""

    def __init__(self, config: EngineConfig, limit: int | None = None) -> None:
        self.config = config
        self.scheduler = scheduler_of(config, limit)
        self.held = Rectangle()
        self.slots: dict[int, Sequence] = {}
        self.served: list[Sequence] = []

    def plan(self) -> StepPlan | None:
        """Return the next plan, checked."""
        admission = self.scheduler.admit()
        for source, destination in admission.moves:
            assert destination not in self.slots
            if source in self.slots:  # a row that joined and was never served is not there yet
                self.slots[destination] = self.slots.pop(source)
        self.served += admission.joined
        self.held = self.scheduler.room(self.held)
        for source, destination in self.scheduler.share_prompts():
            assert self.slots[source].is_prefilling is False
            assert destination not in self.slots
        plan = self.scheduler.plan()
        if plan is not None:
            check_plan(self.config, plan, self.held)
            for slot in plan.slots:
                assert self.slots.setdefault(slot.index, slot.sequence) is slot.sequence
        return plan

    def serve(self, plan: StepPlan, emitted: int = 1) -> None:
        """Take every row of a plan as far as it goes."""
        for slot in plan.slots:
            row, num = slot.sequence, min(emitted, slot.draft_budget + 1) * slot.samples
            row.num_cached = slot.start + slot.num_known + max(0, num - 1)
            row.ids.extend([7] * num)

    def finish_prompts(self) -> None:
        """Go on until every admitted row decodes."""
        self.plan_and_serve()
        while any(row.is_prefilling for row in self.scheduler.active):
            self.plan_and_serve()

    def plan_and_serve(self) -> StepPlan:
        """Serve one step; there has to be one."""
        plan = self.plan()
        assert plan is not None
        self.serve(plan)
        return plan

    def end(self, row: Sequence) -> None:
        """Take a row out."""
        row.finish_reason = FinishReason.STOP
        self.slots = {slot: held for slot, held in self.slots.items() if held is not row}
        self.scheduler.release(row)


@given(config=configs, shapes=st.lists(rows, min_size=1, max_size=14), data=st.data())
def test_every_row_is_served_in_order_within_slots_and_budgets(
    config: EngineConfig, shapes: list[tuple[int, int, int | None]], data: st.DataObject
) -> None:
    bench = Bench(config, limit=data.draw(st.sampled_from([None, 256, 600, 2048])))
    waiting = [sequence(config, *shape) for shape in shapes]
    for row in waiting:
        bench.scheduler.add(row)
    limit = bench.scheduler._kv_budget.limit_bytes
    for _ in range(5_000):
        plan = bench.plan()
        if plan is None:
            break
        assert limit is None or bench.scheduler.projected_bytes <= limit
        bench.serve(plan, data.draw(st.integers(1, 8)))
        for slot in plan.slots:
            if slot.sequence.remaining <= 0 or data.draw(st.integers(0, 9)) == 0:
                bench.end(slot.sequence)
    assert not bench.scheduler.has_work
    assert bench.served == waiting


@given(config=configs, shapes=st.lists(rows, min_size=2, max_size=9))
def test_prompts_and_live_rows_take_turns_while_both_have_work(
    config: EngineConfig, shapes: list[tuple[int, int, int | None]]
) -> None:
    bench = Bench(config)
    for shape in shapes:
        bench.scheduler.add(sequence(config, *shape))
    before: StepPlan | None = None
    while plan := bench.plan():
        live = [row for row in bench.scheduler.active if not row.is_prefilling]
        if plan.kind is StepKind.PREFILL:
            assert not (live and before is not None and before.kind is StepKind.PREFILL)
            columns = plan.num_rows * prefill_width(max(len(s.tokens) for s in plan.slots))
            between, per_row = config.interleaved_prefill, config.prefill_chunk
            if live:
                assert columns <= between
            assert columns <= max(prefill_width(per_row), between)
        elif before is not None and before.kind is StepKind.DECODE:
            assert len(live) == len(bench.scheduler.active), "a prompt waited two steps"
        bench.serve(plan)
        for slot in plan.slots:
            if slot.sequence.remaining <= 0:
                bench.end(slot.sequence)
        before = plan


def test_a_short_prompt_gets_its_chunk_after_one_step_of_long_rows() -> None:
    bench = Bench(EngineConfig(max_rows=5, prefill_chunk=64))
    for _ in range(4):
        bench.scheduler.add(sequence(bench.config, 60, 400, None))
    bench.finish_prompts()
    late = sequence(bench.config, 8, 4, None)
    bench.scheduler.add(late)
    plans = [bench.plan_and_serve() for _ in range(2)]
    assert late in {slot.sequence for plan in plans for slot in plan.slots if slot.samples}


def test_prompts_that_wait_together_share_a_step() -> None:
    bench = Bench(EngineConfig(max_rows=4))
    for length in (60, 50, 40, 64):
        bench.scheduler.add(sequence(bench.config, length, 4, None))
    plan = bench.plan()
    assert plan is not None
    assert [len(slot.tokens) for slot in plan.slots] == [60, 50, 40, 64]


@pytest.mark.parametrize("per_row", [48, 512])
@pytest.mark.parametrize("num_live", [0, 1])
def test_prompts_that_arrive_together_enter_in_one_chunk_where_its_columns_allow(
    num_live: int, per_row: int
) -> None:
    columns = 32 * prefill_width(40)
    for allowed, rows_in in ((columns, 32), (columns - 1, whole_bucket(31))):
        bench = Bench(EngineConfig(max_rows=33, prefill_chunk=per_row, interleaved_prefill=allowed))
        for _ in range(num_live):
            bench.scheduler.add(sequence(bench.config, 9, 400, None))
            bench.finish_prompts()
            bench.plan_and_serve()
        for _ in range(32):
            bench.scheduler.add(sequence(bench.config, 40, 4, None))
        plan = bench.plan_and_serve()
        assert plan.kind is StepKind.PREFILL
        assert len(plan.slots) == rows_in
        assert all(slot.samples for slot in plan.slots)


def test_a_prompt_that_is_nearly_done_takes_no_neighbour_beyond_the_cache() -> None:
    bench = Bench(EngineConfig(max_rows=2, prefill_chunk=512, interleaved_prefill=2048))
    long = sequence(bench.config, 524, 2000, None)
    bench.scheduler.add(long)
    bench.plan_and_serve()
    late = sequence(bench.config, 512, 2000, None)
    bench.scheduler.add(late)
    assert [slot.sequence for slot in bench.plan_and_serve().slots] == [long]


def test_a_twin_takes_the_prompt_of_the_row_before_it() -> None:
    bench = Bench(EngineConfig(max_rows=4, prefill_chunk=16))
    first, second = (sequence(bench.config, 40, 4, None) for _ in range(2))
    first.siblings = second.siblings = (first, second)
    bench.scheduler.add(first)
    bench.scheduler.add(second)
    copies: list[tuple[int, int]] = []
    while not second.emitted:
        bench.scheduler.admit()
        copies += bench.scheduler.share_prompts()
        plan = bench.scheduler.plan()
        assert plan is not None
        bench.serve(plan)
    assert copies == [(0, 1)]
    assert (second.cached_tokens, second.num_cached) == (39, 40)
    assert len(second.emitted) == 1


def test_a_twin_whose_row_was_cancelled_computes_the_prompt_itself() -> None:
    bench = Bench(EngineConfig(max_rows=4, prefill_chunk=16))
    first, second = (sequence(bench.config, 40, 4, None) for _ in range(2))
    first.siblings = second.siblings = (first, second)
    for row in (first, second):
        bench.scheduler.add(row)
    assert bench.plan() is not None
    bench.end(first)
    plan = bench.plan()
    assert plan is not None
    assert [slot.sequence for slot in plan.slots] == [second]
    assert plan.slots[0].start == 0


@pytest.mark.parametrize("suspect", [0, 1])
def test_a_row_that_is_about_to_be_given_up_is_computed_alone(suspect: int) -> None:
    bench = Bench(EngineConfig(max_rows=4))
    rows = [sequence(bench.config, 40, 4, None) for _ in range(2)]
    rows[suspect].num_failures = MAX_FAILURES - 1
    for row in rows:
        bench.scheduler.add(row)
    plan = bench.plan()
    assert plan is not None
    assert [slot.sequence for slot in plan.slots] == [rows[0]]


def test_a_chained_plan_only_moves_every_row_one_token_further() -> None:
    bench = Bench(EngineConfig(max_rows=2))
    for length in (3, 5):
        bench.scheduler.add(sequence(bench.config, length, 9, None))
    prompts = bench.plan()
    assert prompts is not None
    assert bench.scheduler.plan_ahead(prompts) is None
    bench.serve(prompts)
    bench.finish_prompts()
    plan = bench.plan()
    assert plan is not None
    ahead = bench.scheduler.plan_ahead(plan)
    assert ahead is not None
    assert ahead.starts == tuple(start + 1 for start in plan.starts)
    bench.scheduler.add(sequence(bench.config, 1, 1, None))
    assert bench.scheduler.plan_ahead(plan) is not None, "the table is full: nobody can join yet"
    bench.end(plan.slots[0].sequence)
    assert bench.scheduler.plan_ahead(plan) is None


def test_a_row_too_large_for_the_budget_waits_until_others_leave() -> None:
    bench = Bench(EngineConfig(max_rows=4), limit=4 * 256)
    rows = [sequence(bench.config, 10, 8, None) for _ in range(3)]
    long = sequence(bench.config, 600, 8, None)
    late = sequence(bench.config, 10, 8, None)
    for row in (*rows, long, late):
        bench.scheduler.add(row)
    bench.plan()
    assert bench.served == rows, "nobody overtakes the long row"
    for row in rows:
        bench.end(row)
    bench.plan()
    assert bench.served == [*rows, long]
    assert bench.scheduler.projected_bytes == 768
    assert Rectangle(1, 768) == bench.scheduler.most
