"""Records of finished rows until somebody takes them, and no longer than memory allows.

A client that reads events alone never takes one, so the oldest go when there are too many.
"""

from __future__ import annotations

from engine.errors import RequestError
from engine.request import Completion

MAX_KEPT = 4096
"""Most records kept. `Engine.generate` takes them as rows end, so no call of it needs as many."""


class Completions:
    """Finished rows by id, the oldest first; not thread-safe, the engine's lock guards it."""

    def __init__(self, most: int = MAX_KEPT) -> None:
        self._most = most
        self._held: dict[str, Completion] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._held

    def keep(self, completion: Completion) -> None:
        """Add a record; the oldest is dropped when there are too many."""
        self._held[completion.request_id] = completion
        while len(self._held) > self._most:
            del self._held[next(iter(self._held))]

    def take(self, request_id: str) -> Completion:
        """Return a record and forget it; raises RequestError when it is not there."""
        if request_id not in self._held:
            raise RequestError(
                f"there is no completion of {request_id!r}: its row is unknown or still live, it "
                f"was taken before, or {self._most} rows have ended since; take it when a "
                "TokenEvent brings the finish_reason"
            )
        return self._held.pop(request_id)
