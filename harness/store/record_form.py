"""A trial's record as JSON values, which turns, spool files and other processes take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.store.codec import decode, encode
from harness.store.rows import AcceptRow, RequestRow, TrialRecord, TrialRow


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """What one turn saw of a trial that is not through; it is gone once the trial is.

    Args:
        attempt: TrialRow.attempt of the trial it belongs to.
        whereabouts: which machine and code ran it, one string for both.
        record: the form of a TrialRecord.
    """

    trial_id: str
    attempt: int
    turn: int
    whereabouts: str
    record: Mapping[str, Any]


def record_form(record: TrialRecord) -> dict[str, Any]:
    """Return what a trial, or a turn of one, saw: rows as the eval database keeps them."""
    return {
        "trial": encode(record.trial),
        "requests": [encode(row) for row in record.requests],
        "accepts": [encode(row) for row in record.accepts],
    }


def record_from(form: Mapping[str, Any]) -> TrialRecord:
    """Return the record of a form."""
    return TrialRecord(
        trial=decode(TrialRow, form["trial"]),
        requests=tuple(decode(RequestRow, row) for row in form["requests"]),
        accepts=tuple(decode(AcceptRow, row) for row in form["accepts"]),
    )
