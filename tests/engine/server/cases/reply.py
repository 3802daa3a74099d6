"""A reply as a client sees it, whole or streamed, in any lane."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.engine.server.live import CHAT, COMPLETIONS, Live, chat_body, events_of

LANES: dict[str, dict[str, Any]] = {
    "serial": {"lane": "serial", "draft": 0},
    "batch": {"lane": "batch", "draft": 0},
    "serial+spec": {"lane": "serial"},
    "batch+spec": {"lane": "batch"},
}
"""Lane -> the body field `fm` that asks for it."""

MODES = {"whole": False, "stream": True}


@dataclass
class Said:
    """One choice.

    Attributes:
        deltas: the parts its text came in; one of a whole reply.
        reasons: every finish reason it was sent, in order.
    """

    deltas: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    @property
    def outcome(self) -> tuple[str, list[str], list[int]]:
        """What must not depend on how a reply is sent."""
        return self.text, self.reasons, self.ids


@dataclass
class Reply:
    """All choices of a request, and what they took."""

    choices: list[Said]
    usage: dict[str, Any]
    document: Any

    @property
    def said(self) -> Said:
        (choice,) = self.choices
        return choice


def ask_chat(live: Live, content: str, *, stream: bool, **fields: Any) -> Reply:
    return ask(live, CHAT, chat_body(content, **fields), stream=stream)


def ask_ids(live: Live, prompts: list[list[int]], *, stream: bool, **fields: Any) -> Reply:
    body = {"model": "tiny", "prompt": prompts, "temperature": 0, "max_tokens": 64, **fields}
    return ask(live, COMPLETIONS, body, stream=stream)


def ask(live: Live, path: str, body: dict[str, Any], *, stream: bool) -> Reply:
    body = {**body, "return_token_ids": True, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    answer = live.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return streamed(answer) if stream else whole(answer)


def whole(answer: httpx2.Response) -> Reply:
    document = answer.json()
    choices = [
        Said([_text(choice.get("message", choice))], choice["token_ids"], [choice["finish_reason"]])
        for choice in document["choices"]
    ]
    return Reply(choices, document["usage"], document)


def streamed(answer: httpx2.Response) -> Reply:
    *items, last = events_of(answer.content.decode("utf-8"))
    assert last == "[DONE]", last
    *chunks, summary = [json.loads(item) for item in items]
    assert summary["choices"] == []
    assert all("usage" not in chunk for chunk in chunks)
    found: dict[int, Said] = {}
    for chunk in chunks:
        assert chunk["choices"]
        for part in chunk["choices"]:
            said = found.setdefault(part["index"], Said())
            assert not said.reasons, "a choice goes on behind its end"
            said.deltas.append(_text(part.get("delta", part)))
            said.ids += part.get("token_ids", [])
            said.reasons += [part["finish_reason"]] if part["finish_reason"] else []
    return Reply([found[index] for index in sorted(found)], summary["usage"], chunks)


def _text(said: dict[str, Any]) -> str:
    return str(said.get("content", said.get("text")) or "")


def schema_format(schema: Any) -> dict[str, Any]:
    named = {"name": "out", "strict": True, "schema": schema}
    return {"type": "json_schema", "json_schema": named}
