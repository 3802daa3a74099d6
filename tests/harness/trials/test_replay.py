"""A replay has as many passes with masks as without, mirrored, and fewer where they take long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.config import EngineConfig
from engine.loop import Engine
from engine.request import Constraint, ConstraintKind, Request
from engine.telemetry import ReplayReport
from engine.testing import request_for, tiny_model
from harness.trials.replay import LONG_S, measure_overhead

REQUEST = request_for(
    tiny_model(),
    "hi",
    max_tokens=40,
    constraint=Constraint(kind=ConstraintKind.REGEX, value="[a-c]{20}"),
)


class Told(Engine):
    """An engine that keeps which of its replays had masks, each of which moves a clock."""

    def __init__(self, pass_s: float) -> None:
        super().__init__(tiny_model(), EngineConfig())
        self.pass_s = pass_s
        self.with_masks: list[bool] = []

    def now(self) -> float:
        return self.pass_s * len(self.with_masks)

    def replay(self, request: Request, token_ids: Sequence[int]) -> ReplayReport:
        self.with_masks.append(request.constraint is not None)
        return super().replay(request, token_ids)


@pytest.mark.parametrize("block", [1, 2])
@pytest.mark.parametrize(("pass_s", "passes"), [(LONG_S / 5, 8), (LONG_S / 3, 4), (LONG_S, 4)])
def test_a_slow_machine_makes_half_of_the_passes_and_they_mirror_each_other(
    pass_s: float, passes: int, block: int
) -> None:
    engine = Told(pass_s)
    (done,) = engine.generate([REQUEST])
    told = measure_overhead(engine, REQUEST, done.token_ids, block, engine.now)
    assert len(engine.with_masks) == passes
    assert engine.with_masks == engine.with_masks[::-1]
    assert sum(engine.with_masks) == passes // 2
    assert engine.with_masks[0] == (block == 2)
    assert told.tokens > 0
    assert told.mask_s > 0
