"""A slot's record is that of the row in it, however rows come, move and go."""

from __future__ import annotations

import gc
import weakref

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.reasoning import ReplyText
from engine.request import Request, SamplingParams
from engine.routing import Lane, Route
from engine.row_params import IDLE, RECORD, RowParams, record_of
from engine.sequence import Sequence
from engine.testing import tiny_model


class WatchedSequence(Sequence):
    """A sequence that can be referred to weakly."""


def sequence_of(sampling: SamplingParams, **settings: object) -> WatchedSequence:
    """A row, not submitted anywhere."""
    return WatchedSequence(
        request=Request(prompt_ids=(65,), sampling=sampling, **settings),
        route=Route(Lane.SERIAL, "", 0),
        seed=sampling.seed or 0,
        text=ReplyText(tiny_model().tokenizer.token_bytes),
    )


def idle(count: int) -> list[tuple[object, ...]]:
    """Records of slots without a row."""
    return np.full(count, np.array(IDLE, dtype=RECORD)).tolist()


@given(
    steps=st.lists(st.dictionaries(st.integers(0, 5), st.integers(0, 3), max_size=4), max_size=6),
    leaves=st.lists(st.integers(0, 3), max_size=6),
)
def test_seated_rows_have_their_records_and_other_slots_are_idle(
    steps: list[dict[int, int]], leaves: list[int]
) -> None:
    rows = [
        sequence_of(SamplingParams(temperature=1 + index, seed=2**63 + index)) for index in range(4)
    ]
    params, left = RowParams(2), iter([*leaves, *[0] * 6])
    for step in steps:
        seats = {row: slot for slot, row in step.items()}  # a row has one slot
        params.seat((slot, rows[row]) for row, slot in seats.items())
        held = params.records(0, 6)
        for row, slot in seats.items():
            request, seed = rows[row].request, rows[row].seed
            assert held[slot] == np.array(record_of(request, seed), dtype=RECORD)
        for row in range(4):
            assert (held["seed"] == 2**63 + row).sum() <= 1
        gone = next(left)
        params.leave(rows[gone])
        assert 2**63 + gone not in held["seed"]
    for row in rows:
        params.leave(row)
    assert params.records(0, 6).tolist() == idle(6)


def test_a_row_that_left_is_not_kept_alive() -> None:
    params, row = RowParams(), sequence_of(SamplingParams())
    watched = weakref.ref(row)
    params.seat([(3, row)])
    params.leave(row)
    del row
    gc.collect()
    assert watched() is None


def test_a_row_whose_end_tokens_end_nothing_has_no_least() -> None:
    sampling = SamplingParams(min_tokens=4)
    for ignore_eos, least in ((True, 0), (False, 4)):
        row = sequence_of(sampling, ignore_eos=ignore_eos)
        record = np.array(record_of(row.request, 0), dtype=RECORD)
        assert record["min_tokens"] == least
