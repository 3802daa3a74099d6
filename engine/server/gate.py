"""What stands before every route: the key, the host name, and an answer whatever is raised."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Mapping

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.problem import HttpError, told_as
from engine.server.settings import OPEN_PATHS, ServerConfig, is_loopback

STOPPED = HttpError(503, "the server has stopped; try again later", code="engine_stopped")
"""What those are told whom the end of the drain finds waiting; uvicorn cancels them."""

CLIENT_LEFT = 499
"""Status under which a request is counted that nobody waited for."""


class Gate:
    """ASGI middleware around the whole application.

    Args:
        on_answer: called with path and status of every answer.
    """

    def __init__(
        self, app: ASGIApp, *, config: ServerConfig, on_answer: Callable[[str, int], None]
    ) -> None:
        self._app = app
        self._config = config
        self._on_answer = on_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it."""
        if scope["type"] != "http":
            return
        status = 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, receive, noted)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # the client is told
            problem = told_as(error) if isinstance(error, Exception) else STOPPED
            if status == 0:
                answer = JSONResponse(problem.document, problem.status, headers=problem.headers)
                await answer(scope, receive, noted)
        finally:
            self._on_answer(scope["path"], status or CLIENT_LEFT)

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        self._check_host(headers)
        key = self._config.api_key
        if key is None or scope["path"] in OPEN_PATHS:
            return
        kind, _, sent = headers.get(b"authorization", b"").partition(b" ")
        is_right = hmac.compare_digest(sent.strip(), key.encode())
        if kind.lower() != b"bearer" or not is_right:
            raise HttpError(
                401,
                "the API key is missing or wrong; send Authorization: Bearer KEY",
                code="invalid_api_key",
                kind="authentication_error",
            )

    def _check_host(self, headers: Mapping[bytes, bytes]) -> None:
        """Without a key, a web page must not reach the server by a name that it made local."""
        config = self._config
        if config.api_key is not None or config.insecure or not config.is_local:
            return
        host = headers.get(b"host", b"").decode("latin-1")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if not is_loopback(name):
            raise HttpError(
                403,
                f"the Host header names {host[:60]!r}, not this machine; start the server with "
                "--api-key to be reached under other names",
                code="wrong_host",
            )
