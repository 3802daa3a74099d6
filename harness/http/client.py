"""The load client: many streams at once over HTTP, and the instant at which each event was read.

Nothing is repeated in silence: a request that fails is a failure, and only a 429 that names a time
(Retry-After) is sent again, once, which is counted.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import httpx2

from engine.errors import FmError
from harness.http.chat_reply import StreamError
from harness.http.delay import ArrivalSelector, ClientDelay, processor_wait_s, watched
from harness.http.words import error_words, message_words, parsed, problem_words
from harness.trials.clock import Clock, monotonic
from harness.trials.target import OnTokens, ignore_tokens

DONE = "[DONE]"

KEEP_ALIVE_S = 2.0
"""Idle connections are given up before a server does (5 s and more), not while it does."""

MAX_EVENT_BYTES = 16 * 2**20
MAX_REPLY_CHARACTERS = 64 * 2**20
"""Of the data of all events: a chat of 100,000 tokens with ids and logprobs has a third of them."""

MAX_PROBLEM_BYTES = 65_536
MAX_RESOURCE_BYTES = 16 * 2**20
LINGER_S = 1.0
"""How long the end of a response is waited for behind its last event."""

MAX_RETRY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a client waits, in seconds.

    Args:
        first_event_s: for the first event, from sending on: queues and prefill are in it.
        event_s: between two events.
        total_s: for the whole reply.
    """

    connect_s: float = 10.0
    first_event_s: float = 600.0
    event_s: float = 120.0
    total_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, encoded before any time is taken.

    Args:
        is_stream: whether the reply has to be a stream of events; else it is one document.
    """

    path: str
    body: bytes
    is_stream: bool = True

    @classmethod
    def of(cls, path: str, fields: Mapping[str, Any]) -> Self:
        """Encode a body, which says itself whether it asks for a stream."""
        body = json.dumps(fields, allow_nan=False).encode()
        return cls(path, body, bool(fields.get("stream")))


class Reply(Protocol):
    """What takes the documents of a stream in, or the one of a whole reply."""

    @property
    def finish_reason(self) -> str | None:
        """Why it ended, None before it has."""
        ...

    def see(self, document: Any, now_s: float) -> int:
        """Take one in; returns the tokens it brought."""
        ...


R = TypeVar("R", bound=Reply)
T = TypeVar("T")

OnEvent = Callable[[float, int], None]
"""Called with how late an event may have been read, and its tokens."""


@dataclass(slots=True)
class Exchange(Generic[R]):
    """One request and what came of it.

    Attributes:
        due_s: when it was to be sent; a late client has itself to blame.
        ended_s: when its end, or its failure, was known.
        status: of the HTTP response, None without one.
        characters: of the data of its events.
        error: why it failed, one line; None for a whole reply.
        retries: how often it was sent again.
    """

    due_s: float
    reply: R
    ended_s: float = 0.0
    status: int | None = None
    error: str | None = None
    retries: int = 0
    events: int = 0
    characters: int = 0

    @property
    def is_whole(self) -> bool:
        """True when the stream said that it had ended, and why the reply did."""
        return self.ended_s > 0 and self.reply.finish_reason is not None

    @property
    def seconds(self) -> float:
        """From the instant it was due to its end."""
        return self.ended_s - self.due_s


@dataclass(frozen=True, slots=True)
class Load(Generic[R]):
    """What many requests came to, in the order in which they were given."""

    exchanges: tuple[Exchange[R], ...]
    delay: ClientDelay
    wall_s: float


class LoadClient(Generic[R]):
    """Sends requests to one server and reads their streams; a context.

    Every method waits. The client has an event loop of its own, so it is used outside of any.

    Args:
        url: what paths are appended to.
        connections: most requests that are in flight together.
        reply: makes what takes the documents of one stream in.
        key: sent as a bearer token, None for none.
    """

    def __init__(
        self,
        url: str,
        connections: int,
        *,
        reply: Callable[[], R],
        patience: Patience | None = None,
        key: str | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self.patience = patience or Patience()
        self._url = url
        self._clock = clock
        self._reply = reply
        self._selector = ArrivalSelector(clock)
        self._runner = asyncio.Runner(
            loop_factory=lambda: asyncio.SelectorEventLoop(self._selector)
        )
        self._http = httpx2.AsyncClient(
            base_url=url,
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            limits=httpx2.Limits(
                max_connections=connections,
                max_keepalive_connections=connections,
                keepalive_expiry=KEEP_ALIVE_S,
            ),
            timeout=httpx2.Timeout(None, connect=self.patience.connect_s),
            trust_env=False,
        )
        self._places: dict[str, httpx2.URL] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop every connection; safe to call twice."""
        if self._http.is_closed:
            self._runner.close()
            return
        self._runner.run(self._http.aclose())
        self._runner.close()

    def fetch(self, method: str, path: str, timeout_s: float = 30.0) -> Any:
        """Return the JSON of a small resource, None for an empty one.

        Raises:
            FmError: it cannot be had.
        """
        return self._runner.run(self._fetch(method, path, timeout_s))

    def waves(self, asks: Sequence[Ask], rows: int, on_tokens: OnTokens = ignore_tokens) -> Load[R]:
        """Send `rows` requests together, wait for the last of them, send the next ones."""

        async def drive(load: _Running[R]) -> None:
            for start in range(0, len(asks), rows):
                wave = range(start, min(start + rows, len(asks)))
                async with asyncio.TaskGroup() as group:
                    for place in wave:
                        group.create_task(load.send(place, self._clock()))

        return self._run(asks, on_tokens, drive)

    def closed_loop(
        self, asks: Sequence[Ask], users: int, on_tokens: OnTokens = ignore_tokens
    ) -> Load[R]:
        """Let `users` send one request after another until all are sent."""

        async def drive(load: _Running[R]) -> None:
            places = iter(range(len(asks)))

            async def user() -> None:
                for place in places:
                    await load.send(place, self._clock())

            async with asyncio.TaskGroup() as group:
                for _ in range(users):
                    group.create_task(user())

        return self._run(asks, on_tokens, drive)

    def poisson(
        self, asks: Sequence[Ask], per_s: float, seed: int, on_tokens: OnTokens = ignore_tokens
    ) -> Load[R]:
        """Send requests as they would come by chance, `per_s` a second, however many are live.

        Their times count from the instants at which they were due.
        """
        gaps = random.Random(seed)

        async def drive(load: _Running[R]) -> None:
            due_s = self._clock()
            async with asyncio.TaskGroup() as group:
                for place in range(len(asks)):
                    due_s += gaps.expovariate(per_s)
                    await asyncio.sleep(max(0.0, due_s - self._clock()))
                    group.create_task(load.send(place, due_s))

        return self._run(asks, on_tokens, drive)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work that sends by `exchange`, in the client's loop.

        Raises:
            KeyboardInterrupt: a signal came; the work was cancelled.
        """
        try:
            return self._runner.run(_interruptible(work))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    # -- inside the event loop -----------------------------------------------------------------

    def _run(
        self,
        asks: Sequence[Ask],
        on_tokens: OnTokens,
        drive: Callable[[_Running[R]], Coroutine[Any, Any, None]],
    ) -> Load[R]:
        running = _Running(self, asks, on_tokens)
        waited_s, started_s = processor_wait_s(), self._clock()
        self.run(drive(running))
        wall_s, delay = self._clock() - started_s, running.delay
        # While the thread waits for a processor, all live streams do.
        streams = delay.stream_s / wall_s if wall_s > 0 else 0.0
        delay.delay_s += streams * (processor_wait_s() - waited_s)
        exchanges = tuple(running.exchanges[place] for place in range(len(asks)))
        return Load(exchanges, delay, wall_s)

    async def _fetch(self, method: str, path: str, timeout_s: float) -> Any:
        place = f"{self._url}{path}"
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._http.stream(method, path) as answer,
            ):
                if not answer.is_success:
                    problem = problem_words(answer.status_code, await _beginning(answer))
                    raise FmError(f"{place}: {problem}")
                content = await _beginning(answer, MAX_RESOURCE_BYTES)
        except TimeoutError:
            raise FmError(f"{place}: it did not come within {timeout_s:g} s") from None
        except httpx2.ConnectError:
            raise FmError(
                f"{place}: nothing answers there; start the server, or name another address"
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise FmError(f"{place}: {error_words(error)}") from None
        if len(content) > MAX_RESOURCE_BYTES:
            raise FmError(f"{place}: it has more than {MAX_RESOURCE_BYTES} bytes")
        try:
            return parsed(content) if content else None
        except ValueError as error:
            raise FmError(f"{place}: it is no JSON: {error_words(error)}") from None

    def _place(self, path: str) -> httpx2.URL:
        """Return a path's whole URL; put together once, since that takes 0.2 ms of every TTFT."""
        if path not in self._places:
            self._places[path] = self._http.build_request("POST", path).url
        return self._places[path]

    async def exchange(
        self, ask: Ask, due_s: float, on_event: OnEvent = lambda _late_s, _tokens: None
    ) -> Exchange[R]:
        """Send one request and read its reply to the end; what goes wrong is in the result."""
        found = Exchange(due_s, self._reply())
        try:
            async with asyncio.timeout(self.patience.total_s) as whole:
                retry_s = await self._attempt(ask, found, on_event)
                if retry_s is not None:
                    found.retries += 1
                    await asyncio.sleep(retry_s)
                    if await self._attempt(ask, found, on_event) is not None:
                        found.error = "HTTP 429 again, after the time that Retry-After named"
        except TimeoutError:
            limit_s = self.patience.total_s
            assert whole.expired(), "a pause is told where it is waited for"
            found.error = f"the reply took longer than {limit_s:g} s"
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError, StreamError) as error:
            if not found.is_whole:
                found.error = error_words(error)
        found.ended_s = found.ended_s or self._clock()
        return found

    async def _attempt(self, ask: Ask, found: Exchange[R], on_event: OnEvent) -> float | None:
        """Send a request; returns the seconds after which a 429 asks for another attempt."""
        patience, loop = self.patience, asyncio.get_running_loop()
        accept = "text/event-stream" if ask.is_stream else "application/json"
        headers = {"content-type": "application/json", "accept": accept}
        try:
            async with (
                asyncio.timeout(patience.first_event_s) as pause,
                self._http.stream(
                    "POST", self._place(ask.path), content=ask.body, headers=headers
                ) as answer,
            ):
                found.status = answer.status_code
                if answer.status_code == 429 and (seconds := _retry_after(answer)) is not None:
                    return seconds
                if answer.status_code != 200:
                    raise StreamError(problem_words(answer.status_code, await _beginning(answer)))
                stream = watched(answer, self._selector, self._clock)
                read = read_events if ask.is_stream else _read_whole
                async with aclosing(read(answer)) as events:
                    async for data in events:
                        if found.is_whole:  # what follows the end means nothing
                            continue
                        now_s = self._clock()
                        tokens = _see(found, data, now_s)
                        pause_s = LINGER_S if found.ended_s else patience.event_s
                        pause.reschedule(loop.time() + pause_s)
                        on_event(now_s - stream.arrived_s, tokens)
        except TimeoutError:
            if not pause.expired():
                raise
            if found.is_whole:
                return None
            limit_s = patience.event_s if found.events else patience.first_event_s
            what = "next" if found.events else "first"
            raise StreamError(f"the {what} event did not come within {limit_s:g} s") from None
        if not found.ended_s:
            raise StreamError(f"the stream ended without {DONE}")
        if found.reply.finish_reason is None:
            raise StreamError("the stream ended without a finish_reason")
        return None


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Let the signals that interrupt a run cancel the work, which then lets go of everything.

    An exception that a handler raises somewhere in the middle of an event loop breaks it.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        loop.add_signal_handler(number, task.cancel)
    try:
        return await work
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


@dataclass(slots=True)
class _Running(Generic[R]):
    """Requests on their way."""

    client: LoadClient[R]
    asks: Sequence[Ask]
    on_tokens: OnTokens
    exchanges: dict[int, Exchange[R]] = field(default_factory=dict)
    delay: ClientDelay = field(default_factory=ClientDelay)

    async def send(self, place: int, due_s: float) -> None:
        found = await self.client.exchange(self.asks[place], due_s, self._count)
        self.exchanges[place] = found
        self.delay.stream_s += found.ended_s - due_s

    def _count(self, late_s: float, tokens: int) -> None:
        self.delay.events += 1
        self.delay.delay_s += late_s
        self.on_tokens(tokens)


def _see(found: Exchange[R], data: str, now_s: float) -> int:
    """Take an event in; returns the tokens it brought."""
    if found.ended_s:
        return 0
    found.events += 1
    found.characters += len(data)
    if found.characters > MAX_REPLY_CHARACTERS:
        raise StreamError(f"the reply has more than {MAX_REPLY_CHARACTERS} characters")
    if data == DONE:
        found.ended_s = now_s
        return 0
    return found.reply.see(_document(data), now_s)


async def read_events(answer: httpx2.Response) -> AsyncGenerator[str]:
    """Yield the data of each event of a response, however its bytes are cut.

    Raises:
        httpx2.HTTPError: the connection broke, or the response is no event stream.
    """
    async for event in httpx2.EventSource(answer, max_event_size=MAX_EVENT_BYTES):
        if event.data:
            yield event.data


async def _read_whole(answer: httpx2.Response) -> AsyncGenerator[str]:
    """Yield a body as the one event of a stream.

    Raises:
        httpx2.HTTPError: the connection broke.
    """
    yield (await answer.aread()).decode("utf-8", "replace")
    yield DONE


def _document(data: str) -> Any:
    """Return an event's document.

    Raises:
        StreamError: it is no JSON, or an error.
    """
    try:
        document = parsed(data)
    except ValueError:
        raise StreamError(f"an event is no JSON: {data[:80]!r}") from None
    if isinstance(document, dict) and document.get("error"):
        raise StreamError(f"the stream broke off: {message_words(document['error'])}")
    return document


async def _beginning(answer: httpx2.Response, most: int = MAX_PROBLEM_BYTES) -> bytes:
    """Return the bytes of a response, of a longer one a little more than so many."""
    found = bytearray()
    async for part in answer.aiter_bytes():
        found += part
        if len(found) > most:
            break
    return bytes(found)


def _retry_after(answer: httpx2.Response) -> float | None:
    """Return the seconds that a 429 names, None where it names none that can be waited for."""
    value = answer.headers.get("retry-after", "")
    return min(float(value), MAX_RETRY_S) if value.isascii() and value.isdecimal() else None
