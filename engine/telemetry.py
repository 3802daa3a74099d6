"""What the engine reports about itself: one frozen record a step, totals on request."""

from __future__ import annotations

from dataclasses import dataclass

from engine.cache.prefix import PrefixStats
from engine.plan import StepKind


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One executed step. Times are seconds on time.perf_counter's clock.

    Args:
        rows: rows served.
        positions: token positions computed, padding included.
        committed: tokens emitted.
        draft_s: time spent proposing drafts.
        mask_s: time spent on the host filling grammar masks.
        mask_positions: masks filled.
        ended_s: after the step's result was read by the host.
    """

    kind: StepKind
    rows: int
    max_rows: int
    positions: int
    prompt_tokens: int
    committed: int
    draft_s: float
    mask_s: float
    mask_positions: int
    started_s: float
    ended_s: float

    @property
    def is_decode(self) -> bool:
        """True for a decode step."""
        return self.kind is StepKind.DECODE

    @property
    def is_full(self) -> bool:
        """True for a decode step at full occupancy."""
        return self.is_decode and self.rows == self.max_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Totals since the engine was opened.

    Args:
        host_syncs: waits for the device of the whole process, other engines included.
        prefix: what the prefix cache did.
    """

    submitted: int
    waiting: int
    active: int
    finished: int
    steps: int
    host_syncs: int
    kv_bytes: int
    prefix: PrefixStats


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """A recorded text run again with its tokens forced; one entry a decode step.

    Args:
        step_s: time of each step.
        mask_s: host time each step spent filling masks.
    """

    step_s: tuple[float, ...]
    mask_s: tuple[float, ...]
