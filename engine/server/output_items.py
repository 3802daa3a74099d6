"""The output items of one response as they grow: each change is an event of /v1/responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from engine.request import TokenLogprobs
from engine.server.calls import CallDelta
from engine.server.forms import Piece
from engine.server.readers import Json
from engine.server.token_texts import TokenTexts

IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"


class Item(Protocol):
    """One item; its methods are called in this order."""

    def opening(self) -> Iterator[Json]:
        """Return the events before anything is in it."""
        ...

    def add(self, text: str, logprobs: list[Json]) -> Json:
        """Put more into it; returns the event that tells."""
        ...

    def closing(self, status: str) -> Iterator[Json]:
        """Return the events behind its end."""
        ...

    def document(self, status: str) -> Json:
        """Return the item as it stands."""
        ...


class MessageItem:
    """What is said to the user."""

    def __init__(self, ident: str, index: int) -> None:
        self._ident = f"msg_{ident}"
        self._place = {"item_id": self._ident, "output_index": index, "content_index": 0}
        self._index = index
        self._text = ""
        self._logprobs: list[Json] = []

    def opening(self) -> Iterator[Json]:
        """Announce the message and its one part."""
        yield _added(self._index, self._item(IN_PROGRESS, []))
        yield {"type": "response.content_part.added", **self._place, "part": _output_text("", [])}

    def add(self, text: str, logprobs: list[Json]) -> Json:
        """Say more."""
        self._text += text
        self._logprobs += logprobs
        kind = "response.output_text.delta"
        return {"type": kind, **self._place, "delta": text, "logprobs": logprobs}

    def closing(self, status: str) -> Iterator[Json]:
        """Say it whole: the text, its part, the message."""
        said = {"text": self._text, "logprobs": self._logprobs}
        yield {"type": "response.output_text.done", **self._place, **said}
        part = _output_text(self._text, self._logprobs)
        yield {"type": "response.content_part.done", **self._place, "part": part}
        yield _done(self._index, self.document(status))

    def document(self, status: str) -> Json:
        """Return the message."""
        return self._item(status, [_output_text(self._text, self._logprobs)])

    def _item(self, status: str, content: list[Json]) -> Json:
        return {
            "id": self._ident,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }


class ReasoningItem:
    """What the model thought before it spoke."""

    def __init__(self, ident: str, index: int) -> None:
        self._ident = f"rs_{ident}"
        self._place = {"item_id": self._ident, "output_index": index, "content_index": 0}
        self._index = index
        self._text = ""

    def opening(self) -> Iterator[Json]:
        """Announce the item and its one part."""
        yield _added(self._index, self._item(IN_PROGRESS, []))
        yield {"type": "response.content_part.added", **self._place, "part": _thought("")}

    def add(self, text: str, logprobs: list[Json]) -> Json:
        """Think on."""
        self._text += text
        return {"type": "response.reasoning_text.delta", **self._place, "delta": text}

    def closing(self, status: str) -> Iterator[Json]:
        """Say it whole: the text, its part, the item."""
        yield {"type": "response.reasoning_text.done", **self._place, "text": self._text}
        part = _thought(self._text)
        yield {"type": "response.content_part.done", **self._place, "part": part}
        yield _done(self._index, self.document(status))

    def document(self, status: str) -> Json:
        """Return the item."""
        return self._item(status, [_thought(self._text)])

    def _item(self, status: str, content: list[Json]) -> Json:
        return {
            "id": self._ident,
            "type": "reasoning",
            "status": status,
            "summary": [],
            "content": content,
        }


class CallItem:
    """A call of one of the client's functions.

    Args:
        begun: the first delta of the call.
    """

    def __init__(self, ident: str, index: int, begun: CallDelta) -> None:
        self._ident = f"fc_{ident}"
        self._index = index
        self._place = {"item_id": self._ident, "output_index": index}
        self._called = {"call_id": begun.call_id, "name": begun.name}
        self._arguments = ""

    def opening(self) -> Iterator[Json]:
        """Announce the call."""
        yield _added(self._index, self.document(IN_PROGRESS))

    def add(self, text: str, logprobs: list[Json]) -> Json:
        """Give more of the arguments."""
        self._arguments += text
        kind = "response.function_call_arguments.delta"
        return {"type": kind, **self._place, "delta": text}

    def closing(self, status: str) -> Iterator[Json]:
        """Say it whole: the arguments, the call."""
        kind = "response.function_call_arguments.done"
        said = {"name": self._called["name"], "arguments": self._arguments}
        yield {"type": kind, **self._place, **said}
        yield _done(self._index, self.document(status))

    def document(self, status: str) -> Json:
        """Return the call."""
        return {
            "id": self._ident,
            "type": "function_call",
            "status": status,
            **self._called,
            "arguments": self._arguments,
        }


class OutputItems:
    """All items of a response, of which the last may be open.

    Tokens whose text is not certain yet wait for it, so that a token is told with its text.

    Args:
        name: tells the response apart from all others.
    """

    def __init__(self, name: str, tokens: TokenTexts) -> None:
        self._name = name
        self._tokens = tokens
        self._done: list[Json] = []
        self._open: Item | None = None
        self._has_spoken = False
        self._ids: list[int] = []
        self._entries: list[TokenLogprobs] = []

    def said(self, piece: Piece) -> Iterator[Json]:
        """Return the events of what is said next."""
        self._ids += piece.token_ids or ()
        self._entries += piece.entries or ()
        if piece.is_reasoning:  # as all tokens before it are
            self._entries = []
        if piece.reasoning:
            yield from self._add(ReasoningItem, piece.reasoning)
        if piece.text:
            yield from self._add(MessageItem, piece.text)
        for delta in piece.calls:
            yield from self._call(delta)

    def ending(self, *, is_cut: bool) -> Iterator[Json]:
        """Return the events behind the last token; a reply that says nothing is an empty message.

        Args:
            is_cut: the reply would have gone on.
        """
        if not self._has_spoken and not (is_cut and self._open):
            yield from self._begin(MessageItem)
        if self._ids or (self._entries and isinstance(self._open, MessageItem)):
            yield self._added("")
        yield from self._close(INCOMPLETE if is_cut else COMPLETED)

    def documents(self) -> list[Json]:
        """Return the items as they stand."""
        if self._open is None:
            return list(self._done)
        return [*self._done, self._open.document(INCOMPLETE)]

    def _add(self, kind: type[MessageItem] | type[ReasoningItem], text: str) -> Iterator[Json]:
        """Go on with an item of a kind: the open one, or a new one."""
        if type(self._open) is not kind:
            yield from self._begin(kind)
        yield self._added(text)

    def _call(self, delta: CallDelta) -> Iterator[Json]:
        if delta.call_id is not None:
            yield from self._begin(partial(CallItem, begun=delta))
        if delta.arguments:
            yield self._added(delta.arguments)

    def _begin(self, kind: Callable[[str, int], Item]) -> Iterator[Json]:
        yield from self._close(COMPLETED)
        index = len(self._done)
        self._open = kind(f"{self._name}{index:02}", index)
        self._has_spoken = self._has_spoken or kind is not ReasoningItem
        yield from self._open.opening()

    def _added(self, text: str) -> Json:
        assert self._open is not None
        logprobs = [self._tokens.entry(item) for item in self._entries]
        told = self._open.add(text, logprobs) | ({"token_ids": self._ids} if self._ids else {})
        self._ids, self._entries = [], []
        return told

    def _close(self, status: str) -> Iterator[Json]:
        if self._open is None:
            return
        item, self._open = self._open, None
        self._done.append(item.document(status))
        yield from item.closing(status)


def _added(index: int, item: Json) -> Json:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def _done(index: int, item: Json) -> Json:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def _output_text(text: str, logprobs: Sequence[Json]) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _thought(text: str) -> Json:
    return {"type": "reasoning_text", "text": text}
