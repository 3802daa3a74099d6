"""The child process of one side: this version's engine, driven by JSON lines.

Run as `python -P -m harness.base.child`, with this version's checkout on PYTHONPATH. Each line on
standard input is a command; it is answered by lines on standard output, of which the last holds
`done` or `error`. Everything that libraries print goes to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import harness
from engine.errors import DownloadError, FmError, bug_line
from harness.base import forms
from harness.child_stdio import die_with_parent, private_stdout
from harness.store.codec import encode
from harness.store.record_form import record_form
from harness.targets.names import target_of
from harness.trials.clock import Clock, monotonic
from harness.trials.target import CannotRunError, Target
from harness.workloads.workload import Workload

PROTOCOL = 1
"""Raised when commands or answers change in a way that an older side would misread."""

PROGRESS_EVERY_S = 0.5
"""A line a step would wake up the parent, which shares the cores with what is measured."""

Command = Mapping[str, Any]
Say = Callable[[Mapping[str, Any]], None]


class Side:
    """Answers commands about one target.

    Args:
        say: takes an answer, or a part of one.
    """

    def __init__(self, say: Say, clock: Clock = monotonic) -> None:
        self._say = say
        self._clock = clock
        self._target: Target | None = None
        self._workloads: dict[str, Workload] = {}
        self._told_s = 0.0
        self._emitted = 0

    def answer(self, command: Command) -> Mapping[str, Any]:
        """Return the answer of a command; raises what the target raises."""
        commands: dict[str, Callable[[Command], Mapping[str, Any]]] = {
            "begin": self._begin,
            "open": lambda asked: {"model": encode(self._opened().open(asked["model"]))},
            "workload": self._learn,
            "check": self._check,
            "run": self._run,
            "judge": self._judge,
            "weigh": self._weigh,
        }
        return commands[command["do"]](command)

    def close(self) -> None:
        """Free what the target holds."""
        if self._target is not None:
            self._target.close()

    def _begin(self, command: Command) -> Mapping[str, Any]:
        self._target = target_of(command["target"], lambda line: self._say({"note": line}))
        root = str(Path(harness.__file__).resolve().parents[1])
        return {"protocol": PROTOCOL, "root": root, "takes_turns": True}

    def _learn(self, command: Command) -> Mapping[str, Any]:
        workload = forms.workload_from(command["workload"])
        self._workloads[workload.digest] = workload
        return {}

    def _check(self, command: Command) -> Mapping[str, Any]:
        self._opened().check(forms.cell_from(command["cell"]), self._workload(command))
        return {}

    def _run(self, command: Command) -> Mapping[str, Any]:
        job = forms.job_from(command["job"], self._workload(command["job"]))
        self._told_s, self._emitted = self._clock(), 0
        record = self._opened().run(job, self._progress)
        return {"record": record_form(record)}

    def _judge(self, command: Command) -> Mapping[str, Any]:
        form = command["parting"]
        rows = self._opened().judge(forms.parting_from(form, self._workload(form)))
        return {"rows": [encode(row) for row in rows]}

    def _weigh(self, command: Command) -> Mapping[str, Any]:
        form = command["reply"]
        reply = forms.sampled_from(form, self._workload(form))
        return {"row": encode(self._opened().weigh(reply))}

    def _progress(self, count: int) -> None:
        self._emitted += count
        now_s = self._clock()
        if now_s - self._told_s >= PROGRESS_EVERY_S:
            self._say({"tokens": self._emitted})
            self._told_s, self._emitted = now_s, 0

    def _opened(self) -> Target:
        assert self._target is not None, "begin comes first"
        return self._target

    def _workload(self, form: Command) -> Workload:
        return self._workloads[form["workload"]]


def serve(commands: Iterator[str], answers: TextIO) -> None:
    """Answer each command line, until the commands end; an error ends no more than its command."""

    def say(content: Mapping[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    side = Side(say)
    for line in commands:
        try:
            answer: dict[str, Any] = {"done": side.answer(json.loads(line))}
        except FmError as error:
            answer = {"error": str(error), "kind": _kind(error)}
        except Exception as error:  # noqa: BLE001  # the run loop of the parent records and goes on
            answer = {"error": bug_line(error), "kind": "bug"}
        say(answer)
    side.close()


def _kind(error: FmError) -> str:
    """Return which errors a caller treats in a way of their own."""
    if isinstance(error, CannotRunError):
        return "cannot-run"
    return "download" if isinstance(error, DownloadError) else "error"


def main() -> None:
    """Serve until standard input closes."""
    answers = private_stdout()
    die_with_parent()
    from engine.backend import require_backend

    require_backend()
    serve(iter(sys.stdin.readline, ""), answers)


if __name__ == "__main__":
    main()
