"""Server-sent events, and work that ends when the client leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from starlette.types import Receive, Send

DONE = b"data: [DONE]\n\n"

ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
"""Made once: json.dumps makes one for each document that it is given such settings for."""

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(document: dict[str, Any], name: str = "") -> bytes:
    """Return one event; in ASCII, so no reader can cut a line or a character in two."""
    named = b"event: " + name.encode("ascii") + b"\n" if name else b""
    return named + b"data: " + ENCODER.encode(document).encode("ascii") + b"\n\n"


async def send_events(events: AsyncIterator[bytes], send: Send) -> None:
    """Send a response of events, those that come together in one piece."""
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    async for item in events:
        if item:
            await send({"type": "http.response.body", "body": item, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work`, and cancel it when the client leaves; returns whether it came to its end."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_until_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
