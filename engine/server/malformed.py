"""Bytes that are no HTTP, answered in the form of all other errors."""

from __future__ import annotations

import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from engine.server.problem import refusal


class HttpProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 on one connection."""

    def send_400_response(self, msg: str) -> None:
        """Answer and close; where an answer is under way or sent, only close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(refusal(msg, code="invalid_http").document).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            for event in (
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
