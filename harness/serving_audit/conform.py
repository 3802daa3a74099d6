"""Constrained replies over HTTP: each meets its schema, and is what the engine says in process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from engine.config import EngineConfig
from engine.document import DocumentError, read_document
from engine.loop import Engine
from engine.models.load import load_model
from engine.oracle import Oracle
from engine.request import Completion, FinishReason, Request
from harness.http.client import Ask
from harness.judging.validation import schema_check
from harness.lane_audit.audit import Check, compare
from harness.serving_audit.subject import Answer, Finding, Served
from harness.targets.http import CHAT
from harness.trials.prompting import UNREASONED
from harness.workloads.workload import Prompt, load_workload

WORKLOAD = "json-extract"
CONCURRENCIES = (1, 4, 16)
DRAFTS = (0, 3)
"""Tokens drafted a step, none first; the server must draft as many, and take overrides."""


@dataclass(slots=True)
class Reference:
    """What the engine says in this process, alone and undrafted.

    Args:
        count: prompts of the workload.
    """

    name: str
    count: int
    prompts: Sequence[Prompt] = field(init=False)
    requests: Sequence[Request] = field(init=False)
    completions: Sequence[Completion] = field(init=False)
    max_tokens: int = field(init=False)
    _oracle: Oracle = field(init=False)

    def __post_init__(self) -> None:
        workload, model = load_workload(WORKLOAD), load_model(self.name)
        self.prompts = workload.select(self.count, seed=0)
        self.max_tokens = workload.max_tokens
        options = UNREASONED
        self.requests = [
            Request(
                prompt_ids=tuple(
                    model.tokenizer.apply_chat_template(prompt.messages, options=options)
                ),
                max_tokens=self.max_tokens,
                constraint=prompt.constraint,
            )
            for prompt in self.prompts
        ]
        self.completions = Engine(model, EngineConfig()).generate(self.requests)
        self._oracle = Oracle(model)

    def compare(self, heard: Sequence[Answer]) -> Check:
        """Compare what was heard with the reference; near-ties are told apart by the oracle."""
        check = Check("replies", 0.0)
        for request, item, expected in zip(self.requests, heard, self.completions, strict=True):
            said = Completion(
                request_id="",
                prompt_tokens=len(request.prompt_ids),
                token_ids=tuple(item.reply.token_ids),
                text=item.reply.texts.get(0, ""),
                finish_reason=FinishReason(item.reply.finish_reasons.get(0, "error")),
                error=item.error,
            )
            compare(check, self._oracle, request, said, expected.token_ids)
            if said.token_ids == expected.token_ids and said.text != expected.text:
                check.failures.append("the same ids are another text")
        return check


def conformance(server: Served, count: int) -> Finding:
    """Ask for documents at every concurrency, streamed and not, with and without drafts."""
    reference = Reference(server.model, count)
    found = Finding("conformance")
    replies = conforming = equal = near_ties = 0
    for drafts, concurrency, is_stream in product(DRAFTS, CONCURRENCIES, (False, True)):
        heard = _ask_all(server, reference, concurrency, drafts, is_stream)
        kind = "streamed" if is_stream else "whole"
        place = f"{drafts} drafted, {concurrency} at a time, {kind}"
        problems = [_problem(p, h) for p, h in zip(reference.prompts, heard, strict=True)]
        check = reference.compare(heard)
        found.failures += [f"{place}: {problem}" for problem in problems if problem]
        found.failures += [f"{place}: {problem}" for problem in check.failures]
        if not check.passed and not check.failures:
            found.failures.append(f"{place}: {len(check.near_ties)} near-ties")
        if drafts == 0 and any(_drafted(item) for item in heard):
            found.failures.append(f"{place}: something was drafted")
        replies += len(heard)
        conforming += problems.count(None)
        equal += check.equal
        near_ties += len(check.near_ties)
    found.figures = {
        "model": server.model,
        "replies": replies,
        "conforming": conforming / replies,
        "equal_to_in_process": equal / replies,
        "near_ties": near_ties,
    }
    return found


def _ask_all(
    server: Served, reference: Reference, concurrency: int, drafts: int, is_stream: bool
) -> tuple[Answer, ...]:
    asks = [
        Ask.of(CHAT, {**_body(server, reference, prompt, is_stream), "fm": {"draft": drafts}})
        for prompt in reference.prompts
    ]
    with server.client(concurrency) as client:
        return client.closed_loop(asks, concurrency).exchanges


def _drafted(heard: Answer) -> int:
    return int(heard.reply.usage.get("speculation", {}).get("drafted", 0))


def _body(server: Served, reference: Reference, prompt: Prompt, is_stream: bool) -> dict[str, Any]:
    schema = {"name": prompt.schema_name, "schema": prompt.schema}
    return {
        "model": server.name,
        "messages": list(prompt.messages),
        "max_tokens": reference.max_tokens,
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": schema},
        "chat_template_kwargs": UNREASONED,
        "return_token_ids": True,
        "stream": is_stream,
        **({"stream_options": {"include_usage": True}} if is_stream else {}),
    }


def _problem(prompt: Prompt, heard: Answer) -> str | None:
    """Return why a reply does not conform, None when it does."""
    if heard.error is not None:
        return heard.error
    said, told = heard.reply, heard.reply.usage.get("conformance")
    if said.finish_reasons != {0: "stop"} or told != "enforced":
        return f"{prompt.id}: {said.finish_reasons}, {told}"
    assert prompt.schema is not None
    try:
        return schema_check(prompt.schema).first_error(read_document(said.texts[0]))
    except DocumentError as error:
        return f"{prompt.id}: {error} in {json.dumps(said.texts[0])[:80]}"
