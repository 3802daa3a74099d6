"""The server under audit: `fm serve` as a child, what it says to one request, and a finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from harness.http.chat_reply import StreamError
from harness.http.client import Exchange, LoadClient, Patience
from harness.http.process import ServerProcess, fm_serve
from harness.opening import served_name

COMPLETIONS = "/v1/completions"
MOST_TOLD = 3
"""Failures of one part that its line tells; the JSON has all."""

PATIENCE = Patience(first_event_s=300.0, event_s=300.0, total_s=600.0)


@dataclass(slots=True)
class Heard:
    """What one reply says, streamed or whole.

    Attributes:
        texts: what was said, by choice.
        finish_reasons: by choice.
        events_s: when each document was read, by the monotonic clock.
    """

    texts: dict[int, str] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    finish_reasons: dict[int, str] = field(default_factory=dict)
    events_s: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def finish_reason(self) -> str | None:
        """Why the first choice that has ended did, None before one has."""
        return next(iter(self.finish_reasons.values()), None)

    def see(self, document: Any, now_s: float) -> int:
        """Take a chunk in, or a whole reply; returns the token ids it brought.

        Raises:
            StreamError: it is neither.
        """
        before = len(self.token_ids)
        self.events_s.append(now_s)
        try:
            self.usage = document.get("usage") or self.usage
            for choice in document["choices"]:
                self._take(choice)
        except (AttributeError, KeyError, TypeError) as error:
            raise StreamError(f"{document!r:.60} is no reply: {error!r}") from None
        return len(self.token_ids) - before

    def _take(self, choice: Mapping[str, Any]) -> None:
        index, said = choice["index"], choice.get("message") or choice.get("delta") or choice
        text = said.get("content") or said.get("text") or ""
        self.texts[index] = self.texts.get(index, "") + text
        self.token_ids += choice.get("token_ids") or []
        if choice["finish_reason"] is not None:
            self.finish_reasons[index] = choice["finish_reason"]


Answer = Exchange[Heard]
AuditClient = LoadClient[Heard]


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers.

    Args:
        model: what it was asked to serve: a name, or a path.
        pids: its processes.
    """

    url: str
    model: str
    pids: tuple[int, ...]

    @property
    def name(self) -> str:
        """The id it serves."""
        return served_name(self.model)

    @property
    def resident_bytes(self) -> int:
        """Resident memory of the server."""
        return sum(int(psutil.Process(pid).memory_info().rss) for pid in self.pids)

    def client(self, connections: int) -> AuditClient:
        """Open a client; a context."""
        return LoadClient(self.url, connections, reply=Heard, patience=PATIENCE)


@contextmanager
def served(model: str, *flags: str) -> Iterator[Served]:
    """Start `fm serve` and end it, whatever happens.

    Raises:
        ServerError: it ended, or did not serve in time; with the last line it wrote.
    """
    process = ServerProcess(fm_serve(model, flags), lambda _line: None)
    try:
        yield Served(process.url, model, process.pids)
    finally:
        process.close()


@dataclass(slots=True)
class Finding:
    """What one part of the audit found.

    Attributes:
        figures: name -> number, in the unit of its name.
        failures: one line for each property that does not hold; no machine is too slow for it.
        slow: one line for each bound on time or memory that is passed, which a machine that does
            other things may do too.
    """

    name: str
    figures: dict[str, float | int | str | None] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return it as one line for people."""
        shown = ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.figures.items()
        )
        word = "FAIL" if self.failures else "slow" if self.slow else "pass"
        why = "".join(f"; {line}" for line in (*self.failures[:MOST_TOLD], *self.slow))
        return f"{word}  {self.name}: {shown}{why}"
