"""A server of OpenAI's chats whose speed is known: one token an event, on a fixed schedule.

Run as `python -m harness.calibration.metronome_server STEP_S TTFT_S`; it says where it listens.
Token n of a reply is sent at its time after the request was read, however long sending takes. The
text of a token is when it was sent, and that of the first begins with when the request was read,
in seconds of this process's clock.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from harness.calibration.pacing import RealClock

MODEL = "metronome"
LISTENING = r"listening on (http://\S+)"

Paced = type["_Handler"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    step_s = 0.0
    ttft_s = 0.0

    def do_GET(self) -> None:
        """Answer what a client asks before it measures."""
        self._answer({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        """Stream a reply of as many tokens as its budget has."""
        clock = RealClock()
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        read_s, tokens = clock(), int(body["max_tokens"])
        usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self._event(_chunk({"role": "assistant", "content": ""}))
        for place in range(tokens):
            sent_s = clock.wait_until(read_s + self.ttft_s + place * self.step_s)
            began = "" if place else f"{read_s:.7f} "
            self._event(_chunk({"content": f"{began}{sent_s:.7f} "}))
        self._event(_chunk({}, finish="length"))
        self._event({"choices": [], "usage": usage})
        self._send(b"data: [DONE]\n\n")
        self._send(b"")

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""

    def _answer(self, document: dict[str, Any]) -> None:
        content = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _event(self, document: dict[str, Any]) -> None:
        self._send(b"data: " + json.dumps(document).encode() + b"\n\n")

    def _send(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def _chunk(delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def handler(step_s: float, ttft_s: float) -> Paced:
    """Return what answers requests at a pace."""
    return type("Handler", (_Handler,), {"step_s": step_s, "ttft_s": ttft_s})


def main(step_s: float, ttft_s: float) -> None:
    """Serve until the process is ended."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(step_s, ttft_s)) as server:
        sys.stdout.write(f"listening on http://127.0.0.1:{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
