"""The memory's speed is that of the fastest undisturbed move, and a run keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import roofline
from harness.roofline import fastest, memory_bandwidth_gb_s


class Moves:
    """Ways of moving memory that take as long as they are told to, on a clock of their own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls = 0

    def clock(self) -> float:
        return self.now_s

    def way(self, moved: int, seconds: Callable[[int], float]) -> Callable[[], int]:
        def move() -> int:
            self.now_s += seconds(self.calls)
            self.calls += 1
            return moved

        return move


def test_the_fastest_move_of_any_way_counts_but_for_the_first_round() -> None:
    moves = Moves()
    slow = moves.way(100, lambda call: 10.0)
    # The first call is a fluke, the tenth the fastest that was not in the first round.
    quick = moves.way(100, lambda call: {1: 0.1, 9: 2.0}.get(call, 5.0))
    assert fastest([slow, quick], budget_s=200.0, clock=moves.clock) == 100 / 2.0


def test_no_round_begins_when_the_budget_is_spent_and_two_always_do() -> None:
    moves = Moves()
    assert fastest([moves.way(1, lambda call: 7.0)], budget_s=1.0, clock=moves.clock) == 1 / 7
    assert moves.calls == 2


def test_what_a_clock_is_too_coarse_for_counts_for_nothing() -> None:
    moves = Moves()
    ways = [moves.way(5, lambda call: 0.0), moves.way(5, lambda call: 1.0)]
    assert fastest(ways, budget_s=3.0, clock=moves.clock) == 5.0


def test_the_largest_cache_is_found_where_linux_tells_of_it(tmp_path: Path) -> None:
    for index, size in enumerate(("32K", "1024K", "32768K")):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "size").write_text(f"{size}\n")
    assert roofline._last_level_cache(tmp_path) == 32 << 20
    assert roofline._last_level_cache(tmp_path / "nowhere") == 0


@pytest.fixture
def measured_anew() -> Iterator[None]:
    """What is measured here of little memory is nobody else's figure."""
    memory_bandwidth_gb_s.cache_clear()
    yield
    memory_bandwidth_gb_s.cache_clear()


@pytest.mark.usefixtures("measured_anew")
def test_a_bandwidth_is_measured_once_and_is_that_of_some_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A machine may have less memory to spare than some of its caches take.
    monkeypatch.setattr(roofline, "CPU_BYTES", 1 << 24)
    monkeypatch.setattr(roofline, "MOST_CPU_BYTES", 1 << 24)
    found = memory_bandwidth_gb_s()
    assert found is not None
    assert 0.1 < found < 20_000
    assert memory_bandwidth_gb_s() == found


def test_where_memory_is_short_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short:
        available = 1 << 20

    monkeypatch.setattr(roofline.psutil, "virtual_memory", Short)
    assert roofline._cpu_ways() == []
