"""Five hundred steps of mixed work stay inside the declared shapes, and say what padding cost."""

from __future__ import annotations

import random

import mlx.core as mx
import pytest

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.loop import Engine
from engine.request import Constraint, ConstraintKind, Request, SamplingParams
from engine.shapes import CAPACITY_BLOCK, ROW_BUCKETS, STEP_WIDTHS, prefill_width
from engine.testing import tiny_model
from harness.lane_audit.shadow import tap

NUM_STEPS = 500
READ_BLOCK = 256
CHUNK = 128
PREFILL_WIDTHS = {prefill_width(number) for number in range(1, CHUNK + 1)}
CONSTRAINT = Constraint(
    kind=ConstraintKind.JSON_SCHEMA,
    value={"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}},
)


def request(rng: random.Random) -> Request:
    length = int(900 ** rng.random())
    constraint = CONSTRAINT if rng.random() < 0.3 else None
    return Request(
        prompt_ids=tuple(33 + (7 * i * i + length) % 60 for i in range(length)),
        max_tokens=rng.randint(1, 60),
        constraint=constraint,
        ignore_eos=constraint is None,
        num_draft_tokens=rng.choice((None, 0, 1, 7)),
        sampling=SamplingParams(temperature=rng.choice((0.0, 0.9)), seed=rng.randrange(99)),
    )


class Watched:
    """An engine of twelve rows whose forwards are noted: extents read, capacities, slots."""

    def __init__(self) -> None:
        config = EngineConfig(
            max_rows=12,
            num_draft_tokens=7,
            draft_budgets="fixed",
            spec_batching="batched",
            prefill_chunk=CHUNK,
        )
        self.engine = Engine(tiny_model(), config, build_drafter(config))
        self.extents: set[int] = set()
        self.capacities: set[int] = set()
        self.num_slots: set[int] = set()
        self._cache = self.engine._runner.cache
        self._cache.read_block = READ_BLOCK
        tap(self._cache._stores[0], "put", after=self._note)

    def _note(self, held: tuple[mx.array, mx.array], *_: object) -> None:
        """Note the shape of the keys that a layer reads, [rows, kv_heads, extent, head_dim]."""
        self.extents.add(held[0].shape[2])
        self.capacities.add(self._cache.capacity)
        self.num_slots.add(self._cache.num_slots)

    def run(self) -> None:
        """Keep joining rows, cancel some, and idle in between so that row counts vary."""
        rng = random.Random(1)
        ids: list[str] = []
        while self.engine.stats().steps < NUM_STEPS:
            if not self.engine.has_work or rng.random() < 0.2:
                ids += [self.engine.submit(request(rng)) for _ in range(rng.randint(1, 3))]
            if rng.random() < 0.05:
                self.engine.cancel(rng.choice(ids))
            self.engine.step()


@pytest.fixture(scope="module")
def watched() -> Watched:
    watched = Watched()
    watched.run()
    return watched


def test_mixed_steps_stay_inside_the_declared_shapes(watched: Watched) -> None:
    shapes = watched.engine.stats().shapes
    assert {kind for kind, _, _ in shapes} == {"prefill", "decode"}
    for kind, rows, columns in shapes:
        assert rows in ROW_BUCKETS
        assert columns in (STEP_WIDTHS if kind == "decode" else PREFILL_WIDTHS), (kind, columns)
    assert 10 < len(shapes) <= 100


def test_the_cache_and_its_reads_come_in_blocks(watched: Watched) -> None:
    assert {capacity % CAPACITY_BLOCK for capacity in watched.capacities} == {0}
    assert watched.num_slots <= set(ROW_BUCKETS)
    blocks = {extent for extent in watched.extents if extent % READ_BLOCK == 0}
    assert 2 <= len(blocks) <= 5
    assert watched.extents - blocks <= PREFILL_WIDTHS  # a first chunk sees itself and no more


def test_padding_is_reported_as_the_share_that_no_row_asked_for(watched: Watched) -> None:
    stats = watched.engine.stats()
    assert 0 < stats.padding < 0.75
    assert stats.padding == 1 - stats.tokens / stats.positions
