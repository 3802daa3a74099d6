"""What an engine counts of its own work over a trial: figures that no clock disturbs."""

from __future__ import annotations

from engine.grammar.mask import FILLS
from engine.loop import Engine


class WorkMeter:
    """The work of one engine from when this was made; other engines have to be idle meanwhile."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before = engine.stats()
        self._fills_before = FILLS.count

    def counters(self) -> dict[str, int]:
        """Return the counts so far, by name.

        `steps`, `positions` (padding included), `host_syncs` and `mask_calls` are of the time
        since; harness.trials.turns has those that are not.
        """
        now, before = self._engine.stats(), self._before
        return {
            "steps": now.steps - before.steps,
            "positions": now.positions - before.positions,
            "host_syncs": now.host_syncs - before.host_syncs,
            "mask_calls": FILLS.count - self._fills_before,
            "compiles": now.grammar.compiles,
            "kv_bytes": now.kv_bytes,
        }
