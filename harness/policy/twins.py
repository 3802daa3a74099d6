"""The cells of the head and their twins, which the base's code ran in the same blocks."""

from __future__ import annotations

from collections.abc import Iterator

from harness.cells.name import BASE, on_side, side_of
from harness.store.index import Place, RunIndex
from harness.store.rows import TrialRow


def pairs(index: RunIndex) -> Iterator[tuple[Place, Place]]:
    """Yield each place of the head that the base was to run too, with its twin."""
    for place in index.places():
        twin = place.other(on_side(place.cell, BASE))
        if not side_of(place.cell) and index.trials(twin):
            yield place, twin


def shared_trials(
    index: RunIndex, place: Place, twin: Place
) -> tuple[tuple[TrialRow, ...], tuple[TrialRow, ...]]:
    """Return the finished trials of both sides, of blocks that both finished, by block."""
    ours, theirs = index.trials(place, "done"), index.trials(twin, "done")
    blocks = {trial.block for trial in ours} & {trial.block for trial in theirs}
    return (
        tuple(trial for trial in ours if trial.block in blocks),
        tuple(trial for trial in theirs if trial.block in blocks),
    )


def unpaired_cells(index: RunIndex, model: str) -> tuple[str, ...]:
    """Return the cells that engines of the head alone ran: they hold memory, and grammars."""
    return tuple(
        dict.fromkeys(
            place.cell
            for place in index.places()
            if place.model == model
            and index.cell(place).kind not in ("aa", "peer")
            and not side_of(place.cell)
            and index.trials(place, "done")
            and not index.trials(place.other(on_side(place.cell, BASE)), "done")
        )
    )
