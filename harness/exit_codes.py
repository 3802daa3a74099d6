"""Every exit code of fm, once, with the word that people read."""

from __future__ import annotations

from collections.abc import Iterable

PASS = 0
REGRESSION = 1
USAGE = 2
CORRECTNESS = 3
INCONCLUSIVE = 4
MACHINE_REFUSED = 5
INCOMPLETE = 6
INTERRUPTED = 130

PROBLEM = 1
"""Of commands that judge no run: `fm doctor` found one, `fm generate` has no good reply."""

WORDS: dict[int, str] = {
    PASS: "PASS",
    REGRESSION: "REGRESSION",
    USAGE: "USAGE ERROR",
    CORRECTNESS: "FAIL",
    INCONCLUSIVE: "INCONCLUSIVE",
    MACHINE_REFUSED: "MACHINE REFUSED",
    INCOMPLETE: "INCOMPLETE",
    INTERRUPTED: "INTERRUPTED",
}
"""Exit code -> word. `fm run` exits with 0, 2, 3, 6 or 130 only; `fm gate` with any of them."""

WORST_FIRST = (CORRECTNESS, INCOMPLETE, REGRESSION, MACHINE_REFUSED, INCONCLUSIVE, PASS)


def worst(codes: Iterable[int]) -> int:
    """Return the worst of some verdicts; PASS for none."""
    found = set(codes)
    return next((code for code in WORST_FIRST if code in found), PASS)
