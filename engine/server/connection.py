"""One connection: bytes that are no HTTP get an answer in our form, and a client that stalls goes.

uvicorn waits without end for a request whose head or body never comes to its end, and for a client
that reads nothing of its reply; each would keep a connection, and what hangs on it, for good.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from engine.server.problem import HttpError, late, refusal

FREE_PIECES, BYTES_A_PIECE = 1024, 256
"""A body may come in so many pieces, and in one more for each so many bytes. A piece takes the
event loop about 50 us, so those of one read (256 kB) would otherwise hold it for seconds."""


class _Pieces(h11.Connection):
    """A connection that counts the pieces a request's body comes in."""

    def __init__(self, max_head_bytes: int) -> None:
        super().__init__(h11.SERVER, max_head_bytes)
        self._num_pieces = self._num_bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event; raises RemoteProtocolError for a body in crumbs."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._num_pieces = self._num_bytes = 0
        elif isinstance(event, h11.Data):
            self._num_pieces += 1
            self._num_bytes += len(event.data)
            if self._num_pieces > FREE_PIECES + self._num_bytes // BYTES_A_PIECE:
                raise h11.RemoteProtocolError("the body comes in too many small pieces")
        return event


class HttpProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 on one connection."""

    client_timeout_s = 60.0
    max_head_bytes = 65_536

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = _Pieces(self.max_head_bytes)
        self._arriving: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Expect a request."""
        super().connection_made(transport)
        self._watch_arrival()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing more."""
        super().connection_lost(exc)
        self._forget_arrival()
        self._forget_taking()

    def data_received(self, data: bytes) -> None:
        """Take bytes; the time of a request runs from its first one to its last."""
        super().data_received(data)
        self._watch_arrival()

    def pause_writing(self) -> None:
        """Expect the client to take some of what waits for it."""
        super().pause_writing()
        self._taking = self.loop.call_later(self.client_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Note that it did."""
        super().resume_writing()
        self._forget_taking()

    def send_400_response(self, msg: str) -> None:
        """Answer and close; where an answer is under way or sent, only close."""
        self._refuse(refusal(msg, code="invalid_http"))

    def _watch_arrival(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY) or self.transport.is_closing():
            self._forget_arrival()
        elif self._arriving is None:
            self._arriving = self.loop.call_later(self.client_timeout_s, self._give_up)

    def _give_up(self) -> None:
        """End a connection whose request did not come, unless it is answered: that has an end."""
        self._arriving = None
        if self.cycle is not None and not self.cycle.response_complete:
            self._watch_arrival()
        elif not self.transport.is_closing():
            self._refuse(late(self.client_timeout_s))

    def _forget_arrival(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _forget_taking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _refuse(self, problem: HttpError) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(problem.document).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            for event in (
                h11.Response(status_code=problem.status, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def protocol_with(limit_s: float) -> type[HttpProtocol]:
    """Return the protocol of a server that waits so long for its clients."""
    return type("TimedHttpProtocol", (HttpProtocol,), {"client_timeout_s": limit_s})
