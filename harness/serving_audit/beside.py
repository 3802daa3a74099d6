"""What one request costs the others: a long prompt, a large schema, a schema over the limits."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from harness.http.client import Ask
from harness.serving_audit.subject import COMPLETIONS, Answer, AuditClient, Finding, Served
from harness.targets.http import CHAT

STREAMS = 3
USUAL_S = 1.5
"""How long gaps are watched before the long prompt comes, and how long replies before a compile."""

MOST_TOKENS = 3000
"""Of one stream; another follows it, for as long as one is watched."""

LONGEST_GAP_S = 1.0
REFUSED_WITHIN_S = 0.1
START_WITHIN_S = 300.0

TRIES = 3
"""How often it is looked whether others go on. Once is proof, and a client that the machine does
not let run sees nothing."""

PATTERNS, GROUP = (1500, 700, 300), 500
"""Patterns of the schema that takes long, in each try, and of one object in it. The limit of a
compile is 5 s: what is too much for a busy machine is halved."""

LEAST_BESIDE = 4
"""Replies that must come while a schema compiles. Where one waits for the other there are two at
most: one before the compile begins, and one that races with its end."""

REFUSALS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSeen:
    """What was seen of live streams while a long prompt was read; instants in seconds.

    Args:
        start_s: where the usual gaps begin to count.
        sent_s, ended_s: of the long prompt.
        live: when the events of each stream were read.
        errors: of any request.
    """

    prompt_tokens: int
    start_s: float
    sent_s: float
    ended_s: float
    live: Sequence[Sequence[float]]
    errors: Sequence[str] = ()

    @property
    def num_beside(self) -> int:
        """Events that were read while the prompt was."""
        return sum(self.sent_s < at < self.ended_s for events_s in self.live for at in events_s)


def long_prompt(server: Served, prompt_tokens: int) -> Finding:
    """Watch the gaps between events of live streams while a long prompt is read."""
    with server.client(STREAMS + 1) as client:
        for seed in range(TRIES):
            seen = client.run(_long_prompt(client, server.name, prompt_tokens, seed))
            if seen.num_beside or seen.errors:
                break
    return judged_prompt(seen)


async def _long_prompt(
    client: AuditClient, model: str, prompt_tokens: int, seed: int
) -> PromptSeen:
    live = [list[float]() for _ in range(STREAMS)]
    streams = [
        asyncio.create_task(_stream(client, model, index, events_s))
        for index, events_s in enumerate(live)
    ]
    async with asyncio.timeout(START_WITHIN_S):
        while not all(len(events_s) > 3 for events_s in live):
            await asyncio.sleep(0.01)
    start_s = time.monotonic()
    await asyncio.sleep(USUAL_S)
    prompt = random.Random(seed).choices(range(32, 120), k=prompt_tokens)
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    answer = await client.exchange(Ask.of(COMPLETIONS, body), time.monotonic())
    await asyncio.sleep(0.1)
    for task in streams:
        task.cancel()
    ended = await asyncio.gather(*streams, return_exceptions=True)
    heard = [answer, *(item for item in ended if not isinstance(item, BaseException))]
    return PromptSeen(
        prompt_tokens=prompt_tokens,
        start_s=start_s,
        sent_s=answer.due_s,
        ended_s=answer.ended_s,
        live=live,
        errors=[item.error for item in heard if item.error is not None],
    )


def judged_prompt(seen: PromptSeen) -> Finding:
    """Judge whether streams went on, and how long they stood still."""
    usual = _gaps(seen.live, seen.start_s, seen.sent_s)
    beside = _gaps(seen.live, seen.sent_s, seen.ended_s)
    found = Finding("streams beside a long prompt", failures=list(seen.errors))
    found.figures = {
        "streams": len(seen.live),
        "prompt_tokens": seen.prompt_tokens,
        "prompt_s": seen.ended_s - seen.sent_s,
        "usual_gap_p50_ms": 1000 * median(usual or [0.0]),
        "usual_gap_max_ms": 1000 * max(usual, default=0.0),
        "events_beside": seen.num_beside,
        "gap_beside_max_ms": 1000 * max(beside, default=0.0),
    }
    if not seen.num_beside:
        found.failures.append("no stream goes on while the prompt is read")
    elif max(beside) > LONGEST_GAP_S:
        found.slow.append(f"streams stood still for {max(beside):.2f} s")
    return found


async def _stream(client: AuditClient, model: str, index: int, events_s: list[float]) -> Answer:
    """Ask for one long stream behind the other, and note when events are read; returns a failure.

    How long a stream lasts depends on the machine, and it must not end before it is watched.
    """
    body = {
        "model": model,
        "prompt": f"Once upon a time {index}",
        "max_tokens": MOST_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "seed": index,
        "return_token_ids": True,
    }
    ask = Ask.of(COMPLETIONS, body)
    while True:
        answer = await client.exchange(
            ask, time.monotonic(), lambda _late_s, _tokens: events_s.append(time.monotonic())
        )
        if answer.error is not None:
            return answer


def _gaps(live: Sequence[Sequence[float]], start_s: float, end_s: float) -> list[float]:
    """Return the gaps that overlap a time, cut to no part of them."""
    return [
        after - before
        for events_s in live
        for before, after in pairwise(events_s)
        if after > start_s and before < end_s
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileSeen:
    """What was seen of other requests while a schema compiled.

    Args:
        compile_s: from the request with the schema to its reply.
        usual: seconds of replies before it.
        beside: seconds of the replies that had ended when its reply came.
        errors: of any request.
    """

    compile_s: float
    usual: Sequence[float]
    beside: Sequence[float]
    errors: Sequence[str] = ()


def large_schema(server: Served) -> Finding:
    """Watch other requests while a schema compiles that takes long."""
    with server.client(2) as client:
        for patterns in PATTERNS:
            seen = client.run(_large_schema(client, server.name, patterns))
            if len(seen.beside) >= LEAST_BESIDE and not seen.errors:
                break
    return judged_compile(seen)


async def _large_schema(client: AuditClient, model: str, patterns: int) -> CompileSeen:
    ask = Ask.of(CHAT, _constrained(model, large(patterns)))
    before = await _for_a_while(client, model, asyncio.create_task(asyncio.sleep(USUAL_S)))
    compiling = asyncio.create_task(client.exchange(ask, time.monotonic()))
    during = await _for_a_while(client, model, compiling)
    compiled = await compiling
    beside = [item for item in during if item.ended_s < compiled.ended_s]
    heard = (compiled, *before, *during)
    return CompileSeen(
        compile_s=compiled.seconds,
        usual=[item.seconds for item in before],
        beside=[item.seconds for item in beside],
        errors=[item.error for item in heard if item.error is not None],
    )


def judged_compile(seen: CompileSeen) -> Finding:
    """Judge whether other requests were answered while a schema compiled."""
    found = Finding("requests beside a compile", failures=list(seen.errors))
    found.figures = {
        "compile_s": seen.compile_s,
        "replies_beside": len(seen.beside),
        "usual_p50_ms": 1000 * median(seen.usual or [0.0]),
        "usual_max_ms": 1000 * max(seen.usual, default=0.0),
        "beside_p50_ms": 1000 * median(seen.beside or [0.0]),
        "beside_max_ms": 1000 * max(seen.beside, default=0.0),
    }
    if len(seen.beside) < LEAST_BESIDE:
        found.failures.append(
            f"{len(seen.beside)} replies came while the schema compiled, not {LEAST_BESIDE}"
        )
    return found


async def _for_a_while(client: AuditClient, model: str, until: asyncio.Task[Any]) -> list[Answer]:
    """Ask for short replies, one after the other, until something is done."""
    heard = []
    messages = [{"role": "user", "content": "hi"}]
    ask = Ask.of(CHAT, {"model": model, "messages": messages, "max_tokens": 1, "temperature": 0})
    while not until.done():
        heard.append(await client.exchange(ask, time.monotonic()))
    return heard


def large(patterns: int) -> dict[str, Any]:
    """Return a schema that takes long to compile, a second where it has 1500 patterns.

    It holds many patterns with counted repetitions. All are required: of optional ones any may come
    next, and the compiler refuses more than some hundreds of alternatives at one place.
    """
    places = [range(at, min(at + GROUP, patterns)) for at in range(0, patterns, GROUP)]
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


@dataclass(frozen=True, slots=True)
class Refused:
    """What one schema over the limits was answered with, and within how many seconds."""

    statuses: frozenset[int | None]
    seconds: float


def refusals(server: Served) -> Finding:
    """Time the refusal of schemas that are over the limits; none may take long."""
    seen = {}
    with server.client(1) as client:
        for name, schema in over_limits().items():
            asks = [Ask.of(CHAT, _constrained(server.name, schema))] * REFUSALS
            heard = client.closed_loop(asks, 1).exchanges
            statuses = frozenset(item.status for item in heard)
            seen[name] = Refused(statuses, median(item.seconds for item in heard))
    return judged_refusals(seen)


def judged_refusals(seen: Mapping[str, Refused]) -> Finding:
    """Judge the answers to schemas over the limits, by what is too much."""
    found = Finding("schemas over the limits")
    for name, refused in seen.items():
        found.figures[f"{name}_ms"] = 1000 * refused.seconds
        if refused.statuses != {400}:
            found.failures.append(f"{name}: statuses {sorted(map(str, refused.statuses))}, not 400")
        elif refused.seconds > REFUSED_WITHIN_S:
            found.slow.append(f"{name}: refused after {refused.seconds:.3f} s")
    return found


def _constrained(model: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 1,
        "temperature": 0,
        "guided_json": schema,
    }
