"""Threads with deep stacks for compiles, and a time limit for whoever waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from engine.errors import SchemaError

STACK_BYTES = 64 * 2**20
"""The compiler recurses by about 9 kB a level; threads get 8 MB on Linux and 0.5 MB on macOS."""

NUM_THREADS = 4
"""A compile past its limit cannot be stopped; it holds a thread, and the others go on."""

P = ParamSpec("P")
T = TypeVar("T")

_stack_lock = threading.Lock()


class DeepPool:
    """Runs compiles off the caller's thread.

    Args:
        timeout_s: longest wait for a result.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="fm-grammar")

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start `work` on a thread of the pool."""
        # A thread takes the size that is set when it starts, which is inside submit.
        with _stack_lock:
            previous = threading.stack_size(STACK_BYTES)
            try:
                return self._threads.submit(work, *args, **kwargs)
            finally:
                threading.stack_size(previous)

    def wait(self, future: Future[T]) -> T:
        """Return what a submitted work returned, or raise what it raised.

        Raises:
            SchemaError: it is not ready within the time limit.
        """
        try:
            return future.result(self._timeout_s)
        except TimeoutError as error:
            raise SchemaError(
                f"the constraint takes longer to compile than the limit of {self._timeout_s} s"
            ) from error
