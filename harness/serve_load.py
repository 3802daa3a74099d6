"""A server under many short requests, and under clients that leave: nothing may be left behind."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from engine.server.lag import quantile
from harness.serve_client import CHAT, COMPLETIONS, Client, Finding, Heard, Served, client_of

CONCURRENCY = 32
MAX_LAG_S = 0.05
"""Bound on the 99th percentile of the event loop's lag."""

FLAT = 0.05
"""Largest share by which resident memory may grow from the first quarter to the last."""

SAMPLE_S = 0.2
LEAVERS = 16
"""Clients that leave at a time."""

MAX_DELAY_S = 0.06
IDLE_WITHIN_S = 10.0

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


def load(server: Served, count: int, seed: int, patience: float) -> Finding:
    """Send many short requests, so many at a time; time, memory and the loop's lag are watched."""
    return asyncio.run(_load(server, count, seed, patience))


async def _load(server: Served, count: int, seed: int, patience: float) -> Finding:
    found = Finding("load")
    async with client_of(server, CONCURRENCY) as client:
        await _send(client, list(requests(server.model, 4 * CONCURRENCY, seed + 1)), found)
        memory: list[int] = []
        before, began_s = _lags(server), time.monotonic()
        watching = asyncio.create_task(_watch(server, memory))
        heard = await _send(client, list(requests(server.model, count, seed)), found)
        seconds = time.monotonic() - began_s
        watching.cancel()
    counts = [after - then for after, then in zip(_lags(server), before, strict=True)]
    quarter = max(1, len(memory) // 4)
    first, last = median(memory[:quarter]), median(memory[-quarter:])
    lag_s = quantile(counts, 0.99) or 0.0
    times = sorted(item.seconds for item in heard)
    found.figures = {
        "requests": count,
        "concurrency": CONCURRENCY,
        "requests_per_s": count / seconds,
        "latency_p50_ms": 1000 * median(times),
        "latency_p99_ms": 1000 * times[int(0.99 * (len(times) - 1))],
        "lag_p50_ms": 1000 * (quantile(counts, 0.5) or 0.0),
        "lag_p99_ms": 1000 * lag_s,
        "resident_first_quarter_mb": first / 1e6,
        "resident_last_quarter_mb": last / 1e6,
        "growth": last / first - 1,
    }
    if lag_s >= MAX_LAG_S * patience:
        found.failures.append(f"the 99th percentile of the event loop's lag is {lag_s:.3f} s")
    if last > first * (1 + FLAT * patience):
        found.failures.append(f"resident memory grows by {last / first - 1:.1%}")
    _check_idle(server, found)
    return found


async def _send(
    client: Client, asks: list[tuple[str, dict[str, Any]]], found: Finding
) -> list[Heard]:
    waiting = iter(asks)
    heard: list[Heard] = []

    async def go_on() -> None:
        for path, body in waiting:
            item = await client.ask(path, body)
            heard.append(item)
            if item.problem is not None:
                found.failures.append(f"{path}: {item.problem}")
            elif len(item.finish_reasons) != body.get("n", 1):
                found.failures.append(f"{path}: {len(item.finish_reasons)} choices ended")

    await asyncio.gather(*(go_on() for _ in range(CONCURRENCY)))
    return heard


async def _watch(server: Served, memory: list[int]) -> None:
    while True:
        memory.append(server.resident_bytes)
        await asyncio.sleep(SAMPLE_S)


def _lags(server: Served) -> list[int]:
    """Return the counts of the loop's lag so far, as engine.server.lag has them."""
    text = httpx2.get(f"{server.url}/metrics", timeout=60).text
    sums = [
        int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "fm_event_loop_lag_seconds_bucket"
    ]
    return [after - before for before, after in zip([0, *sums], sums, strict=False)]


def disconnects(server: Served, count: int, seed: int) -> Finding:
    """Leave many requests before, during and after their first event."""
    return asyncio.run(_disconnects(server, count, seed))


async def _disconnects(server: Served, count: int, seed: int) -> Finding:
    found, rng = Finding("disconnects"), random.Random(seed)
    body = _long(server.model)
    short = {**body, "max_tokens": 12}
    async with client_of(server, 1) as client:
        expected = await client.ask(CHAT, short)
        _check_idle(server, found)
        before = server.stats()
        plans = [(rng.choice(PHASES), rng.random() < 0.5, rng.random()) for _ in range(count)]
        waiting, left = iter(plans), Counter[str]()

        async def go_on() -> None:
            for phase, is_stream, delay in waiting:
                await _leave(server, {**body, "stream": is_stream}, phase, delay * MAX_DELAY_S)
                left[phase] += 1

        await asyncio.gather(*(go_on() for _ in range(LEAVERS)))
        idle_s = _check_idle(server, found)
        again = await client.ask(CHAT, short)
        _check_idle(server, found)
        after = server.stats()
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
    if not expected.texts or again.texts != expected.texts or again.problem is not None:
        found.failures.append("the next request is not answered as before")
    if cancelled == 0 and count:
        found.failures.append("no row was live when its client left")
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


def _check_idle(server: Served, found: Finding) -> float:
    """Wait until no row is left; returns how long that took, in seconds."""
    began_s = time.monotonic()
    while True:
        stats = server.stats()
        rows = stats["rows"]
        held = {name: rows[name] for name in ("live", "active", "pending")}
        held["projected_bytes"] = stats["kv"]["projected_bytes"]
        if not any(held.values()):
            return time.monotonic() - began_s
        if time.monotonic() - began_s > IDLE_WITHIN_S:
            found.failures.append(f"still held: {held}")
            return time.monotonic() - began_s
        time.sleep(0.01)
