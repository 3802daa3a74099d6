"""Planned steps put on the device: drafts proposed, ids laid out, the forward built and launched.

Nothing here waits for the device, but for a drafter that needs its own tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import mlx.core as mx

from engine import arrays
from engine.flight import Draft, Flight
from engine.plan import StepKind, StepPlan
from engine.propose import Proposer
from engine.runner import Runner
from engine.shapes import prefill_width, step_width
from engine.step_time import StepTimer


class Launcher:
    """From a plan to a flight.

    Args:
        timer: told what the host does; see engine.step_time.
    """

    def __init__(self, runner: Runner, proposer: Proposer, timer: StepTimer) -> None:
        self._runner = runner
        self._proposer = proposer
        self._timer = timer

    def launch(self, plan: StepPlan, started_s: float) -> Flight:
        """Start a step whose tokens the host knows."""
        if plan.kind is StepKind.PREFILL:
            return self._prefill(plan, started_s)
        drafts = self._proposer.propose(plan.slots)
        self._timer.lap("draft")
        width = step_width(
            max(s.num_known + len(d.ids) for s, d in zip(plan.slots, drafts, strict=True))
        )
        fed = [(*slot.tokens, *draft.ids) for slot, draft in zip(plan.slots, drafts, strict=True)]
        return self._decode(plan, _ids_of(plan, fed, width), drafts, started_s)

    def launch_ahead(self, plan: StepPlan, tokens: mx.array, started_s: float) -> Flight:
        """Start a step behind one that is not read yet.

        Args:
            tokens: what that one chooses, [rows, 1]; recorded tokens are fed in their place.
        """
        if any(slot.sequence.forced_ids for slot in plan.slots):
            tokens = _ids_of(plan, [[slot.sequence.forced_next] for slot in plan.slots], 1)
        return self._decode(plan, tokens, (Draft(),) * len(plan.slots), started_s)

    def _prefill(self, plan: StepPlan, started_s: float) -> Flight:
        chunks = [slot.tokens for slot in plan.slots]
        ids = _ids_of(plan, chunks, prefill_width(max(map(len, chunks))))
        drafts = (Draft(),) * len(chunks)
        rows = plan.rows([draft.ids for draft in drafts])
        hidden = self._runner.prefill(ids, rows)
        samples = any(slot.samples for slot in plan.slots)
        logits = self._runner.head(hidden) if samples else None
        self._start(hidden if logits is None else logits)
        # a row that starts over tells at once whether it can be computed
        is_tried = any(slot.sequence.is_restarted for slot in plan.slots)
        unread = hidden if is_tried else None
        return Flight(plan, drafts, rows.counts, logits, 1, ids.size, started_s, unread)

    def _decode(
        self, plan: StepPlan, ids: mx.array, drafts: tuple[Draft, ...], started_s: float
    ) -> Flight:
        rows = plan.rows([draft.ids for draft in drafts])
        logits = self._runner.forward(ids, rows)
        logits = logits.reshape(-1, logits.shape[-1])
        self._start(logits)
        return Flight(plan, drafts, rows.counts, logits, ids.shape[1], ids.size, started_s)

    def _start(self, output: mx.array) -> None:
        self._timer.lap("build")
        self._runner.launch(output)
        self._timer.lap("launch")


def _ids_of(plan: StepPlan, fed: Many[Many[int]], width: int) -> mx.array:
    """Return the ids of a step, [plan.num_rows, width]; idle rows are zeros."""
    rows: list[Many[int]] = [()] * plan.num_rows
    for slot, tokens in zip(plan.slots, fed, strict=True):
        rows[plan.row(slot)] = tokens
    return arrays.ids_array(rows, width)
