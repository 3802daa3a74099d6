"""Profiling step costs: every shape gets a price, within its time, and nothing is left behind."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from engine import arrays, profile
from engine.cache.slots import SlotCache
from engine.kv_budget import Rectangle
from engine.plan import RowRange
from engine.profile import FIRST_S, PROFILE_S, Timing, profile_steps
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


def test_a_profile_whose_time_is_over_runs_what_it_needs_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock on which each reading comes when all the time has passed."""
    clock, run, shapes = itertools.count(0.0, FIRST_S), profile._run, []

    def counted(runner: Runner, rows: int, width: int) -> Timing:
        shapes.append((rows, width))
        return run(runner, rows, width)

    monkeypatch.setattr(profile, "time", SimpleNamespace(perf_counter=clock.__next__))
    monkeypatch.setattr(profile, "_run", counted)
    costs = profile_steps(Runner(tiny_model()), 128)

    assert shapes == [(1, STEP_WIDTHS[0]), (128, STEP_WIDTHS[0])] * 2
    assert costs.forward(128, 16) >= costs.forward(128, 1)


@pytest.mark.parametrize("compile_s", [PROFILE_S / 4, PROFILE_S])
def test_what_a_first_run_compiles_is_no_part_of_a_price(
    monkeypatch: pytest.MonkeyPatch, compile_s: float
) -> None:
    """A clock on which wide shapes compile for long at first, and cost a tenth more ever after."""
    passed_s, known = 0.0, set()

    def run(_runner: Runner, rows: int, width: int) -> Timing:
        nonlocal passed_s
        took_s = 0.0020 if width == 1 else 0.0022
        if (rows, width) not in known:
            known.add((rows, width))
            took_s += compile_s if width > 1 else 0.01
        passed_s += took_s
        return Timing(took_s / 2, took_s)

    monkeypatch.setattr(profile, "time", SimpleNamespace(perf_counter=lambda: passed_s))
    monkeypatch.setattr(profile, "_run", run)
    costs = profile_steps(Runner(tiny_model()), 4, widest=8)

    assert costs.forward(4, 1) == pytest.approx(0.0020)
    assert costs.forward(4, 2) == pytest.approx(0.0022)
    assert costs.forward(4, 8) <= 0.0040
