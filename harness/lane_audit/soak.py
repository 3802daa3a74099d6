"""The soak: one engine open over thousands of random requests, and nothing of them left behind.

Requests of every kind come at random steps, between them and during them, and one row in ten is
cancelled somewhere between its submission and its end. They come in rounds. After each the engine
has no work, and has to hold nothing of any row and no more blocks of prefixes than its budget; its
memory is read there, and from the end of the first third on it has to be flat.
`scripts/audit --soak 2000` runs it.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.loop import Engine
from engine.models.load import LoadedModel
from engine.request import FinishReason
from engine.runner import Runner
from engine.testing import write_adapter
from harness.lane_audit.idle import IdleWatch, drifts, exact_buffers
from harness.lane_audit.play import MOST_STEPS
from harness.lane_audit.script import DRAFTS_PAY, Join, Limits, random_join

CANCELLED = 0.1
"""Share of the rows that is cancelled."""

ROUNDS, FEWEST = 30, 10
"""Rounds of a soak, fewer where a round would have less than FEWEST requests."""

MAX_ROWS = 8
MOST_IN_FLIGHT = 2 * MAX_ROWS
"""Requests wait to be submitted while so many rows have not ended; half of these have no slot."""

ADAPTERS = ("one", "two")
PHASES = ("waiting", "in prefill", "decoding")
"""Where a row can be when it is cancelled."""


class Soak:
    """One engine and the requests it gets.

    Args:
        folder: an empty one, for the engine's adapters.

    Attributes:
        counts: requests, rows, tokens and what became of them.
        problems: one line for each thing that is wrong.
    """

    def __init__(self, model: LoadedModel, limits: Limits, seed: int, folder: Path) -> None:
        config = _config(model, limits, folder)
        drafter = build_drafter(config, model)
        self.engine = Engine(model, config, drafter, DRAFTS_PAY)
        self.watch = IdleWatch(self.engine, drafter)
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._limits = limits
        self._shapes = random.Random(seed)  # apart, so that a seed is the same requests every time
        self._rng = random.Random(seed)
        self._live: list[str] = []

    def run(self, num_requests: int, say: Callable[[str], None]) -> None:
        """Serve so many requests; stops behind the first round that shows something wrong."""
        size = max(FEWEST, ceil(num_requests / ROUNDS))
        with exact_buffers(), ThreadPoolExecutor(1) as client:
            for start in range(0, num_requests, size):
                names = range(start, min(start + size, num_requests))
                self._round(deque(self._join(f"r{name}") for name in names), client)
                self.problems += self.watch.look()
                word = f"FAIL {self.problems[0]}" if self.problems else "pass"
                done = f"{names.stop}/{num_requests} {self.engine.model.name} requests"
                say(f"{done}, {self.counts['tokens']} tokens, {self.watch.memory[-1]}  {word}")
                if self.problems:
                    return
        stats = self.engine.stats()
        self.counts.update(steps=stats.steps, evicted_blocks=stats.prefix.evicted_blocks)
        self.problems += self.watch.conclude()

    def _join(self, name: str) -> Join:
        join = random_join(self._shapes, self._limits, name)
        adapter = self._shapes.choice(("", "", *ADAPTERS))
        return replace(join, request=replace(join.request, adapter=adapter))

    def _round(self, joins: deque[Join], client: ThreadPoolExecutor) -> None:
        """Serve some requests to the end."""
        try:
            for _ in range(MOST_STEPS):
                if not joins and not self._live:
                    break
                self._step(joins, client)
            else:
                self.problems.append(f"{len(self._live)} rows live after {MOST_STEPS} steps")
            if self.engine.has_work:
                self.engine.step()  # the drafter forgets a row that was cancelled at last
        except Exception as error:  # noqa: BLE001  # a soak that raises has failed
            self.problems.append(f"{type(error).__name__}: {error}"[:300])

    def _step(self, joins: deque[Join], client: ThreadPoolExecutor) -> None:
        """Run one step, with the client at work before it or meanwhile."""
        is_before = self._rng.random() < 0.5
        work = client.submit(self._act, joins)
        if is_before:
            work.result()
        events = self.engine.step()
        work.result()
        for event in events:
            if event.finish_reason is not None:
                self._take(event.request_id)

    def _act(self, joins: deque[Join]) -> None:
        """Submit some requests or none, and cancel a row when one is due."""
        while joins and len(self._live) < MOST_IN_FLIGHT and self._rng.random() < 0.3:
            self._submit(joins.popleft())
        is_due = self.counts["cancelled"] + 1 <= CANCELLED * self.counts["rows"]
        if is_due and self._live and self._rng.random() < 0.2:
            self._cancel(self._rng.choice(self._live))

    def _submit(self, join: Join) -> None:
        request, copies, engine = join.request, join.copies, self.engine
        ids = [engine.submit(request)] if copies == 1 else engine.submit_copies(request, copies)
        self._live += ids
        num_constrained = len(ids) if request.constraint is not None else 0
        self.counts.update(requests=1, rows=len(ids), constrained=num_constrained)

    def _cancel(self, request_id: str) -> None:
        row = self.engine._live.get(request_id)
        is_active = row in self.engine._scheduler.active
        phase = "in prefill" if row is not None and row.is_prefilling else "decoding"
        if self.engine.cancel(request_id):
            self.counts["cancelled"] += 1
            self.counts[phase if is_active else "waiting"] += 1
            self._take(request_id)

    def _take(self, request_id: str) -> None:
        """Take the record of a row that has ended."""
        done = self.engine.completion(request_id)
        self._live.remove(request_id)
        self.counts.update(
            tokens=len(done.token_ids), accepted=done.accepted, cached_tokens=done.cached_tokens
        )
        if done.finish_reason is FinishReason.ERROR:
            self.problems.append(f"{request_id} fails: {done.error}")


def _config(model: LoadedModel, limits: Limits, folder: Path) -> EngineConfig:
    """Return settings with everything on, and a prefix cache that has to evict."""
    places = [write_adapter(folder / name, model, seed) for seed, name in enumerate(ADAPTERS)]
    return EngineConfig(
        max_rows=MAX_ROWS,
        num_draft_tokens=3,
        spec_batching="batched",
        draft_budgets="adaptive",
        prefix_cache_bytes=2 * limits.longest_prompt * Runner(model).kv_costs.per_token,
        adapters=tuple(map(str, places)),
    )


def run_soak(
    model: LoadedModel, limits: Limits, num_requests: int, seed: int, say: Callable[[str], None]
) -> dict[str, object]:
    """Soak one model; returns the report of `--json`."""
    with TemporaryDirectory() as folder:
        soak = Soak(model, limits, seed, Path(folder))
        soak.run(num_requests, say)
    counts, problems, memory = soak.counts, soak.problems, soak.watch.memory
    phases = ", ".join(f"{counts[phase]} {phase}" for phase in PHASES)
    flat = ", ".join(f"{kind} {drift}" for kind, drift in drifts(memory).items())
    say(
        f"{'FAIL' if problems else 'pass'}  soak on {model.name}: {counts['requests']} requests, "
        f"{counts['rows']} rows, {counts['cancelled']} cancelled ({phases}), "
        f"{counts['tokens']} tokens; {flat}" + (f"; {problems[0]}" if problems else "")
    )
    readings = [asdict(reading) for reading in memory]
    return {"model": model.name, **counts, "failures": problems, "memory": readings}
