"""What HTTP costs: the same serial decoding in process and through a server, in turns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from engine.config import EngineConfig
from engine.loop import Engine
from engine.models.load import load_model
from engine.request import Request, SamplingParams
from harness.http.client import Ask
from harness.http.process import ServerError
from harness.serving_audit.subject import COMPLETIONS, AuditClient, Finding, Served

LEAST_RATIO = 0.97
MOST_TTFT_S = 0.01
PROMPT = "The river rises in the hills and runs down to the sea. " * 4
TINY = "tiny"
"""A model of random weights decodes faster than a client reads: its ratio is told, not judged."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One reply.

    Args:
        rate: tokens a second between the first and the last one.
    """

    ttft_s: float
    rate: float
    token_ids: tuple[int, ...]


def overhead(server: Served, rounds: int, tokens: int) -> Finding:
    """Time replies in process and over HTTP in turns, the order changing each time.

    Args:
        server: one that takes overrides.
    """
    engine = Engine(load_model(server.model), EngineConfig())
    prompt_ids = tuple(engine.model.tokenizer.encode(PROMPT, add_special_tokens=True))
    here, there = _in_turns(engine, server, prompt_ids, rounds, tokens)
    return judged(server.model, here, there)


def _in_turns(
    engine: Engine, server: Served, prompt_ids: tuple[int, ...], rounds: int, tokens: int
) -> tuple[list[Timed], list[Timed]]:
    """Return what was timed in process and over HTTP; a first round warms both up."""
    here: list[Timed] = []
    there: list[Timed] = []
    with server.client(1) as client:
        for index in range(rounds + 1):
            turns = [(0, here), (1, there)] if index % 2 else [(1, there), (0, here)]
            for is_http, kept in turns:
                if is_http:
                    kept.append(_over_http(client, server.name, prompt_ids, tokens))
                else:
                    kept.append(_in_process(engine, prompt_ids, tokens))
    return here[1:], there[1:]


def judged(model: str, here: Sequence[Timed], there: Sequence[Timed]) -> Finding:
    """Judge the replies timed in process and over HTTP, as many of each."""
    found = Finding("overhead")
    ratios = [b.rate / a.rate for a, b in zip(here, there, strict=True)]
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
    later_s = median(b.ttft_s - a.ttft_s for a, b in zip(here, there, strict=True))
    found.figures = {
        "model": model,
        "rounds": len(here),
        "in_process_tokens_per_s": median(item.rate for item in here),
        "http_tokens_per_s": median(item.rate for item in there),
        "ratio": middle,
        "ratio_p25": low,
        "ratio_p75": high,
        "ttft_in_process_ms": 1000 * median(item.ttft_s for item in here),
        "ttft_http_ms": 1000 * median(item.ttft_s for item in there),
        "ttft_later_ms": 1000 * later_s,
    }
    if len({item.token_ids for item in (*here, *there)}) != 1:
        found.failures.append("not every reply is the same")
    if middle < LEAST_RATIO and not model.startswith(TINY):
        found.slow.append(f"HTTP decodes at {middle:.3f} of the rate in process")
    if later_s > MOST_TTFT_S:
        found.slow.append(f"the first text comes {1000 * later_s:.1f} ms later over HTTP")
    return found


def _in_process(engine: Engine, prompt_ids: tuple[int, ...], tokens: int) -> Timed:
    request = Request(
        prompt_ids=prompt_ids,
        max_tokens=tokens,
        ignore_eos=True,
        sampling=SamplingParams(temperature=0),
    )
    began_s = time.monotonic()
    request_id = engine.submit(request)
    first_s, ended_s = None, began_s
    while engine.has_work:
        for event in engine.step():
            ended_s = time.monotonic()
            first_s = ended_s if first_s is None else first_s
            assert event.request_id == request_id
    ids = engine.completion(request_id).token_ids
    assert first_s is not None
    return Timed(first_s - began_s, (len(ids) - 1) / (ended_s - first_s), ids)


def _over_http(client: AuditClient, model: str, prompt_ids: tuple[int, ...], tokens: int) -> Timed:
    body = {
        "model": model,
        "prompt": list(prompt_ids),
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "return_token_ids": True,
        "fm": {"lane": "serial", "draft": 0},
    }
    (heard,) = client.closed_loop([Ask.of(COMPLETIONS, body)], 1).exchanges
    ids, events_s = tuple(heard.reply.token_ids), heard.reply.events_s
    if heard.error is not None or len(ids) != tokens:
        raise ServerError(f"a reply of {len(ids)} tokens: {heard.error}")
    rate = (len(ids) - 1) / (events_s[-1] - events_s[0])
    return Timed(events_s[0] - heard.due_s, rate, ids)
