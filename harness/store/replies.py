"""Measured replies as gates read them: without their texts, and one trial at a time.

A run may have a hundred thousand; what a gate holds of them does not grow with it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.store.codec import loaded
from harness.store.rows import RequestRow, RequestStatus, TrialRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A measured request without its text; the names are those of RequestRow.

    Args:
        ids, sent: token ids and sampling as JSON, which are read when somebody asks: most replies
            are their reference's to the last byte, and equal JSON has equal values.
    """

    trial_id: str
    position: int
    prompt_id: str
    status: RequestStatus
    finish_reason: str | None
    ttft_s: float | None
    lane_taken: str
    lane_reason: str
    seed: int | None
    drafted: int | None
    accepted: int | None
    target_calls: int | None
    conformance: str | None
    conformance_detail: str
    unchecked_formats: tuple[str, ...]
    error: str | None
    ids: str | None = field(metadata={"column": "token_ids"})
    sent: str = field(metadata={"column": "sampling"})

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        """The emitted ids, None where the target does not tell them."""
        return None if self.ids is None else tuple(loaded("token_ids", self.ids, list))

    @property
    def sampling(self) -> Mapping[str, Any]:
        """Temperature and so on, as sent."""
        found: Mapping[str, Any] = loaded("sampling", self.sent, dict)
        return found

    def has_ids_of(self, other: Reply) -> bool:
        """True where both were told the same token ids."""
        return self.ids == other.ids or self.token_ids == other.token_ids

    def was_sent_as(self, other: Reply) -> bool:
        """True where both were sampled alike."""
        return self.sent == other.sent or self.sampling == other.sampling


ReadReplies = Callable[[TrialRow], Sequence[Reply]]
"""Returns the measured replies of a trial by position."""


def replies_of(requests: Iterable[RequestRow]) -> ReadReplies:
    """Return what reads replies out of requests that were loaded."""
    by_trial: dict[str, list[RequestRow]] = defaultdict(list)
    for request in requests:
        if request.phase == "measured":
            by_trial[request.trial_id].append(request)
    return lambda trial: tuple(map(_reply, by_trial.get(trial.trial_id, ())))


def _reply(row: RequestRow) -> Reply:
    return Reply(
        trial_id=row.trial_id,
        position=row.position,
        prompt_id=row.prompt_id,
        status=row.status,
        finish_reason=row.finish_reason,
        ttft_s=row.ttft_s,
        lane_taken=row.lane_taken,
        lane_reason=row.lane_reason,
        seed=row.seed,
        drafted=row.drafted,
        accepted=row.accepted,
        target_calls=row.target_calls,
        conformance=row.conformance,
        conformance_detail=row.conformance_detail,
        unchecked_formats=row.unchecked_formats,
        error=row.error,
        ids=None if row.token_ids is None else json.dumps(row.token_ids),
        sent=json.dumps(dict(row.sampling)),
    )
