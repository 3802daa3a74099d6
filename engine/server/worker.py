"""The one engine thread: it opens the engine, steps it, and hands rows to the event loop.

MLX binds streams to threads, so the engine lives where it is stepped. Requests are submitted from
other threads, as the engine allows; what they are told is handed over once a step.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import mlx.core as mx

from engine.errors import FmError
from engine.loop import Engine
from engine.request import Completion, Request, TokenEvent
from engine.server.problem import HttpError, refusal
from engine.server.totals import Totals

LOGGER = logging.getLogger("fm.server")


class State(StrEnum):
    """Whether requests are served; only SERVING is healthy."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STUCK = "stuck"
    DEAD = "dead"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Told:
    """One event of one row.

    Args:
        row: which row of the job.
        completion: the row's record, on its last event.
    """

    row: int
    event: TokenEvent
    completion: Completion | None


class Job:
    """The rows of one HTTP request, as the event loop sees them; made inside the loop.

    Args:
        timeout_s: how long its rows may take, from now.
    """

    def __init__(self, worker: EngineWorker, timeout_s: float) -> None:
        self.name = secrets.token_hex(12)
        self.is_closed = False
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Queue[Sequence[Told] | HttpError] = asyncio.Queue()
        late = HttpError(504, f"the reply took longer than {timeout_s:g} s", code="timeout")
        # One timer for all steps: to set and cancel one for each took a tenth of the loop's time.
        self._ending = self._loop.call_later(timeout_s, self._told.put_nowait, late)

    async def steps(self) -> AsyncIterator[Sequence[Told]]:
        """Yield what each step told, without end: the reader knows when its rows have ended.

        Raises:
            HttpError: the time is up, or the engine thread has ended.
        """
        while True:
            told = await self._told.get()
            if isinstance(told, HttpError):
                raise told
            yield told

    def tell(self, told: Sequence[Told] | HttpError) -> None:
        """Hand over what a step told; from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._told.put_nowait, told)
        except RuntimeError:
            LOGGER.debug("the event loop is closed")

    def close(self) -> None:
        """End the rows that are still live; they hold nothing after the next step."""
        self.is_closed = True
        self._ending.cancel()
        self._worker.abandon(self)


@dataclass(frozen=True, slots=True)
class _Place:
    """Whom a row belongs to."""

    job: Job
    row: int


class EngineWorker:
    """Runs one engine on a thread of its own.

    Args:
        open_engine: makes the engine, in that thread.
        max_waiting: rows that may wait beyond those the engine decodes together.
        stuck_after_s: how long one step may take before the state is STUCK.
        on_open: called in that thread when the engine is open.
    """

    def __init__(
        self,
        open_engine: Callable[[], Engine],
        *,
        max_waiting: int,
        stuck_after_s: float,
        on_open: Callable[[Engine], None] = lambda _engine: None,
    ) -> None:
        self.totals = Totals()
        self.failure: BaseException | None = None
        self._open_engine = open_engine
        self._max_waiting = max_waiting
        self._stuck_after_s = stuck_after_s
        self._on_open = on_open
        self._on_failure: Callable[[], None] = lambda: None
        self._engine: Engine | None = None
        self._places: dict[str, _Place] = {}
        self._leaving: deque[str] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_draining = self._is_stopping = False
        self._step_began_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="fm-engine", daemon=True)

    # -- from any thread -----------------------------------------------------------------------

    @property
    def state(self) -> State:
        """How things stand; waits for nothing."""
        if self.failure is not None:
            return State.DEAD
        if self._is_stopping:
            return State.STOPPED
        if self._engine is None:
            return State.STARTING
        if not self._thread.is_alive():
            return State.DEAD
        began_s = self._step_began_s
        if began_s is not None and time.monotonic() - began_s > self._stuck_after_s:
            return State.STUCK
        return State.DRAINING if self._is_draining else State.SERVING

    @property
    def opened(self) -> Engine | None:
        """The engine, None before it is open."""
        return self._engine

    @property
    def engine(self) -> Engine:
        """The engine, while it takes requests.

        Raises:
            HttpError: requests are not served now.
        """
        state, engine = self.state, self._engine
        if engine is None or state is not State.SERVING:
            raise _unavailable(state)
        return engine

    @property
    def num_rows(self) -> int:
        """Rows submitted and not ended."""
        return len(self._places)

    def check_room(self, num_rows: int, num_coming: int = 0) -> None:
        """Raise HttpError when so many more rows would be too many.

        Args:
            num_coming: requests that are read and not submitted yet.
        """
        most = self._max_waiting + self.engine.config.max_rows
        if num_rows > most:
            raise refusal(f"{num_rows} choices in one request; the server takes {most}", "n")
        num_ahead = len(self._places) + num_coming
        if num_ahead + num_rows > most:
            raise HttpError(
                429,
                f"{num_ahead} choices are decoded or wait; try again later",
                code="too_many_requests",
                kind="rate_limit_error",
            )

    def submit(self, job: Job, requests: Sequence[Request], copies: int) -> None:
        """Queue the rows of a job: `copies` of each request, numbered in that order.

        Blocks while a constraint is compiled.

        Raises:
            HttpError: requests are not served now, or too many wait.
            RequestError: one of them is refused; then no row of the job is left.
        """
        engine = self.engine
        named = [
            replace(request, request_id=f"{job.name}-{index}")
            for index, request in enumerate(requests)
        ]
        ids = [f"{request.request_id}/{copy}" for request in named for copy in range(copies)]
        self._register(job, ids)
        try:
            for request in named:
                engine.submit_copies(request, copies)
                self._wake.set()
        except BaseException:
            self._abandon(ids)
            raise
        if job.is_closed:  # the client left while a constraint was compiled
            self._abandon(ids)

    def abandon(self, job: Job) -> None:
        """End the rows of a job before the next step."""
        with self._lock:
            ids = [row_id for row_id, place in self._places.items() if place.job is job]
        self._abandon(ids)

    def drain(self) -> None:
        """Refuse new rows; live ones go on."""
        self._is_draining = True

    def give_up(self) -> None:
        """End the live rows before the next step, and tell whoever waits for them."""
        with self._lock:
            ids = list(self._places)
        self._fail_all(State.STOPPED)
        self._abandon(ids)

    def start(self, on_failure: Callable[[], None] = lambda: None) -> None:
        """Start the thread, which opens the engine.

        Args:
            on_failure: called in that thread when it ends with an error.
        """
        self._on_failure = on_failure
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> bool:
        """End the thread behind its step; live rows are told. Returns whether it ended."""
        self._is_stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _register(self, job: Job, ids: Sequence[str]) -> None:
        with self._lock:
            self.check_room(len(ids))
            self._places |= {row_id: _Place(job, row) for row, row_id in enumerate(ids)}

    def _abandon(self, ids: Sequence[str]) -> None:
        with self._lock:
            for row_id in ids:
                self._places.pop(row_id, None)
        self._leaving.extend(ids)
        self._wake.set()

    # -- in the engine's thread ----------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # the thread's end is told, and health says so
            self.failure = error
            if not isinstance(error, FmError):  # those are told to whoever started the server
                LOGGER.error("the engine thread ended: %s", type(error).__name__)
            LOGGER.debug("what it ended with", exc_info=error)
        finally:
            self._fail_all(self.state)
            # Streams that outlive their thread abort the process at its exit.
            mx.clear_streams()
            if self.failure is not None:
                self._on_failure()

    def _serve(self) -> None:
        engine = self._open_engine()
        self._engine = engine
        self._on_open(engine)
        while not self._is_stopping:
            self._wake.clear()
            self._end_leavers(engine)
            if engine.has_work:
                self._step(engine)
            elif not self._leaving and not self._is_stopping:
                self._wake.wait()

    def _step(self, engine: Engine) -> None:
        began_s = self._step_began_s = time.monotonic()
        last_step = engine.last_step
        try:
            events = engine.step()
        except Exception as error:  # the engine starts its rows over, or ends them
            self.totals.failed_steps += 1
            LOGGER.error("a step failed: %s", type(error).__name__)
            LOGGER.debug("what it failed with", exc_info=error)
            return
        finally:
            self._step_began_s = None
        if engine.last_step is not None and engine.last_step is not last_step:
            self.totals.decode.add(engine.last_step, time.monotonic() - began_s)
        self._hand_over(engine, events)

    def _hand_over(self, engine: Engine, events: Sequence[TokenEvent]) -> None:
        told: dict[Job, list[Told]] = {}
        for event in events:
            has_ended = event.finish_reason is not None
            completion = engine.completion(event.request_id) if has_ended else None
            with self._lock:
                find = self._places.pop if has_ended else self._places.get
                place = find(event.request_id, None)
            if completion is not None:
                self.totals.add(completion)
            if place is not None:
                told.setdefault(place.job, []).append(Told(place.row, event, completion))
        for job, items in told.items():
            job.tell(items)

    def _end_leavers(self, engine: Engine) -> None:
        while self._leaving:
            row_id = self._leaving.popleft()
            if engine.cancel(row_id):
                self.totals.add(engine.completion(row_id))

    def _fail_all(self, state: State) -> None:
        with self._lock:
            jobs = {place.job for place in self._places.values()}
            self._places.clear()
        for job in jobs:
            job.tell(_unavailable(state))


def _unavailable(state: State) -> HttpError:
    return HttpError(503, f"the engine is {state}; try again later", code=f"engine_{state}")
