"""Recovery on a real model: a run that is killed at random moments, and what is left of it.

`fm run` is started in a process of its own, killed with SIGKILL, gone on with, killed again, and in
the end left alone. Then everything that was planned has to be there once, and every reply has to
have the tokens it has in a run that nobody disturbed. Run it with `scripts/audit --kills`.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from harness import exit_codes
from harness.planning.choices import DEFAULT_MODELS
from harness.store import EvalStore, RunData, TrialRow

FM = (sys.executable, "-m", "harness.cli")
MATRIX = (
    *("--cells", "batch2,spec+grammar", "--workloads", "short-chat,json-extract"),
    *("--blocks", "2", "--prompts", "2", "--max-tokens", "24"),
)
LIMIT_S = 3600.0
"""A process that takes longer hangs."""

DATABASE = "fm.db"
MAX_KILLS = 10
"""More than half as many kills as trials would strike the same place twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What became of a run that was killed.

    Args:
        done_at_kills: trials that were done when each kill struck.
        trials: trials that were planned and not skipped.
        problems: what is not as it must be, one line each.
    """

    model: str
    kills: int
    done_at_kills: tuple[int, ...]
    trials: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kill:
    """When a process is killed: once it has told of so many trials, and some seconds more."""

    after_trials: int
    pause_s: float


def recover(
    model: str, kills: int, seed: int, folder: Path, say: Callable[[str], None]
) -> Recovery:
    """Run the matrix twice, once killed at random moments, and compare.

    Args:
        folder: an empty one.
        say: takes a line of progress.
    """
    draw = random.Random(seed)
    calm, killed = folder / "calm", folder / "killed"
    arguments: tuple[str, ...] = ("run", "--models", model, *MATRIX)
    started_s = time.monotonic()
    problems = _run(calm, arguments)
    expected = stored(calm)
    trials = len(_planned(expected))
    trial_s = (time.monotonic() - started_s) / trials
    say(f"undisturbed: {trials} trials in {trials * trial_s:.0f} s")
    done: list[int] = []
    for number in range(kills):
        # Each kill has a part of the run to itself, so that all strike in the middle of it.
        place = draw.randrange(trials * number // kills, trials * (number + 1) // kills)
        kill = Kill(max(0, place - (done[-1] if done else 0)), draw.uniform(0.0, trial_s))
        problems += _run(killed, arguments, kill)
        arguments = ("run", "--resume", "latest")
        done.append(_num_done(stored(killed)))
        say(f"kill {number + 1}: {done[-1]} trials are done")
    problems += [*_run(killed, arguments), *differences(stored(killed), expected)]
    return Recovery(
        model=model,
        kills=kills,
        done_at_kills=tuple(done),
        trials=trials,
        problems=tuple(problems),
    )


def differences(data: RunData, expected: RunData) -> list[str]:
    """Return what a run that was disturbed lacks, has twice, or says otherwise."""
    problems = []
    undone = [row for row in _planned(data) if row.status != "done"]
    if undone or len(_planned(data)) != len(_planned(expected)):
        problems.append(f"{len(undone)} of {len(_planned(data))} trials are not done")
    found, wanted = list(_replies(data)), list(_replies(expected))
    if len(set(found)) != len(found):
        problems.append(f"{len(found) - len(set(found))} replies are there twice")
    lost, added = set(wanted) - set(found), set(found) - set(wanted)
    if lost or added:
        problems.append(f"{len(lost)} replies are lost or differ, {len(added)} are new")
    if _verdicts(data) != _verdicts(expected):
        problems.append("the gates differ")
    return problems


def stored(folder: Path) -> RunData:
    """Return the run in a folder's database, which has to be sound."""
    with EvalStore.open_existing(folder / DATABASE) as store:
        problems = store.integrity_problems()
        assert not problems, problems
        return store.load_run(store.find_run("latest").run_id)


def _replies(data: RunData) -> Iterator[tuple[object, ...]]:
    trials = {row.trial_id: (row.workload, row.cell, row.block) for row in data.trials}
    for row in data.requests:
        if row.phase == "measured":
            yield (*trials[row.trial_id], row.prompt_id, row.token_ids, row.finish_reason)


def _verdicts(data: RunData) -> list[tuple[str, str, str, str]]:
    return [(row.name, row.workload, row.cell, row.status) for row in data.gates]


def _planned(data: RunData) -> list[TrialRow]:
    return [row for row in data.trials if row.status != "skipped"]


def _num_done(data: RunData) -> int:
    return sum(row.status == "done" for row in data.trials)


def _run(folder: Path, arguments: Sequence[str], kill: Kill | None = None) -> list[str]:
    """Run `fm` in a folder, to its end or until it is killed; return what is wrong."""
    folder.mkdir(exist_ok=True)
    with (
        (folder / "out.txt").open("w", encoding="utf-8") as out,
        subprocess.Popen(
            [*FM, *arguments, "--db", DATABASE, "--quiet"],
            cwd=folder,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stderr is not None
        told = 0
        lines = []
        while kill is None or told < kill.after_trials:
            line = process.stderr.readline()
            if not line:
                break
            lines.append(line)
            told += "/" in line.split(" ")[0]
        if kill is not None:
            time.sleep(kill.pause_s)
            process.kill()
        lines += process.stderr.readlines()
        code = process.wait(LIMIT_S)
    if code in (exit_codes.PASS, -signal.SIGKILL if kill else exit_codes.PASS):
        return []
    return [f"fm {' '.join(arguments)} exits with {code}: {' '.join(lines[-1:]).strip()}"]


@click.command(help=__doc__)
@click.option("--model", default=DEFAULT_MODELS[0], show_default=True)
@click.option("--kills", type=click.IntRange(1, MAX_KILLS), default=2, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False))
def main(model: str, kills: int, seed: int, json_path: Path | None) -> None:
    """Kill runs of one model; exits 3 when something is lost, doubled or different."""
    with tempfile.TemporaryDirectory() as folder:
        found = recover(model, kills, seed, Path(folder), click.echo)
    for problem in found.problems:
        click.echo(f"FAIL  {problem}")
    click.echo(
        f"{found.trials} trials of {model}, killed when {', '.join(map(str, found.done_at_kills))} "
        f"were done: {len(found.problems)} problems"
    )
    if json_path is not None:
        json_path.write_text(json.dumps(asdict(found), indent=1), encoding="utf-8")
    sys.exit(exit_codes.CORRECTNESS if found.problems else exit_codes.PASS)


if __name__ == "__main__":
    main()
