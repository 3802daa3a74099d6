"""A child process that is asked and answers in lines of JSON, and ends with whoever started it.

Nothing a child does holds its parent: it may be silent, end at any moment, or write what is no
JSON. What it writes to standard error is kept for its last words.
"""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

STOP_TIMEOUT_S = 5.0
MAX_LAST_WORDS = 300


class ChildGoneError(Exception):
    """The child has ended, or wrote what is no JSON; its text is the last line the child wrote."""


class ChildSilentError(Exception):
    """The child did not answer in time; it has been ended."""


class LineChild:
    """One child process; close() ends it whatever happens.

    Args:
        command: program and arguments.
        name: of the thread that reads its answers.
        env: its environment, None for this process's own.
    """

    def __init__(
        self, command: Sequence[str], name: str, env: Mapping[str, str] | None = None
    ) -> None:
        # Open as long as the child lives: close() ends both.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # close() does
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            # What is no UTF-8 is no answer either: it must not end the thread that reads.
            errors="replace",
            env=env,
            # A Ctrl-C on the terminal is for fm, which then ends the child in order.
            start_new_session=True,
        )
        self._last_words = ""
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)
        self._reader.start()

    @property
    def is_alive(self) -> bool:
        """True until it was closed or ended by itself."""
        return not self._errors.closed and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def send(self, message: Mapping[str, Any]) -> None:
        """Write one line; ChildGoneError where nobody reads it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._gone() from None

    def receive(self, limit_s: float) -> Mapping[str, Any]:
        """Return its next line; after an error the child has been ended.

        Raises:
            ChildSilentError: none came for `limit_s` seconds.
            ChildGoneError: it has ended, or the line is no JSON object.
        """
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            self._process.kill()
            self.close()
            raise ChildSilentError from None
        try:
            answer = json.loads(line)
        except ValueError:
            raise self._gone() from None
        if not isinstance(answer, dict):
            raise self._gone()
        return answer

    def close(self) -> None:
        """End the child; safe to call twice."""
        if self._errors.closed:
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        status = f"status {self._process.returncode}"
        self._last_words = lines[-1][:MAX_LAST_WORDS] if lines else status
        self._errors.close()

    def _gone(self) -> ChildGoneError:
        """End what is left of the child, and return what it said last."""
        self._process.kill()
        self.close()
        return ChildGoneError(self._last_words)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                self._lines.put(line)
        self._lines.put("")
