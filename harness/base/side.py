"""One side of a comparison as a target: another checkout's engine in a child process.

The child is started when it is first needed. One that is gone is started again by the next trial:
what it lost is that trial.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.errors import DownloadError, FmError
from harness.base import forms
from harness.base.child import PROTOCOL
from harness.cells.cell import Cell
from harness.line_child import ChildGoneError, ChildSilentError, LineChild
from harness.store.codec import decode
from harness.store.record_form import record_from
from harness.store.rows import DivergenceRow, LawRow, ModelRow, TrialRecord
from harness.trials.target import (
    CannotRunError,
    OnTokens,
    Parting,
    SampledReply,
    Tell,
    TrialJob,
    ignore_tokens,
    timeout_s,
)
from harness.workloads.workload import Workload

OPEN_TIMEOUT_S = 1800.0
"""A model may have to be fetched and converted first."""

JUDGE_TIMEOUT_S = 600.0

Answer = Mapping[str, Any]


class SideError(FmError):
    """The process of a side failed, is gone, or does not answer."""


class SideProcess:
    """One child process that runs a checkout; a context that ends it whatever happens.

    Args:
        label: what people call the side.
        root: the checkout.
        tell: takes lines for people.

    Raises:
        SideError: it did not start, or runs other code than that of `root`.
    """

    def __init__(self, label: str, root: Path, target: str, tell: Tell) -> None:
        self._label, self._tell = label, tell
        # Without -P the folder in which fm was started would come before the checkout.
        command = (sys.executable, "-P", "-m", "harness.base.child")
        env = os.environ | {"PYTHONPATH": _import_path(root)}
        self._child = LineChild(command, f"{label}-reader", env)
        try:
            begun = self.ask({"do": "begin", "target": target}, OPEN_TIMEOUT_S)
            self._check_code(begun, root)
            self.takes_turns = bool(begun.get("takes_turns"))
        except BaseException:
            self.close()
            raise

    @property
    def is_alive(self) -> bool:
        """True until it was closed or ended by itself."""
        return self._child.is_alive

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def ask(
        self, command: Mapping[str, Any], limit_s: float, on_tokens: OnTokens = ignore_tokens
    ) -> Answer:
        """Send one command and return its answer.

        Args:
            limit_s: longest silence; the child is ended after it.

        Raises:
            CannotRunError, DownloadError: as the side's target raised them.
            SideError: everything else that went wrong.
        """
        try:
            self._child.send(command)
            while not {"done", "error"} & (answer := self._child.receive(limit_s)).keys():
                self._take(answer, on_tokens)
        except ChildSilentError:
            raise SideError(
                f"the {self._label} side gave no answer in {limit_s:.0f} s and was stopped; try "
                "fewer tokens"
            ) from None
        except ChildGoneError as gone:
            raise SideError(f"the {self._label} side ended: {gone}") from None
        if "error" in answer:
            raise _error(self._label, answer)
        done: Answer = answer["done"]
        return done

    def close(self) -> None:
        """End the child; safe to call twice."""
        self._child.close()

    def _take(self, part: Answer, on_tokens: OnTokens) -> None:
        if "tokens" in part:
            on_tokens(part["tokens"])
        if "note" in part:
            self._tell(f"{self._label}: {part['note']}")

    def _check_code(self, begun: Answer, root: Path) -> None:
        found, wanted = Path(begun["root"]), root.resolve()
        if found != wanted:
            raise SideError(
                f"the {self._label} side runs the fm of {found} and not that of {wanted}; "
                "start fm from a checkout that is not installed over others"
            )
        if begun["protocol"] != PROTOCOL:
            raise SideError(
                f"the {self._label} side speaks version {begun['protocol']} of the trial protocol "
                f"and this fm version {PROTOCOL}; name a commit nearer to this one with --base"
            )


class Side:
    """A target that another checkout's code runs.

    Args:
        label: "head" or "base".
        name: of the target within the side.
    """

    def __init__(self, label: str, root: Path, name: str, tell: Tell) -> None:
        self.label, self.root, self.name = label, root, name
        self._tell = tell
        self._process: SideProcess | None = None
        self._model = ""
        self._row: ModelRow | None = None
        self._known: set[str] = set()

    @property
    def pid(self) -> int | None:
        """The child's process id, None before it was started."""
        return None if self._process is None else self._process.pid

    @property
    def takes_turns(self) -> bool:
        """False where the child's code knows of no turns: it begins each as it begins a trial."""
        return self._process is None or self._process.takes_turns

    def open(self, model: str) -> ModelRow:
        """Open a model in the child; what is open already stays open."""
        if self._row is None or model != self._model or not self._is_alive():
            # A side that could not open another model has none open.
            self._row = None
            self._row = self._open(model)
        return self._row

    def check(self, cell: Cell, workload: Workload) -> None:
        """Let the child build what the cell needs."""
        self._teach(workload)
        command = {"do": "check", "cell": forms.cell_form(cell), "workload": workload.digest}
        self._started().ask(command, OPEN_TIMEOUT_S)

    def run(self, job: TrialJob, on_tokens: OnTokens) -> TrialRecord:
        """Run a turn in the child, which is started again where it was lost."""
        if not self._is_alive():
            self.open(self._model)
        self._teach(job.workload)
        limit_s = timeout_s(job.max_tokens * len(job.prompts))
        command = {"do": "run", "job": forms.job_form(job)}
        return record_from(self._started().ask(command, limit_s, on_tokens)["record"])

    def judge(self, parting: Parting) -> Sequence[DivergenceRow]:
        """Ask the side's own oracle."""
        self._teach(parting.workload)
        command = {"do": "judge", "parting": forms.parting_form(parting)}
        rows = self._started().ask(command, JUDGE_TIMEOUT_S)["rows"]
        return [decode(DivergenceRow, row) for row in rows]

    def weigh(self, reply: SampledReply) -> LawRow:
        """Ask the side's own oracle."""
        self._teach(reply.workload)
        command = {"do": "weigh", "reply": forms.sampled_form(reply)}
        return decode(LawRow, self._started().ask(command, JUDGE_TIMEOUT_S)["row"])

    def close(self) -> None:
        """End the child."""
        if self._process is not None:
            self._process.close()
        self._process, self._row = None, None
        self._known.clear()

    def _open(self, model: str) -> ModelRow:
        if not self._is_alive():
            self.close()
            self._process = SideProcess(self.label, self.root, self.name, self._tell)
        answer = self._started().ask({"do": "open", "model": model}, OPEN_TIMEOUT_S)
        self._model = model
        return decode(ModelRow, answer["model"])

    def _teach(self, workload: Workload) -> None:
        """Send a workload that the child does not know yet."""
        if workload.digest not in self._known:
            command = {"do": "workload", "workload": forms.workload_form(workload)}
            self._started().ask(command, OPEN_TIMEOUT_S)
            self._known.add(workload.digest)

    def _is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive

    def _started(self) -> SideProcess:
        assert self._process is not None, "open() comes first"
        return self._process


def _import_path(root: Path) -> str:
    """Return PYTHONPATH with a checkout before everything that was there."""
    return os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))


def _error(label: str, answer: Answer) -> FmError:
    text, kind = answer["error"], answer["kind"]
    if kind == "cannot-run":
        return CannotRunError(text)
    return DownloadError(text) if kind == "download" else SideError(f"{label}: {text}")
