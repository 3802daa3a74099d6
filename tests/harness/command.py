"""The command `fm` in a process of its own, and what any run of it comes to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import WAIT_S

ROOT = Path(__file__).parents[2]
FM = (sys.executable, "-m", "harness.cli")


@dataclass
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str


Fm = Callable[..., Done]
"""Takes the arguments of a command, and by name the environment variables it sees besides."""


def fm(folder: Path, *arguments: str, **variables: str) -> Done:
    """Run a command in a folder, as a process: it takes seconds to start."""
    done = subprocess.run(
        [*FM, *arguments],
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        timeout=3 * WAIT_S,
        check=False,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


HELD = """
import sys, time
from harness.cli import main
from harness.running.progress import LineProgress

moment, trials = sys.argv[1], int(sys.argv[2])
tell = getattr(LineProgress, moment)

def tell_and_hold(progress, *told):
    tell(progress, *told)
    if progress._done == trials:
        print("held", file=sys.stderr, flush=True)
        time.sleep(3600)

setattr(LineProgress, moment, tell_and_hold)
main(sys.argv[3:])
"""


def held(moment: str, num_trials: int) -> tuple[str, ...]:
    """Return the command `fm`, which says `held` and stands still in a run, to be ended there.

    Args:
        moment: `turn` before a turn of a trial begins, `tokens` as its first ones come.
        num_trials: how many are done then.
    """
    return (sys.executable, "-P", "-c", HELD, moment, str(num_trials))


def environment(**variables: str) -> dict[str, str]:
    """The environment of a process that runs the code of this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default", **variables}
