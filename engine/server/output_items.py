"""The output items of one response as they grow: each change is an event of /v1/responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from engine.request import TokenLogprobs
from engine.server.forms import Piece
from engine.server.token_texts import Json, TokenTexts

IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"


class Item(Protocol):
    """One item; its calls come in this order.

    Args:
        ident: tells the item apart from those of all replies.
        index: its place in the output.
    """

    prefix: str

    def __init__(self, ident: str, index: int) -> None: ...

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

    prefix = "msg_"

    def __init__(self, ident: str, index: int) -> None:
        self._ident = self.prefix + ident
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

    prefix = "rs_"

    def __init__(self, ident: str, index: int) -> None:
        self._ident = self.prefix + ident
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
        if piece.reasoning:
            yield from self._add(ReasoningItem, piece.reasoning)
        if piece.text:
            yield from self._add(MessageItem, piece.text)

    def ending(self, *, is_cut: bool) -> Iterator[Json]:
        """Return the events behind the last token; a reply that says nothing is an empty message.

        Args:
            is_cut: the reply would have gone on.
        """
        if not self._has_spoken and not (is_cut and self._open):
            yield from self._turn_to(MessageItem)
        if self._ids or self._entries:
            yield self._added("")
        yield from self._close(INCOMPLETE if is_cut else COMPLETED)

    def documents(self) -> list[Json]:
        """Return the items as they stand."""
        if self._open is None:
            return list(self._done)
        return [*self._done, self._open.document(INCOMPLETE)]

    def _add(self, kind: Callable[[str, int], Item], text: str) -> Iterator[Json]:
        yield from self._turn_to(kind)
        yield self._added(text)

    def _turn_to(self, kind: Callable[[str, int], Item]) -> Iterator[Json]:
        """Go on with an item of a kind: the open one, or a new one."""
        if self._open is not None and type(self._open) is kind:
            return
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
