"""A server under many short requests, and under clients that leave: nothing may be left behind."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from engine.server.lag import quantile
from harness.http.client import Ask, Load
from harness.serving_audit.subject import (
    COMPLETIONS,
    AuditClient,
    Finding,
    Heard,
    Served,
)
from harness.targets.http import CHAT

CONCURRENCY = 32
CROWD = 4
"""Choices of a request whose rows need more than twice the cache of one."""

MAX_LAG_S = 0.05
"""Bound on the 99th percentile of the event loop's lag."""

FLAT = 0.03
"""Largest share by which resident memory may grow from the second quarter to the last.

In the first one the allocator's arenas grow to what so many threads need at a time: of the tiny
model's server, 10 MB that are free again, while the bytes in use stay the same. Behind it 0.5 to
1.5 % were seen in 10,000 requests, and about 4 % where 1.3 kB of each were kept.
"""

SAMPLE_S = 0.2
LEAVERS = 16
"""Clients that leave at a time."""

MAX_DELAY_S = 0.06
IDLE_WITHIN_S = 120.0
"""How long rows are waited for that should be gone: far longer than a busy machine needs."""

WORDS = ("what", "is", "the", "name", "of", "a", "river", "in", "summer", "?")
CHOICES = {"guided_choice": ["yes", "no"]}


def requests(model: str, count: int, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield short requests of every kind, half of them streams."""
    rng = random.Random(seed)
    for index in range(count):
        text = " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": rng.randint(1, 8),
            "temperature": rng.choice([0, 0.8]),
            "seed": index,
            "stream": rng.random() < 0.5,
        }
        body |= rng.choice([{}, {}, {}, {"n": 2}, {"stop": ["e"]}, CHOICES])
        if rng.random() < 0.5:
            yield CHAT, {**body, "messages": [{"role": "user", "content": text}]}
        else:
            yield COMPLETIONS, {**body, "prompt": text}


@dataclass(slots=True)
class _Memory:
    """Readings of a server's resident memory, taken as events come."""

    server: Served
    readings: list[int] = field(default_factory=list)
    _next_s: float = 0.0

    def __call__(self, _tokens: int) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self.readings.append(self.server.resident_bytes)
            self._next_s = now_s + SAMPLE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSeen:
    """What was seen of many requests.

    Args:
        seconds: of each request.
        lag_counts: moments by how late the server's loop was, as engine.server.lag has them.
        readings: of its resident memory, in bytes, one at least.
    """

    seconds: Sequence[float]
    wall_s: float
    lag_counts: Sequence[int]
    readings: Sequence[int]


def load(server: Served, count: int, seed: int) -> Finding:
    """Send many short requests, so many at a time; time, memory and the loop's lag are watched."""
    problems, memory = Finding("load"), _Memory(server)
    with server.client(CONCURRENCY) as client:
        warm = list(requests(server.name, 4 * CONCURRENCY, seed + 1))
        _check(problems, warm, client.closed_loop(_asks(warm), CONCURRENCY))
        before, measured = _lags(server), list(requests(server.name, count, seed))
        sent = client.closed_loop(_asks(measured), CONCURRENCY, memory)
        _check(problems, measured, sent)
        counts = [after - then for after, then in zip(_lags(server), before, strict=True)]
        _check_idle(client, problems)
    seen = LoadSeen(
        seconds=[item.seconds for item in sent.exchanges],
        wall_s=sent.wall_s,
        lag_counts=counts,
        readings=memory.readings,
    )
    found = judged(seen)
    found.failures += problems.failures
    return found


def judged(seen: LoadSeen) -> Finding:
    """Judge the times and the memory of a load."""
    found, times = Finding("load"), sorted(seen.seconds)
    quarter = max(1, len(seen.readings) // 4)
    second = median(seen.readings[quarter : 2 * quarter] or seen.readings)
    last = median(seen.readings[-quarter:])
    lag_s = quantile(seen.lag_counts, 0.99) or 0.0
    found.figures = {
        "requests": len(times),
        "concurrency": CONCURRENCY,
        "requests_per_s": len(times) / seen.wall_s,
        "latency_p50_ms": 1000 * median(times),
        "latency_p99_ms": 1000 * times[int(0.99 * (len(times) - 1))],
        "lag_p50_ms": 1000 * (quantile(seen.lag_counts, 0.5) or 0.0),
        "lag_p99_ms": 1000 * lag_s,
        "resident_second_quarter_mb": second / 1e6,
        "resident_last_quarter_mb": last / 1e6,
        "growth": last / second - 1,
    }
    if lag_s >= MAX_LAG_S:
        found.slow.append(f"the 99th percentile of the event loop's lag is {lag_s:.3f} s")
    if last > second * (1 + FLAT):
        found.slow.append(f"resident memory grows by {last / second - 1:.1%}")
    return found


def _asks(sent: Sequence[tuple[str, dict[str, Any]]]) -> list[Ask]:
    return [Ask.of(path, body) for path, body in sent]


def _check(found: Finding, sent: Sequence[tuple[str, dict[str, Any]]], heard: Load[Heard]) -> None:
    """Note every request that failed, or of which not every choice ended."""
    for (path, body), item in zip(sent, heard.exchanges, strict=True):
        if item.error is not None:
            found.failures.append(f"{path}: {item.error}")
        elif len(item.reply.finish_reasons) != body.get("n", 1):
            found.failures.append(f"{path}: {len(item.reply.finish_reasons)} choices ended")


def _lags(server: Served) -> list[int]:
    """Return the counts of the loop's lag so far, as engine.server.lag has them."""
    text = httpx2.get(f"{server.url}/metrics", timeout=60, trust_env=False).text
    sums = [
        int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "fm_event_loop_lag_seconds_bucket"
    ]
    return [after - before for before, after in zip([0, *sums], sums, strict=False)]


def disconnects(server: Served, count: int, seed: int) -> Finding:
    """Leave many requests before, during and after their first event."""
    found, rng = Finding("disconnects"), random.Random(seed)
    body = _long(server.name)
    again = Ask.of(CHAT, {**body, "max_tokens": 12})
    # A cache up to twice as large as the next row needs is kept for it. Behind four rows it is
    # larger, so one row leaves exactly its own, whatever came before.
    crowd = Ask.of(CHAT, {**body, "max_tokens": 12, "n": CROWD})
    plans = [(rng.choice(PHASES), rng.random() < 0.5, rng.random()) for _ in range(count)]
    with server.client(1) as client:
        _, expected = client.closed_loop([crowd, again], 1).exchanges
        _check_idle(client, found)
        before = _stats(client)
        left = client.run(_leave_all(server, body, plans))
        idle_s = _check_idle(client, found)
        _, heard = client.closed_loop([crowd, again], 1).exchanges
        _check_idle(client, found)
        after = _stats(client)
    cancelled = _cancelled(after) - _cancelled(before)
    kept = after["kv"]["bytes"] - before["kv"]["bytes"]
    found.figures = {
        "disconnects": count,
        **left,
        "rows_cancelled": cancelled,
        "kv_bytes_kept": kept,
        "idle_s": idle_s,
    }
    if kept > 0:
        found.failures.append(f"{kept} bytes of keys and values are kept")
    said = expected.reply.texts
    if not said or heard.reply.texts != said or heard.error is not None:
        found.failures.append("the next request is not answered as before")
    if cancelled == 0 and count:
        found.failures.append("no row was live when its client left")
    return found


async def _leave_all(
    server: Served, body: Mapping[str, Any], plans: Sequence[tuple[str, bool, float]]
) -> Counter[str]:
    """Leave as planned: when, of a stream or not, and how late; returns how often when."""
    waiting, left = iter(plans), Counter[str]()

    async def go_on() -> None:
        for phase, is_stream, delay in waiting:
            await _leave(server, {**body, "stream": is_stream}, phase, delay * MAX_DELAY_S)
            left[phase] += 1

    await asyncio.gather(*(go_on() for _ in range(LEAVERS)))
    return left


def _stats(client: AuditClient) -> dict[str, Any]:
    found: dict[str, Any] = client.fetch("GET", "/stats")
    return found


def _cancelled(stats: Mapping[str, Any]) -> int:
    return int(stats["rows"]["ended"].get("cancelled", 0))


PHASES = ("before", "during", "after")
"""When a client leaves: with its request sent, a moment later, behind the first event."""


def _long(model: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Tell me of the river."}]
    return {
        "model": model,
        "messages": messages,
        "temperature": 0,
        "max_tokens": 1500,
        "ignore_eos": True,
    }


async def _leave(server: Served, body: Mapping[str, Any], phase: str, delay_s: float) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    raw = json.dumps(body).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(raw)}\r\n\r\n"
    )
    writer.write(head.encode() + raw)
    await writer.drain()
    if phase == "during":
        await asyncio.sleep(delay_s)
    elif phase == "after" and body["stream"]:
        await reader.readuntil(b"data: ")
    elif phase == "after":
        await asyncio.sleep(delay_s + MAX_DELAY_S)
    writer.transport.abort()


def _check_idle(client: AuditClient, found: Finding) -> float:
    """Wait until no row is left; returns how long that took, in seconds."""
    began_s = time.monotonic()
    while True:
        stats = _stats(client)
        rows = stats["rows"]
        held = {name: rows[name] for name in ("live", "active", "pending")}
        held["projected_bytes"] = stats["kv"]["projected_bytes"]
        if not any(held.values()):
            return time.monotonic() - began_s
        if time.monotonic() - began_s > IDLE_WITHIN_S:
            found.failures.append(f"still held: {held}")
            return time.monotonic() - began_s
        time.sleep(0.01)
