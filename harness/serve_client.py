"""A server as a child on a free port of this machine, and a client that times what it hears.

For the audit of the server (harness.serve_audit): what is heard is kept whole, event by event.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import psutil

from harness.server_process import ServerProcess, fm_serve

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HEADERS = {"content-type": "application/json"}
REPLY_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers.

    Args:
        model: the id it serves.
    """

    url: str
    model: str
    process: psutil.Process

    @property
    def resident_bytes(self) -> int:
        """Resident memory of the server."""
        return int(self.process.memory_info().rss)

    def stats(self) -> dict[str, Any]:
        """Return what /stats tells."""
        found: dict[str, Any] = httpx2.get(f"{self.url}/stats", timeout=REPLY_TIMEOUT_S).json()
        return found


@contextmanager
def served(model: str, *flags: str) -> Iterator[Served]:
    """Start `fm serve` and end it, whatever happens.

    Raises:
        ServerError: it ended, or did not serve in time; with the last line it wrote.
    """
    process = ServerProcess(fm_serve(model, flags), lambda _line: None)
    try:
        yield Served(process.url, model, psutil.Process(process.pids[0]))
    finally:
        process.close()


@dataclass(slots=True)
class Heard:
    """What came back for one request.

    Attributes:
        texts: what was said, by choice.
        events_s: when each event was heard, as `began_s` by the monotonic clock.
        text_s: when the first text was heard, None without any.
        problem: what is wrong with the answer, one line.
    """

    began_s: float
    status: int = 0
    ended_s: float = 0.0
    texts: dict[int, str] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    finish_reasons: dict[int, str] = field(default_factory=dict)
    events_s: list[float] = field(default_factory=list)
    text_s: float | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None

    @property
    def seconds(self) -> float:
        """From sending to the end."""
        return self.ended_s - self.began_s

    @property
    def ttft_s(self) -> float:
        """From sending to the first text, or to the end without any."""
        return (self.ended_s if self.text_s is None else self.text_s) - self.began_s

    def take(self, document: Mapping[str, Any], now_s: float) -> None:
        """Take in a whole reply or a chunk."""
        if "error" in document:
            self.problem = str(document["error"]["message"])[:200]
            return
        self.usage = document.get("usage") or self.usage
        for choice in document["choices"]:
            said = choice.get("message") or choice.get("delta") or choice
            text = said.get("content") or said.get("text") or ""
            index = choice["index"]
            self.texts[index] = self.texts.get(index, "") + text
            self.token_ids += choice.get("token_ids") or []
            if text and self.text_s is None:
                self.text_s = now_s
            if choice["finish_reason"] is not None:
                self.finish_reasons[index] = choice["finish_reason"]


OnEvent = Callable[[Heard], None]


class Client:
    """Asks one server; many requests may be under way."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def ask(
        self, path: str, body: Mapping[str, Any], on_event: OnEvent = lambda _heard: None
    ) -> Heard:
        """Send a body and hear the answer to its end; a stream is read event by event."""
        raw = json.dumps(body).encode()
        heard = Heard(time.monotonic())
        try:
            if body.get("stream"):
                await self._stream(path, raw, heard, on_event)
            else:
                answer = await self._client.post(path, content=raw, headers=HEADERS)
                heard.status = answer.status_code
                heard.take(answer.json(), time.monotonic())
        except (httpx2.HTTPError, ValueError, KeyError) as error:
            heard.problem = f"{type(error).__name__}: {error}"[:200]
        heard.ended_s = time.monotonic()
        if heard.status != 200 and heard.problem is None:
            heard.problem = f"status {heard.status}"
        return heard

    async def _stream(self, path: str, raw: bytes, heard: Heard, on_event: OnEvent) -> None:
        is_done = False
        async with self._client.stream("POST", path, content=raw, headers=HEADERS) as answer:
            heard.status = answer.status_code
            if heard.status != 200:
                await answer.aread()
                heard.take(answer.json(), time.monotonic())
                return
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    is_done = True
                elif line.startswith("data: "):
                    now_s = time.monotonic()
                    heard.events_s.append(now_s)
                    heard.take(json.loads(line.removeprefix("data: ")), now_s)
                    on_event(heard)
        if not is_done and heard.problem is None:
            heard.problem = "the stream ended without [DONE]"


@asynccontextmanager
async def client_of(server: Served, connections: int) -> AsyncIterator[Client]:
    """Open a client of a server."""
    limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
    async with httpx2.AsyncClient(
        base_url=server.url, timeout=REPLY_TIMEOUT_S, limits=limits, trust_env=False
    ) as client:
        yield Client(client)


@dataclass(slots=True)
class Finding:
    """What one part of the audit found.

    Attributes:
        figures: name -> number, in the unit of its name.
        failures: one line for each property that does not hold.
    """

    name: str
    figures: dict[str, float | int | str | None] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return it as one line for people."""
        shown = ", ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.figures.items()
        )
        word = "FAIL" if self.failures else "pass"
        why = f"; {self.failures[0]}" if self.failures else ""
        return f"{word}  {self.name}: {shown}{why}"
