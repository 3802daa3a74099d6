"""What a decode step costs, by rows and positions: a measured table, and what lies between.

Pure numbers: engine.profile measures them, draft budgets weigh them. Any unit does, as long as it
is one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from engine.errors import SettingError
from engine.shapes import STEP_WIDTHS


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Costs of decode steps; never less for more rows or for a wider step.

    Args:
        rows: row counts that were measured, ascending.
        forwards: for each of them the cost at every one of STEP_WIDTHS.
        ahead: what a plain step costs less when it was launched before the last one was read. A
            step that asks for drafts cannot be, whatever is proposed.
        drafted: what the drafter itself costs for one more token a row; 0 for a look-up.
    """

    rows: tuple[int, ...]
    forwards: tuple[tuple[float, ...], ...]
    ahead: float = 0.0
    drafted: float = 0.0

    def plain(self, rows: int) -> float:
        """Return the cost of a step without drafts."""
        return self.forward(rows, STEP_WIDTHS[0]) - self.ahead

    def forward(self, rows: int, width: int) -> float:
        """Return the cost of a forward of `width`, one of STEP_WIDTHS, positions in each row.

        Between measured row counts it is linear in tokens, beyond them proportional. Where one
        row count was measured, the cost of as many tokens in its widths is taken.
        """
        if len(self.rows) == 1:
            return _line(STEP_WIDTHS, self.forwards[0], rows * width / self.rows[0])
        column = STEP_WIDTHS.index(width)
        beyond = max(1.0, rows / self.rows[-1])
        return beyond * _line(
            self.rows, [costs[column] for costs in self.forwards], min(rows, self.rows[-1])
        )


def step_costs(
    measured: Mapping[tuple[int, int], float], *, ahead: float = 0.0, drafted: float = 0.0
) -> StepCosts:
    """Return the table of some measured forwards, (rows, width) -> cost.

    Widths that are missing follow the line through their neighbours. A cost above that of a larger
    forward is lowered to it, since noise only ever adds time.

    Raises:
        SettingError: nothing was measured, or a cost is not above zero or what is saved ahead.
    """
    if not measured or min(measured.values()) <= max(ahead, 0):
        raise SettingError(
            f"step costs are {dict(measured)!r} with {ahead} saved by launching ahead; give at "
            "least one, all above 0 and above what is saved"
        )
    rows = tuple(sorted({rows for rows, _ in measured}))
    lines = [_widths({w: cost for (r, w), cost in measured.items() if r == row}) for row in rows]
    columns = [_lowered(column) for column in zip(*lines, strict=True)]
    return StepCosts(rows, tuple(zip(*columns, strict=True)), ahead, drafted)


def _widths(costs: Mapping[int, float]) -> list[float]:
    known = sorted(costs)
    line = _lowered([costs[width] for width in known])
    return [_line(known, line, width) for width in STEP_WIDTHS]


def _lowered(line: Sequence[float]) -> list[float]:
    """Lower every value to the least of those behind it."""
    return list(accumulate(reversed(line), min))[::-1]


def _line(xs: Sequence[int], ys: Sequence[float], x: float) -> float:
    """Return the piecewise linear value at `x`: flat before the first point, on beyond the last."""
    if x <= xs[0] or len(xs) == 1:
        return ys[0] * max(1.0, x / xs[0])
    right = min(bisect_left(xs, x), len(xs) - 1)
    (x0, x1), (y0, y1) = xs[right - 1 : right + 1], ys[right - 1 : right + 1]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
