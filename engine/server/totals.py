"""What a server has done since it started, counted as rows end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from engine.request import Completion


@dataclass(slots=True)
class Totals:
    """Counts that only the engine thread adds to; anybody may read them.

    Attributes:
        rows: ended rows by finish reason.
        lanes: ended rows by lane.
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
