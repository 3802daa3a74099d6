"""A reply as a client sees it, whole or as its stream adds up to it, in any lane."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
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
        reasoning: None where nothing is told of any.
        calls: name and arguments of each.
        ids: token ids, none unless they were asked for.
        entries: of logprobs.
        reasons: every finish reason it was sent, in order.
    """

    deltas: list[str] = field(default_factory=list)
    reasoning: str | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    entries: list[Any] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    @property
    def outcome(self) -> Said:
        """What must not depend on how a reply is sent."""
        return replace(self, deltas=[self.text])

    def add(self, part: dict[str, Any]) -> None:
        """Take a chunk's part of this choice in."""
        assert not self.reasons, "a choice goes on behind its end"
        delta = part.get("delta", part)
        text, thought = _text(delta), delta.get("reasoning_content")
        assert not (text and thought), "both in one delta"
        assert not (thought and self.text), "reasoning behind content"
        self.deltas.append(text)
        if thought is not None:
            self.reasoning = (self.reasoning or "") + thought
        for call in delta.get("tool_calls", []):
            self._add_call(call)
        self.ids += part.get("token_ids", [])
        self.entries += _entries(part)
        self.reasons += [part["finish_reason"]] if part["finish_reason"] else []

    def _add_call(self, call: dict[str, Any]) -> None:
        if "id" in call:
            assert call["id"].startswith("call_")
            assert (call["index"], call["type"]) == (len(self.calls), "function")
            assert call["function"]["arguments"] == ""
            self.calls.append((call["function"]["name"], ""))
        else:
            assert call["index"] == len(self.calls) - 1
            assert set(call["function"]) == {"arguments"}
            name, arguments = self.calls[-1]
            self.calls[-1] = (name, arguments + call["function"]["arguments"])


@dataclass
class Reply:
    """All choices of a request, and what they took.

    Attributes:
        usage: empty for a stream that was not asked for it.
        document: the whole reply, or the chunks of a stream that have choices.
    """

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
    return streamed(answer) if stream else whole(answer)


def whole(answer: httpx2.Response) -> Reply:
    assert answer.status_code == 200, answer.text
    document = answer.json()
    return Reply([choice_of(item) for item in document["choices"]], document["usage"], document)


def choice_of(item: dict[str, Any]) -> Said:
    """A choice of a whole reply."""
    message = item.get("message", item)
    calls = message.get("tool_calls") or []
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(call["id"].startswith("call_") for call in calls)
    assert all(call["type"] == "function" for call in calls)
    return Said(
        [_text(message)],
        message.get("reasoning_content"),
        [(call["function"]["name"], call["function"]["arguments"]) for call in calls],
        item.get("token_ids", []),
        _entries(item),
        [item["finish_reason"]],
    )


def streamed(answer: httpx2.Response) -> Reply:
    assert answer.status_code == 200, answer.text
    *items, last = events_of(answer.content.decode("utf-8"))
    assert last == "[DONE]", last
    chunks = [json.loads(item) for item in items]
    summary = {} if chunks[-1]["choices"] else chunks.pop()
    assert all("usage" not in chunk for chunk in chunks)
    found: dict[int, Said] = {}
    for chunk in chunks:
        assert chunk["choices"]
        for part in chunk["choices"]:
            found.setdefault(part["index"], Said()).add(part)
    return Reply([found[index] for index in sorted(found)], summary.get("usage", {}), chunks)


def _entries(part: dict[str, Any]) -> list[Any]:
    return list((part.get("logprobs") or {}).get("content", []))


def _text(said: dict[str, Any]) -> str:
    return str(said.get("content", said.get("text")) or "")


def schema_format(schema: Any) -> dict[str, Any]:
    named = {"name": "out", "strict": True, "schema": schema}
    return {"type": "json_schema", "json_schema": named}
