"""Plain aligned lines for `fm plan` and `fm models`."""

from __future__ import annotations

from collections.abc import Sequence

from engine.models.registry import ModelRow
from harness.matrix import Matrix, Pair

Rows = Sequence[Sequence[str]]

HEADINGS = ("model", "workload", "cell", "kind", "against", "tokens", "note")


def plan_lines(matrix: Matrix) -> list[str]:
    """Return what a matrix would run, pair by pair, then what it would not and why."""
    amounts = matrix.choices.amounts()
    trials = matrix.trials()
    requests = sum(len(trial.prompts) for trial in trials)
    cap = amounts.max_tokens or "the workload's own"
    return [
        (
            f"preset {matrix.choices.preset}: {amounts.blocks} blocks of {amounts.prompts} "
            f"prompts, cap {cap}, temperature {matrix.choices.temperature:g}, "
            f"seed {matrix.choices.seed}, target {matrix.choices.target}"
        ),
        f"{len(trials)} trials, {requests} requests",
        "",
        *aligned([HEADINGS, *(_pair_row(pair) for pair in matrix.pairs)]),
        "",
        f"plan {matrix.digest[:16]}",
    ]


def _pair_row(pair: Pair) -> tuple[str, ...]:
    skipped = f"skipped: {pair.skip_reason}" if pair.skip_reason else ""
    return (
        pair.model,
        pair.workload.name,
        pair.cell.name,
        pair.cell.kind.value,
        pair.baseline or "",
        str(pair.max_tokens),
        skipped,
    )


def model_table(rows: Sequence[ModelRow]) -> Rows:
    """Return the lines of `fm models` as cells of text, headings first."""
    headings = ("name", "size", "here", "licence", "source", "drafters")
    return [headings, *(_model_row(row) for row in rows)]


def _model_row(row: ModelRow) -> tuple[str, ...]:
    size = "?" if row.size_bytes is None else f"{row.size_bytes / 1e6:,.0f} MB"
    return (
        row.name,
        size if row.size_bytes != 0 else "made here",
        "yes" if row.cached else "no",
        row.licence,
        row.source,
        ", ".join(row.drafters),
    )


def aligned(rows: Rows) -> list[str]:
    """Return rows of text as lines with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
