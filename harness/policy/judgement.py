"""What a gate found, as values: findings with what each decides, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness import exit_codes
from harness.policy.counters import Count
from harness.policy.family import Effect
from harness.report.figures import Partings
from harness.store.index import Place
from harness.store.rows import RunRow

Kind = Literal["correctness", "coverage", "counter", "metric", "noise", "floor"]
Status = Literal["pass", "fail", "inconclusive", "incomplete", "refused"]

NOWHERE = Place("", "", "")
"""Of a finding about the whole run."""

NOISY = "the baseline differs from its own repeat, or was not repeated often enough"

CODES: dict[Status, int] = {
    "pass": exit_codes.PASS,
    "fail": exit_codes.REGRESSION,
    "inconclusive": exit_codes.INCONCLUSIVE,
    "incomplete": exit_codes.INCOMPLETE,
    "refused": exit_codes.MACHINE_REFUSED,
}
"""Status of a finding that decides -> exit code; a failed correctness gate has one of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Args:
        name: of the gate, counter, metric or floor.
        place: where; parts are "" where it is about more than one.
        is_hard: False where it is told and decides nothing.
        detail: one line for people.
        observed, n: of a correctness gate.
        count: of a counter.
        effect: of a metric.
        partings: of the gate identity, replies that show why it failed.
    """

    kind: Kind
    name: str
    place: Place
    status: Status
    is_hard: bool = True
    detail: str = ""
    observed: float | None = None
    n: int = 0
    count: Count | None = None
    effect: Effect | None = None
    partings: Partings | None = None

    @property
    def code(self) -> int:
        """The exit code it calls for."""
        if not self.is_hard:
            return exit_codes.PASS
        if self.kind == "correctness" and self.status == "fail":
            return exit_codes.CORRECTNESS
        return CODES[self.status]

    @property
    def where(self) -> str:
        """The place in words, "" for the whole run."""
        place = self.place
        return " ".join(filter(None, (place.model, place.workload, place.cell)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a policy makes of a run.

    Args:
        base: commit that it was compared with, "" for none.
        is_strict: what is inconclusive fails.
        notes: what a reader should know, one line each.
    """

    run: RunRow
    policy: str
    base: str
    is_strict: bool
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> int:
        """The worst of all findings, as an exit code."""
        return exit_codes.worst(finding.code for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """What `fm gate` exits with: an inconclusive gate passes unless it is strict."""
        if self.verdict == exit_codes.INCONCLUSIVE and not self.is_strict:
            return exit_codes.PASS
        return self.verdict

    def of(self, *kinds: Kind) -> tuple[Finding, ...]:
        """Return the findings of some kinds."""
        return tuple(finding for finding in self.findings if finding.kind in kinds)
