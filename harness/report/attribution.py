"""What the time of a cell's steps went into, and what the machine's memory would allow: pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.report.figures import Acceptance, Roofline, StepTime
from harness.store.rows import CellRow, TrialRow

PARTS: Mapping[str, str] = {
    "plan": "plan_s",
    "draft": "draft_s",
    "forward_build": "build_s",
    "forward_launch": "launch_s",
    "mask": "mask_s",
    "sample": "sample_s",
    "host_wait": "wait_s",
    "commit": "commit_s",
}
"""Names in reports, and the columns of a trial that hold their sums."""

OTHER = "other"
"""What the parts leave of a step: the engine's lock, counting, and handing its tokens over."""

BANDWIDTH = "memory_bandwidth_gb_s"
"""Where the environment of a run has it."""


def step_time(trials: Iterable[TrialRow]) -> StepTime | None:
    """Return the mean decode step of the trials that tell its parts, None when none does."""
    told = [trial for trial in trials if trial.decode_steps and trial.plan_s is not None]
    steps = sum(trial.decode_steps or 0 for trial in told)
    if not steps:
        return None
    step_s = math.fsum(trial.step_s or 0.0 for trial in told) / steps
    parts = {
        name: math.fsum(getattr(trial, column) or 0.0 for trial in told) / steps
        for name, column in PARTS.items()
    }
    other_s = step_s - math.fsum(parts.values())
    return StepTime(steps=steps, step_s=step_s, parts_s={**parts, OTHER: other_s})


def roofline(
    cell: CellRow,
    trials: Sequence[TrialRow],
    length: float | None,
    acceptance: Acceptance | None,
    aggregate: float,
    environment: Mapping[str, Any],
) -> Roofline | None:
    """Return what a cell reads for a token, and how near that brings it to the memory's speed.

    A decode step at full occupancy reads the weights once and, of each row, its keys and values at
    the mean length; it commits one token a row, with drafts as many as a target call did on
    average. What a drafter reads is not counted, nor what is written.

    Args:
        length: mean cached length of a row over its decode steps, in tokens.
        aggregate: measured tokens a second at full occupancy.
        environment: of the run.
    """
    told = [trial for trial in trials if trial.weight_bytes is not None]
    if not told or length is None:
        return None
    row_bytes = (told[-1].kv_row_bytes or 0) + length * (told[-1].kv_token_bytes or 0)
    step_bytes = (told[-1].weight_bytes or 0) + cell.max_rows * row_bytes
    per_call = 1.0 if acceptance is None else acceptance.tokens_per_call or 1.0
    bytes_per_token = step_bytes / (cell.max_rows * per_call)
    bandwidth = environment.get(BANDWIDTH)
    if not bandwidth or not bytes_per_token:
        return Roofline(
            bytes_per_token=bytes_per_token, bandwidth_gb_s=None, bound_tok_s=None, share=None
        )
    bound = 1e9 * float(bandwidth) / bytes_per_token
    return Roofline(
        bytes_per_token=bytes_per_token,
        bandwidth_gb_s=float(bandwidth),
        bound_tok_s=bound,
        share=aggregate / bound,
    )
