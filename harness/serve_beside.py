"""What one request costs the others: a long prompt, a large schema, a schema over the limits."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import Any

from harness.http_target import CHAT
from harness.load_client import Ask
from harness.serve_subject import COMPLETIONS, Answer, AuditClient, Finding, Served

STREAMS = 3
USUAL_S = 1.5
"""How long gaps are watched before the long prompt comes, and how long replies before a compile."""

MOST_TOKENS = 3000
LONGEST_GAP_S = 1.0
REFUSED_WITHIN_S = 0.1
PATTERNS, GROUP = 2500, 500
"""Patterns of the schema that takes long, and of one object in it. The limit of a compile is 5 s,
and a machine that does other things takes twice as long."""

TRIES = 5


def long_prompt(server: Served, prompt_tokens: int, patience: float) -> Finding:
    """Watch the gaps between events of live streams while a long prompt is read."""
    with server.client(STREAMS + 1) as client:
        return client.run(_long_prompt(client, server.name, prompt_tokens, patience))


async def _long_prompt(
    client: AuditClient, model: str, prompt_tokens: int, patience: float
) -> Finding:
    found, live = Finding("streams beside a long prompt"), [list[float]() for _ in range(STREAMS)]
    streams = [
        asyncio.create_task(_stream(client, model, index, events_s))
        for index, events_s in enumerate(live)
    ]
    async with asyncio.timeout(60):
        while not all(len(events_s) > 3 for events_s in live):
            await asyncio.sleep(0.01)
    start_s = time.monotonic()
    await asyncio.sleep(USUAL_S)
    sent_s = time.monotonic()
    prompt = random.Random(0).choices(range(32, 120), k=prompt_tokens)
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    answer = await client.exchange(Ask.of(COMPLETIONS, body), sent_s)
    ended_s = time.monotonic()
    await asyncio.sleep(0.1)
    for task in streams:
        task.cancel()
    ended = await asyncio.gather(*streams, return_exceptions=True)
    usual = _gaps(live, start_s, sent_s)
    beside = _gaps(live, sent_s, ended_s)
    found.figures = {
        "streams": STREAMS,
        "prompt_tokens": prompt_tokens,
        "prompt_s": ended_s - sent_s,
        "usual_gap_p50_ms": 1000 * median(usual or [0.0]),
        "usual_gap_max_ms": 1000 * max(usual, default=0.0),
        "events_beside": len(beside),
        "gap_beside_max_ms": 1000 * max(beside, default=0.0),
    }
    found.failures += [
        f"a stream ended: {item.error}" for item in ended if not isinstance(item, BaseException)
    ]
    if answer.error is not None:
        found.failures.append(answer.error)
    if not beside or max(beside) > LONGEST_GAP_S * patience:
        found.failures.append(f"streams stood still for {max(beside, default=0.0):.2f} s")
    return found


async def _stream(client: AuditClient, model: str, index: int, events_s: list[float]) -> Answer:
    """Ask for a long stream, and note when its events are read."""
    body = {
        "model": model,
        "prompt": f"Once upon a time {index}",
        "max_tokens": MOST_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "seed": index,
        "return_token_ids": True,
    }
    return await client.exchange(
        Ask.of(COMPLETIONS, body),
        time.monotonic(),
        lambda _late_s, _tokens: events_s.append(time.monotonic()),
    )


def _gaps(live: list[list[float]], start_s: float, end_s: float) -> list[float]:
    """Return the gaps that overlap a time, cut to no part of them."""
    return [
        after - before
        for events_s in live
        for before, after in pairwise(events_s)
        if after > start_s and before < end_s
    ]


def large_schema(server: Served) -> Finding:
    """Watch other requests while a schema compiles that takes long."""
    with server.client(2) as client:
        return client.run(_large_schema(client, server.name))


async def _large_schema(client: AuditClient, model: str) -> Finding:
    found = Finding("requests beside a compile")
    ask = Ask.of(CHAT, _constrained(model, large()))
    before = await _for_a_while(client, model, asyncio.create_task(asyncio.sleep(USUAL_S)))
    compiling = asyncio.create_task(client.exchange(ask, time.monotonic()))
    during = await _for_a_while(client, model, compiling)
    compiled = await compiling
    usual, beside = (
        [item.seconds for item in heard if item.error is None] for heard in (before, during)
    )
    found.figures = {
        "compile_s": compiled.seconds,
        "replies_beside": len(beside),
        "usual_p50_ms": 1000 * median(usual or [0.0]),
        "usual_max_ms": 1000 * max(usual, default=0.0),
        "beside_p50_ms": 1000 * median(beside or [0.0]),
        "beside_max_ms": 1000 * max(beside, default=0.0),
    }
    if compiled.error is not None:
        found.failures.append(f"the schema: {compiled.error}")
    if len(beside) < len(during) or len(beside) < 3 or median(beside) > compiled.seconds / 4:
        found.failures.append("other requests wait for the compile")
    return found


async def _for_a_while(client: AuditClient, model: str, until: asyncio.Task[Any]) -> list[Answer]:
    """Ask for short replies, one after the other, until something is done."""
    heard = []
    messages = [{"role": "user", "content": "hi"}]
    ask = Ask.of(CHAT, {"model": model, "messages": messages, "max_tokens": 1, "temperature": 0})
    while not until.done():
        heard.append(await client.exchange(ask, time.monotonic()))
    return heard


def large() -> dict[str, Any]:
    """Return a schema that takes seconds to compile, within the limits.

    It holds many patterns with counted repetitions. All are required: of optional ones any may come
    next, and the compiler refuses more than some hundreds of alternatives at one place.
    """
    places = [range(at, min(at + GROUP, PATTERNS)) for at in range(0, PATTERNS, GROUP)]
    return _of_required({f"g{group[0]}": _of_required(_patterns(group)) for group in places})


def _patterns(group: range) -> dict[str, Any]:
    return {
        f"p{index}": {
            "type": "string",
            "pattern": f"^[a-z]{{1,{90 + 2 * (index % 400)}}}(x|y{index})*$",
        }
        for index in group
    }


def _of_required(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def over_limits() -> dict[str, dict[str, Any]]:
    """Return schemas that are over the limits of what is compiled, by what is too much."""
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}}
    many = {f"p{index}": {"type": "string"} for index in range(2500)}
    nodes = {f"p{index}": {"anyOf": [{"const": n} for n in range(40)]} for index in range(600)}
    return {
        "depth": deep,
        "properties": {"type": "object", "properties": many},
        "subschemas": {"type": "object", "properties": nodes},
        "values": {"enum": [f"v{index}" for index in range(25_000)]},
        "pattern": {"type": "string", "pattern": "a" * 5000},
        "bytes": {"type": "string", "description": "x" * 600_000},
    }


def refusals(server: Served, patience: float) -> Finding:
    """Time the refusal of schemas that are over the limits; none may take long."""
    found = Finding("schemas over the limits")
    with server.client(1) as client:
        for name, schema in over_limits().items():
            asks = [Ask.of(CHAT, _constrained(server.name, schema))] * TRIES
            heard = client.closed_loop(asks, 1).exchanges
            seconds = median(item.seconds for item in heard)
            found.figures[f"{name}_ms"] = 1000 * seconds
            statuses = {item.status for item in heard}
            if statuses != {400}:
                found.failures.append(f"{name}: statuses {statuses}, not 400")
            elif seconds > REFUSED_WITHIN_S * patience:
                found.failures.append(f"{name}: refused after {seconds:.3f} s")
    return found


def _constrained(model: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 1,
        "temperature": 0,
        "guided_json": schema,
    }
