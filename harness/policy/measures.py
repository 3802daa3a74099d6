"""What a gate compares between head and base by its size: metrics, a value a block each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.stats import percentile, rate
from harness.store.index import Place, RunIndex
from harness.store.rows import TrialRow

LEAST_HOST_MS = 0.001
"""Less than a microsecond is what subtracting sums leaves, and no host time."""

Read = Callable[[RunIndex, TrialRow], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One size of a trial.

    Args:
        what: what it is, in a few words.
        is_better_high: False where more is worse.
        is_timing: False for what the state of the machine does not touch.
        read: its value in one trial; None where it was not observed.
    """

    what: str
    is_better_high: bool
    is_timing: bool
    read: Read


def _tok_s(index: RunIndex, trial: TrialRow) -> float | None:
    block = index.timed(trial)
    if block is not None and block.estimated:
        return None
    if trial.is_told_steps:
        return rate(trial.aggregate_tokens, trial.aggregate_s)
    return rate(trial.tokens, trial.wall_s)


def _ttft_ms(index: RunIndex, trial: TrialRow) -> float | None:
    times = [reply.ttft_s for reply in index.heard(trial) if reply.ttft_s is not None]
    median_s = percentile(times, 50)
    return None if median_s is None else 1000 * median_s


def _memory_bytes(_index: RunIndex, trial: TrialRow) -> float | None:
    return trial.peak_mlx_bytes


def _mask_us(_index: RunIndex, trial: TrialRow) -> float | None:
    if not trial.replay_tokens or not trial.replay_mask_s:
        return None
    return 1e6 * trial.replay_mask_s / trial.replay_tokens


def _host_ms(_index: RunIndex, trial: TrialRow) -> float | None:
    """What is left of a decode step without its launches and its waits for the device.

    To launch is to wait as well, where MLX takes no more operations until earlier ones are done. A
    draft model's own launches and waits are left in.
    """
    step_s, wait_s, launch_s = trial.step_s, trial.wait_s, trial.launch_s
    if step_s is None or wait_s is None or launch_s is None or not trial.decode_steps:
        return None
    host_ms = 1000 * (step_s - wait_s - launch_s) / trial.decode_steps
    return host_ms if host_ms > LEAST_HOST_MS else None


METRICS: dict[str, Metric] = {
    "tok_s": Metric(what="tokens a second", is_better_high=True, is_timing=True, read=_tok_s),
    "ttft_ms": Metric(
        what="time to the first token", is_better_high=False, is_timing=True, read=_ttft_ms
    ),
    "memory_bytes": Metric(
        what="peak memory of the device", is_better_high=False, is_timing=False, read=_memory_bytes
    ),
    "mask_us": Metric(
        what="mask time a token", is_better_high=False, is_timing=True, read=_mask_us
    ),
    "host_ms": Metric(what="host time a step", is_better_high=False, is_timing=True, read=_host_ms),
}
"""Every metric a policy may name."""


def by_block(index: RunIndex, place: Place, metric: Metric) -> Mapping[int, float]:
    """Return a metric's positive values of a cell by block."""
    found: dict[int, float] = {}
    for trial in index.trials(place, "done"):
        value = metric.read(index, trial)
        if value is not None and value > 0:
            found[trial.block] = value
    return found


def beside(
    index: RunIndex, one: Place, other: Place, metric: Metric
) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """Return a metric of two cells by block, of blocks in which both ran in the same attempt."""
    paired = index.paired(one, other)
    ours, theirs = (
        {block: value for block, value in by_block(index, place, metric).items() if block in paired}
        for place in (one, other)
    )
    return ours, theirs
