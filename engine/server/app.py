"""The routes of the server, and how a request runs through them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

import mlx.core as mx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from engine.config import EngineConfig
from engine.errors import ContextLengthError, FmError, SchemaError
from engine.server.body import read_body
from engine.server.forms import Letterhead
from engine.server.gate import Gate
from engine.server.lag import LoopLag
from engine.server.metrics import Metrics
from engine.server.model_ids import adapter_of, ids_of
from engine.server.openapi import PATHS, openapi
from engine.server.problem import HttpError, problem_of
from engine.server.protocol import PROMPTS, Call, read_call
from engine.server.replies import Reply
from engine.server.settings import ServerConfig
from engine.server.snapshot import snapshot
from engine.server.sse import send_events, while_connected
from engine.server.standing import Endpoint
from engine.server.token_texts import TokenTexts
from engine.server.worker import EngineWorker, Job, State

LOGGER = logging.getLogger("fm.server")

CODES = {404: "not_found", 405: "method_not_allowed"}

P = ParamSpec("P")
T = TypeVar("T")

READERS, COMPILERS = 4, 8
"""Threads that check requests and submit those without a constraint, and those that submit the
others: compiles take seconds, and requests that have none must not wait for them."""


class Server:
    """What all routes share.

    Args:
        name: the model's id.
    """

    def __init__(self, config: ServerConfig, name: str, worker: EngineWorker) -> None:
        self.config = config
        self.name = name
        self.worker = worker
        self.lag = LoopLag()
        self.metrics = Metrics(worker.totals, self._stats, self.lag)
        self.started = int(time.time())
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="fm-read")
        self._compilers = ThreadPoolExecutor(COMPILERS, thread_name_prefix="fm-submit")
        self._num_reading = 0

    async def serve(self, endpoint: Endpoint, request: Request) -> Response:
        """Check and queue one request; the response that is returned waits for its rows."""
        arrived_s = time.monotonic()
        self.worker.check_room(1, self._num_reading)
        job = Job(self.worker, self.config.request_timeout_s)
        self._num_reading += 1
        try:
            body = await self._body(request)
            call = await self._in_thread(self._readers, self._take, endpoint, body, job)
            if call.constraint_field is not None:
                await self._in_thread(self._compilers, self._submit, job, call)
            return Answer(self, self._reply(call, job, arrived_s), arrived_s)
        except BaseException:
            job.close()
            raise
        finally:
            self._num_reading -= 1

    @property
    def engine_config(self) -> EngineConfig | None:
        """The engine's settings, None before it is open."""
        engine = self.worker.opened
        return None if engine is None else engine.config

    def models(self) -> list[dict[str, Any]]:
        """Describe the model and its adapters, and whether they are ready."""
        engine = self.worker.opened
        known = {} if engine is None else {"context_length": engine.model.context_length}
        return [
            {
                "id": name,
                "object": "model",
                "created": self.started,
                "owned_by": "fm",
                "parent": None if name == self.name else self.name,
                "state": str(self.worker.state),
                **known,
            }
            for name in ids_of(self.name, self.engine_config)
        ]

    async def stats(self) -> dict[str, Any]:
        """Return what /stats tells."""
        found = await self._in_thread(self._readers, snapshot, self.name, self.worker)
        return found | {"event_loop": self.lag.document()}

    async def metrics_text(self) -> bytes:
        """Return what /metrics tells."""
        return await self._in_thread(self._readers, self.metrics.text)

    def close(self) -> None:
        """Let the threads go."""
        for pool in (self._readers, self._compilers):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _body(self, request: Request) -> bytes:
        config = self.config
        return await read_body(request, config.max_body_bytes, config.client_timeout_s)

    def _take(self, endpoint: Endpoint, body: bytes, job: Job) -> Call:
        """Read a call, and submit it where no constraint has to be compiled."""
        call = read_call(endpoint, body, self.worker.engine, self.name, self.config)
        if call.constraint_field is None:
            self._submit(job, call)
        return call

    def _submit(self, job: Job, call: Call) -> None:
        try:
            self.worker.submit(job, call.requests, call.num_choices)
        except FmError as error:
            raise _problem_of(error, call) from None

    def _reply(self, call: Call, job: Job, arrived_s: float) -> Reply:
        model = self.worker.engine.model
        letterhead = Letterhead(
            call=call,
            name=job.name,
            model=call.model,
            fingerprint=f"fm-{model.digest[:12] or 'unknown'}",
            tokens=TokenTexts(model.tokenizer, call.top_logprobs or 0),
            created=int(time.time()),
        )
        return Reply(
            letterhead,
            job,
            on_text=lambda: self.metrics.saw_first_text(time.monotonic() - arrived_s),
        )

    def _stats(self) -> Any:
        engine = self.worker.opened
        return None if engine is None else engine.stats()

    async def _in_thread(
        self, pool: ThreadPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, partial(work, *args, **kwargs))


class Answer(Response):
    """The response to a queued request; its rows end with it, however it ends."""

    def __init__(self, server: Server, reply: Reply, arrived_s: float) -> None:
        super().__init__()
        self._server = server
        self._reply = reply
        self._arrived_s = arrived_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the reply while the client listens."""
        call = self._reply.call
        if call.is_stream:
            work = send_events(self._reply.events(), send)
        else:
            work = self._whole(scope, receive, send)
        try:
            await while_connected(receive, work)
        finally:
            self._reply.job.close()
            self._server.metrics.saw_end(time.monotonic() - self._arrived_s)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        document = await self._reply.whole()
        await JSONResponse(document)(scope, receive, send)


def build_app(server: Server) -> Starlette:
    """Return the ASGI application."""

    async def models(_request: Request) -> Response:
        return JSONResponse({"object": "list", "data": server.models()})

    async def model(request: Request) -> Response:
        wanted = request.path_params["name"]
        adapter_of(wanted, server.name, server.engine_config)
        return JSONResponse(next(item for item in server.models() if item["id"] == wanted))

    async def health(_request: Request) -> Response:
        state = server.worker.state
        status = 200 if state is State.SERVING else 503
        return JSONResponse({"status": "ok" if status == 200 else str(state)}, status)

    async def stats(_request: Request) -> Response:
        return JSONResponse(await server.stats())

    async def metrics(_request: Request) -> Response:
        return Response(await server.metrics_text(), media_type=server.metrics.content_type)

    async def document(_request: Request) -> Response:
        names = ids_of(server.name, server.engine_config)
        return JSONResponse(openapi(routes, names, server.config))

    routes = [
        *(_answering(server, endpoint) for endpoint in PATHS),
        Route("/v1/responses/{name:path}", _no_response, methods=["GET", "DELETE", "POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/health", health),
        Route("/stats", stats),
        Route("/metrics", metrics),
        Route("/openapi.json", document),
    ]
    routes += _measuring_routes(server.config)
    paths = {route.path for route in routes}

    def count(path: str, status: int) -> None:
        known = path if path in paths else "other"
        server.metrics.saw_request(known, status)
        LOGGER.info("%s: %d", known, status)

    gate = Middleware(Gate, config=server.config, on_answer=count)
    handlers = {HTTPException: _answer_plainly}
    app = Starlette(routes=routes, middleware=[gate], exception_handlers=handlers)
    app.router.redirect_slashes = False  # to where the client's Host header says
    return app


def _answering(server: Server, endpoint: Endpoint) -> Route:
    async def answer(request: Request) -> Response:
        return await server.serve(endpoint, request)

    return Route(PATHS[endpoint][0], answer, methods=["POST"])


def _measuring_routes(config: ServerConfig) -> list[Route]:
    async def reset_peak(_request: Request) -> Response:
        mx.reset_peak_memory()
        return Response(status_code=204)

    if not config.allow_overrides:
        return []
    return [Route("/stats/reset-peak", reset_peak, methods=["POST"])]


async def _no_response(_request: Request) -> Response:
    message = "no response is kept; send the whole conversation as input"
    raise HttpError(404, message, param="response_id", code="not_found")


def _answer_plainly(request: Request, error: Exception) -> Response:
    """Word the framework's own errors, an unknown path or method, as all others are."""
    assert isinstance(error, HTTPException)
    path, allowed = request.url.path[:60], (error.headers or {}).get("Allow")
    if error.status_code == 404:
        message = (
            f"there is nothing at {path!r}; the API's base URL ends with /v1, see /openapi.json"
        )
    elif allowed is not None:
        message = f"{request.method[:20]} is not answered at {path!r}; send {allowed}"
    else:
        message = error.detail
    code = CODES.get(error.status_code)
    problem = HttpError(error.status_code, message, code=code)
    return JSONResponse(problem.document, problem.status, headers=error.headers)


def _problem_of(error: FmError, call: Call) -> HttpError:
    """Name the field at fault in what the engine refuses."""
    if isinstance(error, SchemaError):
        field = call.constraint_field
        if call.tool_use is not None:
            return call.tool_use.problem_of(error, field or "tools")
        return problem_of(error, field)
    is_long = isinstance(error, ContextLengthError)
    return problem_of(error, PROMPTS[call.endpoint] if is_long else None)
