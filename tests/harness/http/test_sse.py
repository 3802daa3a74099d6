"""Streams of events: the same events however the bytes are cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.http.client import read_events

LINE_ENDS = ("\n", "\r\n", "\r")


class Cut(httpx2.AsyncByteStream):
    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part


def read(parts: Sequence[bytes], kind: str = "text/event-stream") -> list[str]:
    async def work() -> list[str]:
        answer = httpx2.Response(
            200,
            headers={"content-type": kind},
            stream=Cut(parts),
            request=httpx2.Request("POST", "http://test/"),
        )
        return [data async for data in read_events(answer)]

    return asyncio.run(work())


def cut(content: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(content) + 1) for place in places}), len(content)]
    return [content[start:end] for start, end in pairwise(edges)]


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=12)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[str], bytes]:
    """Data of events, and a stream that says them, with all that may stand around."""
    end = draw(st.sampled_from(LINE_ENDS))
    data, lines = draw(st.lists(st.lists(texts, min_size=1, max_size=3), max_size=4)), list[str]()
    for event in data:
        lines += draw(
            st.lists(st.sampled_from([": keepalive 1/2", "event: chunk", ""]), max_size=2)
        )
        lines += [f"data: {line}" for line in event] + [""]
    # An event that is not ended is none; httpx2 ends one at a stream's last byte if that is a CR.
    lines += draw(st.sampled_from([[], ["data: cut off"], [": bye"]])) if end != "\r" else []
    found = ["\n".join(event) for event in data]
    return [text for text in found if text], "".join(line + end for line in lines).encode()


@given(streams(), st.lists(st.integers(0, 500), max_size=6))
@example((["ü€😀"], "data: ü€😀\r\n\r\n".encode()), [7, 9, 10, 12, 17, 18, 19])
def test_events_are_the_same_wherever_their_bytes_are_cut(
    stream: tuple[list[str], bytes], places: list[int]
) -> None:
    data, content = stream
    assert read([content]) == data
    assert read(cut(content, places)) == data


def test_every_byte_may_come_alone() -> None:
    content = 'data: {"a":\r\ndata: "ü"}\r\n\r\n: note\r\n\r\ndata: [DONE]\r\n\r\n'.encode()
    assert read(cut(content, range(len(content)))) == ['{"a":\n"ü"}', "[DONE]"]


def test_what_is_no_event_stream_is_told() -> None:
    with pytest.raises(httpx2.HTTPError, match="text/event-stream"):
        read([b"{}"], "application/json")
