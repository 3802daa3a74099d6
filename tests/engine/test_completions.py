"""Records of finished rows are kept until they are taken, and never without end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.completions import MAX_KEPT, Completions
from engine.config import EngineConfig
from engine.errors import RequestError
from engine.loop import Engine
from engine.request import Completion, FinishReason, Request
from engine.testing import tiny_model


def record(name: str) -> Completion:
    """A finished row."""
    return Completion(
        request_id=name, prompt_tokens=1, token_ids=(), text="", finish_reason=FinishReason.STOP
    )


@given(most=st.integers(1, 5), names=st.lists(st.integers(0, 30), unique=True))
def test_the_newest_records_are_kept_and_each_is_taken_once(most: int, names: list[int]) -> None:
    completions = Completions(most)
    for name in names:
        completions.keep(record(str(name)))
        assert len(completions) <= most
    kept = [str(name) for name in names[-most:]]
    for name in map(str, names):
        if name in kept:
            assert name in completions
            assert completions.take(name).request_id == name
        with pytest.raises(RequestError, match=f"no completion of '{name}'"):
            completions.take(name)


def test_a_client_that_reads_events_alone_leaves_a_bounded_number_of_records() -> None:
    engine = Engine(tiny_model(), EngineConfig(max_rows=64))
    first, *others = [
        engine.submit(Request(prompt_ids=(65,), max_tokens=1)) for _ in range(MAX_KEPT + 1)
    ]
    while engine.has_work:
        engine.step()
    assert len(engine._completions) == MAX_KEPT
    with pytest.raises(RequestError, match="no completion"):
        engine.completion(first)
    assert engine.completion(others[0]).request_id == others[0]
    again = Request(prompt_ids=(65,), max_tokens=1, request_id=first)
    assert engine.generate([again])[0].request_id == first, "a dropped id is free again"
    with pytest.raises(RequestError, match="not taken"):
        engine.submit(Request(prompt_ids=(65,), request_id=others[1]))


def test_generate_returns_more_records_than_are_kept() -> None:
    engine = Engine(tiny_model(), EngineConfig(max_rows=128))
    rows = [Request(prompt_ids=(65,), max_tokens=1) for _ in range(MAX_KEPT + 10)]
    assert len(engine.generate(rows)) == len(rows)
    assert not len(engine._completions)
