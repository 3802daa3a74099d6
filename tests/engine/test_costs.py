"""Step costs: what was measured is kept, what was not lies between, and more never costs less."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.costs import step_costs
from engine.errors import SettingError
from engine.shapes import STEP_WIDTHS

tables = st.dictionaries(
    st.tuples(st.sampled_from([1, 4, 8, 32]), st.sampled_from(STEP_WIDTHS)),
    st.floats(0.01, 100),
    min_size=1,
)


@given(measured=tables, rows=st.integers(1, 64), more=st.integers(0, 64))
def test_more_rows_or_a_wider_step_never_cost_less(
    measured: dict[tuple[int, int], float], rows: int, more: int
) -> None:
    costs = step_costs(measured)
    line = [costs.forward(rows, width) for width in STEP_WIDTHS]

    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(line))
    assert line[0] > 0
    for width in STEP_WIDTHS:
        assert costs.forward(rows + more, width) >= costs.forward(rows, width) * (1 - 1e-9)


def test_measured_steps_cost_what_was_measured_and_others_lie_on_the_line_between() -> None:
    costs = step_costs({(1, 1): 1, (1, 4): 4, (9, 1): 5, (9, 4): 20}, ahead=0.25)

    assert [costs.forward(rows, 1) for rows in (1, 3, 9)] == [1, 2, 5]
    assert [costs.forward(1, width) for width in (1, 2, 4, 8, 16)] == [1, 2, 4, 8, 16]
    assert costs.forward(5, 4) == 12
    assert costs.forward(18, 1) == 10
    assert costs.plain(3) == 1.75


def test_one_measured_row_count_prices_others_by_their_tokens() -> None:
    costs = step_costs({(1, 1): 10, (1, 2): 11, (1, 4): 13, (1, 8): 16})

    assert costs.forward(2, 4) == 16
    assert costs.forward(4, 1) == 13
    assert costs.forward(4, 4) == 22


@pytest.mark.parametrize(("measured", "ahead"), [({}, 0.0), ({(1, 1): 0.0}, 0.0), ({(1, 1): 2}, 3)])
def test_costs_that_cannot_be_are_refused(
    measured: dict[tuple[int, int], float], ahead: float
) -> None:
    with pytest.raises(SettingError, match="step costs"):
        step_costs(measured, ahead=ahead)
