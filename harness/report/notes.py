"""What is noted below the table of a group: noise, drift, replies without a rate, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.report import numbers
from harness.report.figures import Group
from harness.report.numbers import counted
from harness.report.refusals import typical_drift


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph of plain text, and the points of a list below it."""

    text: str
    points: tuple[str, ...] = ()


def group_notes(group: Group) -> Iterator[Note]:
    """Yield the notes of one model on one workload, in the order in which they are read."""
    if group.noise is not None:
        shown = numbers.interval(group.noise.ratio)
        name = group.noise.baseline
        yield Note(f"Noise floor: {name} repeated, against {name}: {shown}.")
    yield from _drift(group)
    short = [
        f"{cell.place.cell}: {cell.empty_replies} empty, {cell.one_token_replies} of one token"
        for cell in group.cells
        if cell.empty_replies or cell.one_token_replies
    ]
    if short:
        yield Note(f"Replies without a rate: {'; '.join(short)}.")
    walled = [
        f"{cell.place.cell} against {against.baseline}"
        for cell in group.cells
        for against in cell.ratios
        if against.figure != "aggregate"
    ]
    if walled:
        yield Note(
            "Compared by tokens a second of wall time, prefill included, since decode steps are "
            f"not told: {', '.join(walled)}."
        )
    apart = [
        f"{cell.place.cell} against {against.baseline} {counted(against.apart, 'block')}"
        for cell in group.cells
        for against in cell.ratios
        if against.apart
    ]
    if apart:
        yield Note(
            "Without a ratio, since one of the two trials failed and was run again, apart from the "
            f"other: {', '.join(apart)}."
        )
    yield from _client(group)
    refused = tuple(_refused(group))
    if refused:
        yield Note("Verdicts were refused:", refused)


def _drift(group: Group) -> Iterator[Note]:
    change = typical_drift(group)
    if change is not None:
        drifts = ", ".join(
            f"{cell.place.cell} {numbers.change(cell.drift)}"
            for cell in group.cells
            if cell.drift is not None
        )
        yield Note(f"Drift from the first block to the last: {numbers.change(change)} ({drifts}).")


def _client(group: Group) -> Iterator[Note]:
    """Yield what is known of the load client, where there was one."""
    delays = [
        f"{cell.place.cell} {numbers.percent(cell.client_delay, 1)}"
        for cell in group.cells
        if cell.client_delay is not None
    ]
    if delays:
        yield Note(
            "Client delay, at most, of the time between two events of a stream: "
            f"{', '.join(delays)}."
        )
    again = [f"{cell.place.cell} {cell.retries}" for cell in group.cells if cell.retries]
    if again:
        yield Note(f"Requests sent again after a 429 that named a time: {', '.join(again)}.")


def _refused(group: Group) -> Iterator[str]:
    """Yield each reason against a verdict with the ratios it stands against."""
    ratios = [(cell, against) for cell in group.cells for against in cell.ratios]
    reasons: dict[str, list[str]] = {}
    for cell, against in ratios:
        for reason in against.ratio.refusals:
            pair = f"{cell.place.cell} against {against.baseline}"
            reasons.setdefault(reason, []).append(pair)
    for reason, pairs in reasons.items():
        yield f"{reason}: {', '.join(pairs) if len(pairs) < len(ratios) else 'every ratio'}"
