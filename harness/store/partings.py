"""Replies that part from their reference against their cell's promise, with text for the first.

Token ids are compared as they are stored, and the text of a reply is read where it is shown: a run
of 100,000 requests may have gone wrong from the first to the last.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from harness.store.codec import decode
from harness.store.index import Place, RunIndex
from harness.store.loaded import PartedCell, PartedReply, RunData
from harness.store.rows import DivergenceRow, RequestRow

SHOWN_OF_CELL = 5
"""Replies of one cell that are read with their texts; the others are counted."""

_COMPARABLE = """
    SELECT position, prompt_id, sampling, token_ids FROM requests
    WHERE trial_id = ? AND phase = 'measured' AND status = 'ok' AND token_ids IS NOT NULL
    ORDER BY position
"""
_REPLY = "SELECT * FROM requests WHERE trial_id = ? AND position = ?"


@dataclass(slots=True)
class _Pair:
    """A reply beside its reference, each by trial and position, where they were seen first."""

    block: int
    prompt_id: str
    reply: tuple[str, int]
    reference: tuple[str, int]
    judged: tuple[DivergenceRow, ...] = ()

    @property
    def unexplained(self) -> DivergenceRow | None:
        """The first place that is no near-tie."""
        return next((row for row in self.judged if not row.is_near_tie), None)


def parted_cells(raw: sqlite3.Connection, data: RunData) -> tuple[PartedCell, ...]:
    """Return the cells of a run whose replies fail the gate identity, in the order of reports.

    Where gates are stored, cells that passed it are not looked at again.
    """
    failing = {
        Place(gate.model, gate.workload, gate.cell)
        for gate in data.gates
        if gate.name == "identity" and gate.status == "fail"
    }
    index = RunIndex(data)
    cells = (
        _parted_cell(raw, index, place)
        for place in index.places()
        if not data.gates or place in failing
    )
    return tuple(cell for cell in cells if cell.n)


def _parted_cell(raw: sqlite3.Connection, index: RunIndex, place: Place) -> PartedCell:
    reference = index.cell(place).reference or ""
    is_waiting = index.may_wait(place)
    found = [
        pair
        for pair in _pairs(raw, index, place, reference)
        if pair.unexplained is not None or not (pair.judged or is_waiting)
    ]
    return PartedCell(
        model=place.model,
        workload=place.workload,
        cell=place.cell,
        reference=reference,
        n=len(found),
        first=tuple(_with_texts(raw, pair) for pair in found[:SHOWN_OF_CELL]),
    )


def _pairs(raw: sqlite3.Connection, index: RunIndex, place: Place, reference: str) -> list[_Pair]:
    """Return each different pair of a reply and another reference once: blocks repeat them."""
    found: dict[bytes, _Pair] = {}
    is_lawful = index.cell(place).acceptance == "rejection"
    theirs = {trial.block: trial for trial in index.trials(place.other(reference), "done")}
    for trial in index.trials(place, "done"):
        if trial.block not in theirs:
            continue
        for one, other in _differing(raw, trial.trial_id, theirs[trial.block].trial_id):
            if is_lawful and _sampling(one["sampling"]).get("temperature", 0.0):
                continue
            pair = _Pair(
                trial.block,
                one["prompt_id"],
                (trial.trial_id, one["position"]),
                (theirs[trial.block].trial_id, other["position"]),
            )
            pair = found.setdefault(_digest(one, other), pair)
            pair.judged = pair.judged or index.judged(trial.trial_id, pair.prompt_id, reference)
    return list(found.values())


def _differing(
    raw: sqlite3.Connection, trial: str, reference: str
) -> Iterator[tuple[sqlite3.Row, sqlite3.Row]]:
    """Yield the replies of two trials to one prompt, sampled alike, whose token ids differ."""
    expected = {row["prompt_id"]: row for row in raw.execute(_COMPARABLE, (reference,))}
    for row in raw.execute(_COMPARABLE, (trial,)):
        other = expected.get(row["prompt_id"])
        if other is None or row["token_ids"] == other["token_ids"]:
            continue
        if _sampling(row["sampling"]) == _sampling(other["sampling"]):
            yield row, other


def _digest(one: sqlite3.Row, other: sqlite3.Row) -> bytes:
    """Return what stands for a prompt and the ids of two replies: these would take megabytes."""
    text = "\n".join((one["token_ids"], other["token_ids"], one["prompt_id"]))
    return blake2b(text.encode(), digest_size=16).digest()


@lru_cache(maxsize=256)
def _sampling(column: str) -> Mapping[str, Any]:
    """Return how replies were sampled; a run has few ways."""
    row = {"trial_id": "", "position": 0, "prompt_id": "", "sampling": column}
    return decode(RequestRow, row).sampling


def _with_texts(raw: sqlite3.Connection, pair: _Pair) -> PartedReply:
    ours, theirs = (
        decode(RequestRow, dict(raw.execute(_REPLY, key).fetchone()))
        for key in (pair.reply, pair.reference)
    )
    return PartedReply(
        trial_id=ours.trial_id,
        block=pair.block,
        prompt_id=pair.prompt_id,
        token_ids=ours.token_ids or (),
        reference_ids=theirs.token_ids or (),
        text=ours.text,
        reference_text=theirs.text,
        judged=pair.unexplained,
    )
