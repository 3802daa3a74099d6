"""Plain lines with columns of equal width, for whoever lists things."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from harness.report.visible import one_line

Rows = Sequence[Sequence[str]]


def aligned(rows: Rows) -> list[str]:
    """Return rows of text as lines; wide characters count as two columns, none breaks a line."""
    shown = [[one_line(text) for text in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*shown, strict=True)]
    return [
        "  ".join(
            text + " " * (width - cell_len(text)) for text, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in shown
    ]
