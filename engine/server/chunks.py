"""Chats and completions, whole and in chunks: events without names, ended by [DONE]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Protocol

from engine.request import Completion
from engine.server.calls import CallDelta, CallSyntax, gathered
from engine.server.forms import Letterhead, Piece
from engine.server.problem import HttpError
from engine.server.protocol import Call
from engine.server.readers import Json
from engine.server.sse import DONE, event
from engine.server.token_texts import TokenTexts, finite
from engine.server.usage import usage_of


class Choices(Protocol):
    """How the choices of one endpoint are written."""

    prefix: str
    whole_kind: str
    chunk_kind: str

    def opening(self, index: int) -> Json | None:
        """Return the choice of a first chunk, None where there is none."""
        ...

    def chunk(self, piece: Piece) -> Json:
        """Return the choice of a further chunk."""
        ...

    def whole(self, piece: Piece) -> Json:
        """Return a whole choice."""
        ...


class ChunkForm:
    """A reply whose stream is a row of chunks.

    Args:
        choices: how choices are written.
    """

    def __init__(self, letterhead: Letterhead, choices: Choices) -> None:
        self._letterhead = letterhead
        self._choices = choices
        self._extra = letterhead.prompt_ids()
        """What the next chunk says beside its choice: the first one holds the prompts."""

    def opening(self) -> Iterator[bytes]:
        """Say who speaks, of every choice."""
        for index in range(self._letterhead.call.num_rows):
            choice = self._choices.opening(index)
            if choice is not None:
                yield self._chunk([choice])

    def said(self, piece: Piece) -> Iterator[bytes]:
        """Say one piece, and what it adds to several calls one by one."""
        for part in _with_one_call(piece):
            yield self._chunk([self._choices.chunk(part)])

    def ending(self, records: Sequence[Completion]) -> Iterator[bytes]:
        """Say what it cost, when asked for, and that it is over."""
        call = self._letterhead.call
        if call.include_usage:
            self._extra = {"usage": usage_of(records, call.num_choices)}
            yield self._chunk([])
        yield DONE

    def failure(self, error: HttpError) -> Iterator[bytes]:
        """Say what went wrong; no [DONE] follows."""
        yield event(error.document)

    def whole(self, pieces: Sequence[Piece], records: Sequence[Completion]) -> Json:
        """Say it all."""
        call = self._letterhead.call
        said = [[piece for piece in pieces if piece.index == row] for row in range(call.num_rows)]
        choices = [self._choices.whole(_joined(row, call)) for row in said]
        usage = usage_of(records, call.num_choices)
        body = self._envelope(self._choices.whole_kind, choices)
        return body | {"usage": usage} | self._letterhead.prompt_ids()

    def _chunk(self, choices: list[Json]) -> bytes:
        extra, self._extra = self._extra, {}
        return event(self._envelope(self._choices.chunk_kind, choices) | extra)

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        head = self._letterhead
        return {
            "id": self._choices.prefix + head.name,
            "object": kind,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
            "choices": choices,
        }


class ChatChoices:
    """Choices of /v1/chat/completions."""

    prefix, whole_kind, chunk_kind = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, tokens: TokenTexts, syntax: CallSyntax | None = None) -> None:
        self._tokens = tokens
        self._has_text = syntax is None or syntax.has_text
        self._silence = "" if syntax is None else None

    def opening(self, index: int) -> Json:
        """Say who speaks; a reply of calls alone says nothing else."""
        return {
            "index": index,
            "delta": {"role": "assistant", "content": "" if self._has_text else None},
            "logprobs": None,
            "finish_reason": None,
        }

    def chunk(self, piece: Piece) -> Json:
        """Say what is added; an end adds nothing."""
        delta = _reasoning(piece) | _calls(piece)
        is_text = self._has_text and not delta and piece.finish_reason is None
        if piece.text or is_text:
            delta = {"content": piece.text} | delta
        return self._choice(piece, {"delta": delta})

    def whole(self, piece: Piece) -> Json:
        """Say it all; where there are tools, a reply without text has no content."""
        said = {"content": piece.text or self._silence, "refusal": None} | _reasoning(piece)
        calls = [_call(call) for call in gathered(piece.calls)]
        message = {"role": "assistant", **said} | ({"tool_calls": calls} if calls else {})
        return self._choice(piece, {"message": message})

    def _choice(self, piece: Piece, said: Json) -> Json:
        logprobs = None
        if piece.entries is not None:
            content = [self._tokens.entry(item) for item in piece.entries]
            logprobs = {"content": content, "refusal": None}
        return {
            "index": piece.index,
            **said,
            "logprobs": logprobs,
            "finish_reason": piece.finish_reason,
            **_ids(piece),
        }


class CompletionChoices:
    """Choices of /v1/completions."""

    prefix, whole_kind, chunk_kind = "cmpl-", "text_completion", "text_completion"

    def __init__(self, tokens: TokenTexts) -> None:
        self._tokens = tokens
        self._lengths: dict[int, int] = {}

    def opening(self, index: int) -> None:
        """Nobody speaks."""

    def chunk(self, piece: Piece) -> Json:
        """Say what is added."""
        return {
            "index": piece.index,
            "text": piece.text,
            "logprobs": None if piece.entries is None else self._columns(piece),
            "finish_reason": piece.finish_reason,
            **_ids(piece),
        }

    whole = chunk

    def _columns(self, piece: Piece) -> Json:
        """Return the lists of a completion's logprobs; offsets go on from chunk to chunk."""
        entries = piece.entries or ()
        texts = [self._tokens.name(entry.token_id) for entry in entries]
        offsets = []
        length = self._lengths.get(piece.index, 0)
        for entry in entries:
            offsets.append(length)
            length += len(self._tokens.text(entry.token_id))
        self._lengths[piece.index] = length
        return {
            "tokens": texts,
            "token_logprobs": [finite(entry.logprob) for entry in entries],
            "top_logprobs": [self._tokens.alternatives(entry) for entry in entries],
            "text_offset": offsets,
        }


def chat_form(letterhead: Letterhead) -> ChunkForm:
    """Return the form of a reply of /v1/chat/completions."""
    return ChunkForm(letterhead, ChatChoices(letterhead.tokens, letterhead.call.call_syntax))


def completion_form(letterhead: Letterhead) -> ChunkForm:
    """Return the form of a reply of /v1/completions."""
    return ChunkForm(letterhead, CompletionChoices(letterhead.tokens))


def _ids(piece: Piece) -> Json:
    return {} if piece.token_ids is None else {"token_ids": list(piece.token_ids)}


def _reasoning(piece: Piece) -> Json:
    return {"reasoning_content": piece.reasoning} if piece.reasoning else {}


def _joined(pieces: Sequence[Piece], call: Call) -> Piece:
    """Make one of all the pieces of a choice, the last of which ends it."""
    entries = chain.from_iterable(piece.entries or () for piece in pieces)
    ids = chain.from_iterable(piece.token_ids or () for piece in pieces)
    return Piece(
        pieces[-1].index,
        text="".join(piece.text for piece in pieces),
        entries=None if call.top_logprobs is None else list(entries),
        token_ids=list(ids) if call.return_token_ids else None,
        finish_reason=pieces[-1].finish_reason,
        reasoning="".join(piece.reasoning for piece in pieces),
        calls=list(chain.from_iterable(piece.calls for piece in pieces)),
    )


def _with_one_call(piece: Piece) -> Iterator[Piece]:
    """Part what a piece adds to calls; all else comes with the first part."""
    yield piece if len(piece.calls) < 2 else replace(piece, calls=piece.calls[:1])
    for delta in piece.calls[1:]:
        yield Piece(piece.index, calls=(delta,))


def _calls(piece: Piece) -> Json:
    if not piece.calls:
        return {}
    return {"tool_calls": [{"index": delta.index, **_call(delta)} for delta in piece.calls]}


def _call(delta: CallDelta) -> Json:
    """Return a call, or what is added to one."""
    if delta.name is None:
        return {"function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"id": delta.call_id, "type": "function", "function": function}
