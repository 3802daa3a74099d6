"""A trial that was run in several turns, put together from what each of them saw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.store.rows import AcceptRow, RequestRow, TrialRecord
from harness.trials.record import common_lane

SUMS = (
    "turns_s",
    "wall_s",
    "tokens",
    "aggregate_tokens",
    "aggregate_s",
    "decode_steps",
    "step_s",
    "mask_s",
    "mask_tokens",
    "draft_s",
    "plan_s",
    "build_s",
    "launch_s",
    "sample_s",
    "wait_s",
    "commit_s",
    "client_delay_s",
    "client_stream_s",
    "retries",
)
"""Columns of a trial that add up over its turns."""

PEAKS = ("peak_mlx_bytes", "peak_rss_bytes")
"""Columns of which the largest counts."""

ONCE = ("replay_tokens", "replay_plain_s", "replay_masked_s", "replay_mask_s")
"""Columns that one turn fills in; every other column is the last turn's."""

STANDING = frozenset({"compiles", "kv_bytes"})
"""Counters of what an engine has come to by what ran on it before; the last turn's count."""


def joined(turns: Sequence[TrialRecord]) -> TrialRecord:
    """Return the record of a trial from those of its turns, in order.

    The trial is as the last one leaves it, failed where that failed. A figure that any turn does
    not tell is told by none.
    """
    if len(turns) == 1:
        return turns[0]
    rows = [turn.trial for turn in turns]
    requests = tuple(_renumbered(turns))
    lane, reason = common_lane(requests)
    trial = replace(
        rows[-1],
        started_at=rows[0].started_at,
        counters=_counters([row.counters for row in rows]),
        lane_taken=lane,
        lane_reason=reason,
        **{name: _all(sum, [getattr(row, name) for row in rows]) for name in SUMS},
        **{name: _all(max, [getattr(row, name) for row in rows]) for name in PEAKS},
        **{name: _first([getattr(row, name) for row in rows]) for name in ONCE},
    )
    return TrialRecord(trial=trial, requests=requests, accepts=tuple(_accepts(turns)))


def has_replay(turns: Iterable[TrialRecord]) -> bool:
    """True when one of a trial's turns replayed a reply with masks and without."""
    return any(turn.trial.replay_tokens is not None for turn in turns)


def _renumbered(turns: Sequence[TrialRecord]) -> Iterable[RequestRow]:
    start = 0
    for turn in turns:
        yield from (replace(row, position=start + row.position) for row in turn.requests)
        start += len(turn.requests)


def _accepts(turns: Sequence[TrialRecord]) -> Iterable[AcceptRow]:
    summed: dict[int, AcceptRow] = {}
    for row in (row for turn in turns for row in turn.accepts):
        known = summed.get(row.position)
        summed[row.position] = (
            row
            if known is None
            else replace(
                row, drafted=known.drafted + row.drafted, accepted=known.accepted + row.accepted
            )
        )
    return (summed[position] for position in sorted(summed))


def _counters(told: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    """Return counts over all turns; one that any turn does not tell is left out."""
    names = [name for name in told[-1] if all(name in counts for counts in told)]
    return {
        name: told[-1][name] if name in STANDING else sum(counts[name] for counts in told)
        for name in names
    }


def _all(combine: Callable[[list[Any]], Any], values: list[Any]) -> Any:
    return None if None in values else combine(values)


def _first(values: list[Any]) -> Any:
    return next((value for value in values if value is not None), None)
