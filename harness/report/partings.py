"""Replies that part from their reference against their promise: where, and with which texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from harness.judging.token_identity import first_difference
from harness.report import numbers
from harness.report.figures import Parting, Partings
from harness.report.gfm import shorten
from harness.report.visible import one_line
from harness.store.index import Place
from harness.store.loaded import PartedReply, RunData
from harness.store.rows import GateRow

EXCERPT = 200
"""Characters that are shown of what both texts begin with, and of how each goes on."""

END = "end"
"""In place of a token id, where a reply has ended."""

LEGEND = (
    "Replies that part from their reference where they must not: the gap of the two best scores "
    "is no near-tie, or the oracle was not asked. Tokens are counted from 0; ids are those of the "
    "reply and of its reference at the first token that differs."
)


PARTINGS = (
    ("model", False),
    ("workload", False),
    ("cell", False),
    ("reference", False),
    ("block", True),
    ("prompt", False),
    ("token", True),
    ("ids", False),
    ("gap", True),
    ("near-tie below", True),
    ("both begin", False),
    ("the reply goes on", False),
    ("the reference goes on", False),
)


def partings(data: RunData, gates: Sequence[GateRow]) -> Iterator[Partings]:
    """Yield each cell that fails the gate identity with the first replies that show it."""
    failing = {
        Place(gate.model, gate.workload, gate.cell)
        for gate in gates
        if gate.name == "identity" and gate.status == "fail"
    }
    for cell in data.parted:
        place = Place(cell.model, cell.workload, cell.cell)
        if place in failing:
            yield Partings(
                place=place,
                reference=cell.reference,
                n=cell.n,
                shown=tuple(map(_parting, cell.first)),
            )


def parting_rows(cells: Sequence[Partings]) -> list[tuple[str, ...]]:
    """Return the lines of the table PARTINGS."""
    return [
        (
            cell.place.model,
            cell.place.workload,
            cell.place.cell,
            cell.reference,
            str(parting.block + 1),
            parting.prompt_id,
            str(parting.position),
            ids_of(parting),
            gap_of(parting),
            limit_of(parting),
            parting.before,
            parting.reply,
            parting.reference_reply,
        )
        for cell in cells
        for parting in cell.shown
    ]


def unshown_lines(cells: Sequence[Partings]) -> list[str]:
    """Return how many replies of each cell are counted and not shown, where there are any."""
    return [
        f"{unshown(cell)} more of {cell.place.cell} ({cell.place.model} on {cell.place.workload}), "
        "in the database."
        for cell in cells
        if unshown(cell)
    ]


def told_lines(cell: Partings) -> list[str]:
    """Return a line for each reply that is shown, its texts quoted, and one for the others."""
    lines = [
        one_line(
            f"block {item.block + 1}, prompt {item.prompt_id}, token {item.position}: "
            f"{ids_of(item)}, {gap_told(item)}; both begin {_quoted(item.before)}, the reply goes "
            f"on {_quoted(item.reply)}, that of {cell.reference} {_quoted(item.reference_reply)}"
        )
        for item in cell.shown
    ]
    return [*lines, *unshown_lines([cell])]


def ids_of(parting: Parting) -> str:
    """Return the ids at the first token that differs, the reply's first, e.g. `17 / end`."""
    return " / ".join(
        END if token is None else str(token) for token in (parting.token, parting.reference_token)
    )


def gap_of(parting: Parting) -> str:
    """Return how far the reply's token stays behind the oracle's, and where if it is elsewhere."""
    if not parting.is_judged:
        return "not judged"
    gap = "unknown" if parting.gap is None else f"{parting.gap:.3g}"
    return gap if parting.judged_at == parting.position else f"{gap} at token {parting.judged_at}"


def limit_of(parting: Parting) -> str:
    """Return below which gap the place would be a near-tie."""
    return numbers.DASH if parting.near_tie_below is None else f"{parting.near_tie_below:.3g}"


def gap_told(parting: Parting) -> str:
    """Return the gap and the limit in words."""
    if not parting.is_judged:
        return gap_of(parting)
    return f"gap {gap_of(parting)}, a near-tie is below {limit_of(parting)}"


def unshown(cell: Partings) -> int:
    """Return how many replies of a cell are counted alone."""
    return cell.n - len(cell.shown)


def _parting(reply: PartedReply) -> Parting:
    ours, theirs = reply.token_ids, reply.reference_ids
    position = first_difference(ours, theirs) or 0
    text, other = reply.text or "", reply.reference_text or ""
    parts_at = first_difference(text, other)
    common = len(text) if parts_at is None else parts_at
    judged = reply.judged
    return Parting(
        trial_id=reply.trial_id,
        block=reply.block,
        prompt_id=reply.prompt_id,
        position=position,
        token=_at(ours, position),
        reference_token=_at(theirs, position),
        is_judged=judged is not None,
        judged_at=None if judged is None else judged.position,
        gap=None if judged is None else judged.gap,
        near_tie_below=None if judged is None else judged.epsilon,
        before=_last(text[:common], EXCERPT),
        reply=shorten(text[common:], EXCERPT),
        reference_reply=shorten(other[common:], EXCERPT),
    )


def _at(ids: Sequence[int], position: int) -> int | None:
    return ids[position] if position < len(ids) else None


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _last(text: str, width: int) -> str:
    """Return at most `width` characters of the end of a text, and that some are missing."""
    return text if len(text) <= width else f"...{text[-width:]}"
