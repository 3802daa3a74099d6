"""Lives of a run: sessions in children of one warm process, so that a hundred can end badly.

Started as a script it reads orders from standard input, one JSON list a line, and answers each
with how its lives ended. A life is a whole session with a scripted target on a real database, in a
child that is forked.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

from engine.errors import FmError
from harness import exit_codes
from harness.conditions.reading import Reading
from harness.conditions.watch import Watch
from harness.planning.choices import Choices
from harness.running import session as sessions
from harness.running.conclusion import Concluded, Places
from harness.running.progress import LineProgress
from harness.running.session import Session, matrix_of
from harness.store import TrialRecord, utc_now
from harness.trials.target import OnTokens, TrialJob
from harness.workloads.workload import Prompt
from tests.harness.scripted import Scripted

ROOT = Path(__file__).parents[2]
CHOICES = Choices(
    cells=("batch2", "spec+grammar", "spec@rejection"),
    models=("tiny-thinking",),
    workloads=("json-extract",),
    blocks=2,
    prompts=2,
    temperature=0.5,
)
COUNT = -1
"""As the event that ends a life: none does, and they are counted."""

LIMIT_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One session and how it is disturbed.

    Args:
        folder: where its database and its reports lie.
        resume: the run to go on with, "" for a new one.
        signal: what ends it, at the event of this number (a call or return of any function), or
            after this time; neither lets it live.
        from_trial: events are counted from when this trial of its own began, 1 for its first; 0
            for from the life's begin.
        file_limit: most bytes of a file, 0 for no limit.
    """

    folder: str
    resume: str = ""
    signal: int = signal.SIGKILL
    at_event: int = 0
    from_trial: int = 0
    after_s: float = 0.0
    file_limit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a life ended.

    Args:
        code: exit code, or minus the signal that ended it.
        events: calls and returns that were counted, 0 where it was killed or none were.
        trials: how many had been counted when each trial began.
        out: what it printed.
    """

    code: int
    events: int
    trials: tuple[int, ...]
    seconds: float
    out: str


class Varied(Scripted):
    """Speeds that differ by cell and block, and one reply that parts by a near-tie."""

    def __init__(self) -> None:
        super().__init__(answer=self._reply, gap=1e-6)

    def run(self, job: TrialJob, on_tokens: OnTokens) -> TrialRecord:
        draw = random.Random(f"{job.cell.name}/{job.workload.name}/{job.trial.block}")
        self.speeds = {job.cell.name: draw.uniform(0.5, 1.5)}
        return super().run(job, on_tokens)

    @staticmethod
    def _reply(job: TrialJob, prompt: Prompt) -> tuple[int, ...]:
        is_parting = job.cell.name == "batch2" and prompt == job.prompts[0] and not job.trial.block
        return (9, 2, 3) if is_parting else (len(prompt.id), 1, 2, 3)


def session(folder: Path, target: Scripted | None = None, lock_wait_s: float = 60.0) -> Session:
    return Session(
        target=target or Varied(),
        places=Places(db=folder / "fm.db", reports=folder / "reports", lock_wait_s=lock_wait_s),
        progress=LineProgress(sys.stdout),
        fetching=lambda name: lambda received, total: None,
    )


def live(life: Life) -> Concluded:
    work = session(Path(life.folder))
    return work.resume(life.resume) if life.resume else work.start(matrix_of(CHOICES))


class Nursery:
    """The warm process, as a test sees it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.nursery"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *lives: Life) -> list[End]:
        """Let lives run, all at once, and return how they ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([asdict(life) for life in lives]) + "\n")
        self._process.stdin.flush()
        ends = json.loads(self._process.stdout.readline())
        return [End(**{**end, "trials": tuple(end["trials"])}) for end in ends]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=LIMIT_S)
        self._process.stdout.close()


def _glance(_roots: Sequence[int]) -> Reading:
    """Read the machine in a few calls: a whole reading would be most of a life's events."""
    return Reading(at=utc_now(), at_s=time.monotonic(), cpus=1)


def _serve() -> None:
    sessions.watch_of = lambda _target: Watch(preflight_s=0.0, read=_glance)
    # What is imported late is imported here, once for all children.
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        live(Life(folder=folder))
    for line in sys.stdin:
        lives = [Life(**item) for item in json.loads(line)]
        sys.stdout.write(json.dumps([asdict(end) for end in _ended(lives)]) + "\n")
        sys.stdout.flush()


def _ended(lives: Sequence[Life]) -> list[End]:
    births = [_born(life, place) for place, life in enumerate(lives)]
    for life, (pid, _, started_s) in zip(lives, births, strict=True):
        if life.after_s:
            time.sleep(max(0.0, started_s + life.after_s - time.monotonic()))
            os.kill(pid, life.signal)
    return [_end(*birth) for birth in births]


def _born(life: Life, place: int) -> tuple[int, Path, float]:
    out = Path(life.folder) / f"life-{place}.txt"
    started_s = time.monotonic()
    pid = os.fork()
    if not pid:
        _be(life, out)
    return pid, out, started_s


def _end(pid: int, out: Path, started_s: float) -> End:
    _, status = os.waitpid(pid, 0)
    seconds = time.monotonic() - started_s
    text = out.read_text(encoding="utf-8") if out.exists() else ""
    counts = text.rpartition("events: ")[2].split() if "events: " in text else ["0"]
    *trials, events = map(int, counts)
    code = os.waitstatus_to_exitcode(status)
    return End(code=code, events=events, trials=tuple(trials), seconds=seconds, out=text)


def _be(life: Life, out: Path) -> None:
    """Be the child: it never returns."""
    code = 70
    signal.alarm(LIMIT_S)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with out.open("w", encoding="utf-8", buffering=1) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            sys.stdout = sys.stderr = file
            code = _session(life)
    finally:
        os._exit(code)


def _session(life: Life) -> int:
    if life.file_limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (life.file_limit, life.file_limit))
    count, trials = 0, []
    ends_at = 0 if life.from_trial else life.at_event

    def watch(frame: FrameType, event: str, _what: Any) -> None:
        nonlocal count, ends_at
        count += 1
        if event == "call" and frame.f_code is Varied.run.__code__:
            trials.append(count)
            if len(trials) == life.from_trial:
                ends_at = count + life.at_event
        if count == ends_at:
            os.kill(os.getpid(), life.signal)

    if life.at_event:
        sys.setprofile(watch)
    try:
        concluded = live(life)
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except FmError as error:
        sys.stdout.write(f"{error}\n")
        return exit_codes.USAGE
    finally:
        sys.setprofile(None)
    counts = " ".join(map(str, [*trials, count]))
    sys.stdout.write("\n".join([*concluded.notes, f"events: {counts}"]))
    return concluded.exit_code


if __name__ == "__main__":
    _serve()
