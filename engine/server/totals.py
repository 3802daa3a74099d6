"""What a server has done since it started, counted as rows end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from engine.request import Completion
from engine.step_time import PARTS
from engine.telemetry import StepReport


@dataclass(slots=True)
class StepSums:
    """Decode steps that served the same number of rows.

    Attributes:
        tokens: emitted by them.
        seconds: time the engine's thread spent in them.
    """

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class DecodeTotals:
    """Decode steps since the server started; times are seconds of the engine's thread.

    Attributes:
        by_rows: rows served in a step -> its sums.
        mask_positions: grammar masks filled.
        parts_s: what the host spent on each part of a step (engine.step_time).
    """

    by_rows: dict[int, StepSums] = field(default_factory=dict)
    mask_positions: int = 0
    parts_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    def add(self, step: StepReport, seconds: float) -> None:
        """Count a step; one that decodes nothing counts for nothing."""
        if not step.is_decode:
            return
        sums = self.by_rows.setdefault(step.rows, StepSums())
        sums.steps += 1
        sums.tokens += step.committed
        sums.seconds += seconds
        self.mask_positions += step.mask_positions
        for part, spent_s in step.parts_s.items():
            self.parts_s[part] += spent_s


@dataclass(slots=True)
class Totals:
    """Counts that only the engine thread adds to; anybody may read them.

    Attributes:
        rows: ended rows by finish reason.
        lanes: ended rows by lane.
        decode: decode steps, whose rows may still be live.
    """

    rows: Counter[str] = field(default_factory=Counter)
    lanes: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    target_calls: int = 0
    drafted: int = 0
    accepted: int = 0
    illegal_drafts: int = 0
    failed_steps: int = 0
    decode: DecodeTotals = field(default_factory=DecodeTotals)

    def add(self, completion: Completion) -> None:
        """Count an ended row."""
        self.rows[str(completion.finish_reason)] += 1
        self.lanes[completion.lane] += 1
        self.prompt_tokens += completion.prompt_tokens
        self.cached_tokens += completion.cached_tokens
        self.completion_tokens += len(completion.token_ids)
        self.target_calls += completion.target_calls
        self.drafted += completion.drafted
        self.accepted += completion.accepted
        self.illegal_drafts += completion.illegal_drafts

    @property
    def acceptance(self) -> float | None:
        """Share of drafts the target agreed with; None before the first one."""
        return self.accepted / self.drafted if self.drafted else None
