"""Profiling step costs: every shape gets a price, within its time, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine import arrays, profile
from engine.cache.slots import SlotCache
from engine.costs import StepCosts
from engine.kv_budget import Rectangle
from engine.plan import RowRange
from engine.profile import PROFILE_S, Timing, profile_steps
from engine.runner import Runner
from engine.shapes import STEP_WIDTHS
from engine.testing import tiny_model


def shape_of(cache: SlotCache) -> tuple[int, int, int]:
    return cache.num_slots, cache.capacity, cache.num_bytes


def test_a_profile_prices_one_row_and_the_most_rows_and_leaves_the_cache_alone() -> None:
    model = tiny_model()
    runner = Runner(model)
    runner.make_room(Rectangle(1, 256))
    rows = RowRange(0, (0,), counts=(3,), adapters=(0,))
    runner.prefill(arrays.ids_array([[5, 6, 7]], 3), rows)
    cache, before = runner.cache, shape_of(runner.cache)

    costs = profile_steps(runner, 4)

    assert runner.cache is cache
    assert shape_of(cache) == before
    assert costs.rows == (1, 4)
    assert 0 < costs.ahead < costs.forward(1, 1)
    assert all(costs.forward(rows, width) > 0 for rows in (1, 2, 3, 4) for width in STEP_WIDTHS)


class Machine:
    """Runs forwards by a price list instead; the first of a shape takes `compile_s` more."""

    def __init__(self, prices: Callable[[int, int], float], compile_s: float) -> None:
        self._prices, self._compile_s = prices, compile_s
        self.run_shapes: list[tuple[int, int]] = []

    def run(self, _runner: Runner, rows: int, width: int) -> Timing:
        took_s = self._prices(rows, width)
        if (rows, width) not in self.run_shapes:
            took_s += self._compile_s
        self.run_shapes.append((rows, width))
        return Timing(took_s / 2, took_s)

    def profile(self, monkeypatch: pytest.MonkeyPatch, rows: int, widest: int) -> StepCosts:
        monkeypatch.setattr(profile, "_run", self.run)
        return profile_steps(Runner(tiny_model()), rows, widest)


def test_a_slow_model_is_run_at_the_ends_of_each_line_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(lambda rows, width: PROFILE_S + rows * width / 100, 0.0)
    costs = machine.profile(monkeypatch, 128, 16)

    ends = [(1, 1), (128, 1), (1, 16), (128, 16)]
    assert machine.run_shapes == [shape for shape in ends for _ in range(2)]
    assert costs.forward(128, 8) == pytest.approx(PROFILE_S + 10.24)


@pytest.mark.parametrize("compile_s", [0.0, PROFILE_S / 4, PROFILE_S, 20 * PROFILE_S])
@pytest.mark.parametrize("rows", [1, 4])
def test_what_first_runs_compile_is_no_part_of_a_price_and_leaves_no_shape_out(
    monkeypatch: pytest.MonkeyPatch, rows: int, compile_s: float
) -> None:
    """Where widths cost a tenth more, a batch that compiles for long has to know it."""
    machine = Machine(lambda _, width: 0.0020 if width == 1 else 0.0022, compile_s)
    costs = machine.profile(monkeypatch, rows, 8)

    assert [costs.forward(rows, width) for width in (1, 2, 4, 8)] == pytest.approx(
        [0.0020, 0.0022, 0.0022, 0.0022]
    )
