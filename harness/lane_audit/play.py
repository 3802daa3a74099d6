"""One stress script on one engine: submissions and cancellations between steps and during them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from engine import arrays
from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.draft.source import DraftSource
from engine.kv_budget import BYTES_PER_GB
from engine.loop import Engine
from engine.models.load import LoadedModel
from engine.request import Completion, Request
from engine.runner import Runner
from engine.sequence import Sequence as Row
from engine.shapes import CAPACITY_BLOCK, STEP_WIDTHS, prefill_block, round_up
from engine.testing import ScriptedDrafter
from harness.lane_audit.script import SCRIPTED, Action, Cancel, Join, Script
from harness.lane_audit.shadow import Shadow, tap

MOST_STEPS = 20_000
"""A script that takes more steps has hung."""

Solo = Callable[[Request], list[int]]


class Play:
    """One script on one engine.

    Args:
        solo: what a request's row writes alone, for the scripted drafter.

    Attributes:
        texts: what the events of each row told.
        num_drafted: times the drafter waited for the device.
    """

    def __init__(self, model: LoadedModel, script: Script, solo: Solo) -> None:
        config = _config(model, script)
        self._drafter = _drafter(model, config, script, solo)
        self.engine = Engine(model, config, self._drafter, script.costs)
        self.shadow = Shadow(self.engine)
        self.completions: dict[str, Completion] = {}
        self.texts: dict[str, str] = {}
        self.failures: list[str] = []
        self.num_drafted = 0
        self._actions = list(script.actions)
        self._submitted: list[str] = []
        self._cancelled: list[str] = []
        self._new: list[Request] = []
        self._thread: threading.Thread | None = None
        tap(self.engine._selector, "select", before=self._start)
        if config.drafter == "two_model" and self._drafter is not None:
            tap(self._drafter, "propose", before=self._count)

    def run(self) -> None:
        """Play to the end; stops at the first step that shows something wrong."""
        syncs, step = arrays.SYNCS.count, 0
        while (self._actions or self.engine.has_work) and not self.failures:
            due = [self._actions.pop(0) for _ in range(self._num_due(step))]
            self._do([action for action in due if not action.during])
            self._step([action for action in due if action.during])
            step += 1
            if step > MOST_STEPS:
                self.failures.append(f"not done after {step} steps")
        waits = arrays.SYNCS.count - syncs
        expected = self.shadow.num_sampled + self.num_drafted
        if waits != expected:
            self.failures.append(f"{waits} waits for the device, {expected} expected")
        if not self.failures:
            self.failures += leftovers(self.engine, self._drafter)

    def _num_due(self, step: int) -> int:
        return sum(action.step <= step for action in self._actions)

    def _step(self, during: Sequence[Action]) -> None:
        """Run one step, with another thread at work while it waits for the device."""
        self._thread = threading.Thread(target=self._do_meanwhile, args=(during,))
        self._new.clear()
        events = self.engine.step()
        self._start()
        self._thread.join()
        self.shadow.land(events)
        for event in events:
            self.texts[event.request_id] = self.texts.get(event.request_id, "") + event.text
        self._reconcile(self._new)
        self.failures += self.shadow.problems

    def _start(self, *_: object) -> None:
        if self._thread is not None and self._thread.ident is None:
            self._thread.start()

    def _count(self, *_: object) -> None:
        self.num_drafted += 1

    def _do(self, actions: Sequence[Action]) -> None:
        """Do actions between two steps."""
        for action in actions:
            self._reconcile(self._act(action))

    def _do_meanwhile(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self._new += self._act(action)

    def _act(self, action: Action) -> list[Request]:
        """Do one thing; returns the rows it submitted."""
        if isinstance(action.does, Cancel):
            self._cancel(action.does)
            return []
        return self._submit(action.does)

    def _submit(self, join: Join) -> list[Request]:
        rows, copies = join.rows, join.copies
        request = join.request
        submit = self.engine.submit
        ids = [submit(request)] if copies == 1 else self.engine.submit_copies(request, copies)
        if ids != [row.request_id for row in rows]:
            self.failures.append(f"{request.request_id} was submitted as {ids}")
        self._submitted += ids
        return list(rows)

    def _cancel(self, cancel: Cancel) -> None:
        if self._submitted:
            request_id = self._submitted[cancel.which % len(self._submitted)]
            if self.engine.cancel(request_id):
                self._cancelled.append(request_id)

    def _reconcile(self, new: Sequence[Request]) -> None:
        """Let the shadow know of rows that came and went, and take the finished ones' records."""
        self.shadow.queue(new)
        for request_id in self._cancelled:
            if self.shadow.is_live(request_id):
                self.shadow.leave(request_id)
            else:
                self.failures.append(f"{request_id} is cancelled after its end")
        self._cancelled.clear()
        self.shadow.check()
        for request_id in self._submitted:
            if request_id not in self.completions and not self.shadow.is_live(request_id):
                self.completions[request_id] = self.engine.completion(request_id)


def leftovers(engine: Engine, drafter: DraftSource | None) -> list[str]:
    """Return what an engine without work still holds, one line each."""
    stats, budgets = engine.stats(), engine._proposer._budgets
    held: dict[str, object] = {
        "active rows": stats.active,
        "pending rows": stats.pending,
        "projected bytes": stats.projected_bytes,
        "unfinished rows": stats.submitted - stats.finished,
        "live rows": engine._live,
        "completions": len(engine._completions),
        "a launched step": engine._flight,
        "rows that prefill": engine._scheduler._prefilling,
        "rows the drafter knows": engine._proposer._known,
        "rows of the drafter": drafter is not None and _drafter_rows(drafter),
        "rows of the draft budgets": budgets is not None and budgets._rows,
        "rows of the selector": any(row is not None for row in engine._selector._params._rows),
    }
    return [f"left behind: {name} {value}" for name, value in held.items() if value]


def _drafter_rows(drafter: DraftSource) -> object:
    names = ("open_rows", "_rows", "_by_sequence")
    return [held for name in names if (held := getattr(drafter, name, None))]


def _config(model: LoadedModel, script: Script) -> EngineConfig:
    """Return the script's settings, with its budgets in bytes."""
    config = script.config
    is_pair = script.drafter == "two_model" and config.num_draft_tokens > 0
    per_token = Runner(model).kv_costs.per_token
    rows = script.rows
    padding = prefill_block(config.prefill_chunk)
    most = max(len(r.prompt_ids) + max(r.max_tokens + STEP_WIDTHS[-1], padding) for r in rows)
    slot_bytes = per_token * (2 if is_pair else 1) * round_up(most, CAPACITY_BLOCK)
    budget = None if script.kv_slots is None else script.kv_slots * slot_bytes / BYTES_PER_GB
    return replace(
        config,
        drafter=script.drafter if script.drafter != SCRIPTED else "ngram",
        kv_budget_gb=None if budget is None else budget + 1 / BYTES_PER_GB,
        prefix_cache_bytes=script.prefix_tokens * per_token,
    )


def _drafter(
    model: LoadedModel, config: EngineConfig, script: Script, solo: Solo
) -> DraftSource | None:
    if config.num_draft_tokens == 0 or script.drafter != SCRIPTED:
        return build_drafter(config, model)
    truths = {row.request_id: solo(row) for row in script.rows}

    def propose(row: Row) -> list[int]:
        """Tell what comes; every fifth token is wrong, and now and then more than was asked."""
        ahead = truths[row.request.request_id][row.num_emitted :][: STEP_WIDTHS[-1]]
        places = enumerate(ahead, row.num_emitted + row.seed)
        return [token ^ 1 if place % 5 == 4 else token for place, token in places]

    return ScriptedDrafter(propose)
