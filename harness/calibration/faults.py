"""Faults that a gate has to catch, put into a copy of this checkout one at a time, and none.

Run as `scripts/gate-faults`; each fault is one edit of the engine's source in the working tree of
the copy, whose only commit is the checkout as it is: `fm gate --base HEAD` has to find it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from harness import exit_codes

PARTS = ("engine", "harness", "cells", "policies", "workloads", "pyproject.toml")
"""What a copy of the checkout needs to run."""

AUTHOR = ("-c", "user.name=fm", "-c", "user.email=fm@localhost", "-c", "commit.gpgsign=false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One replacement in a source file; `old` has to be there exactly once."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault and how a gate shows it.

    Args:
        finding: kind and name of the finding that has to fail.
        cells: what is run to see it.
        blocks: how often.
        prompts: how many a trial; times take the longer trials.
        switches: engine switches set for the gate.
    """

    what: str
    edits: tuple[Edit, ...]
    finding: tuple[str, str]
    exit_code: int
    cells: str
    workload: str = "json-extract"
    blocks: int = 1
    prompts: int = 2
    switches: tuple[tuple[str, str], ...] = ()


FAULTS: dict[str, Fault] = {
    "slow-step": Fault(
        what="every step sleeps for 8 % of its time",
        edits=(
            Edit(
                path="engine/loop.py",
                old="        try:\n            self._timer.start()\n",
                new="        began_s = time.perf_counter()\n"
                "        try:\n            self._timer.start()\n",
            ),
            Edit(
                path="engine/loop.py",
                old="            chosen = flight.read(tokens)\n",
                new="            chosen = flight.read(tokens)\n"
                "            time.sleep(0.08 * (time.perf_counter() - began_s))\n",
            ),
        ),
        finding=("metric", "tok_s"),
        exit_code=exit_codes.REGRESSION,
        cells="serial",
        workload="short-chat",
        blocks=7,
        prompts=4,
        # A pipelined lane hides half of a sleep of the host behind the next step.
        switches=(("FM_PIPELINE", "0"),),
    ),
    "hidden-sleep": Fault(
        what="every step sleeps for 8 % of its time while the next one is under way",
        edits=(
            Edit(
                path="engine/loop.py",
                old="        try:\n            self._timer.start()\n",
                new="        began_s = time.perf_counter()\n"
                "        try:\n            self._timer.start()\n",
            ),
            Edit(
                path="engine/loop.py",
                old="                self._land(flight, chosen)\n",
                new="                time.sleep(0.08 * (time.perf_counter() - began_s))\n"
                "                self._land(flight, chosen)\n",
            ),
        ),
        finding=("metric", "host_ms"),
        exit_code=exit_codes.REGRESSION,
        cells="serial",
        workload="short-chat",
        blocks=7,
        prompts=2,
    ),
    "doubled-masks": Fault(
        what="every mask is filled twice",
        edits=(
            Edit(
                path="engine/flight.py",
                old="    failed = [places[index] for index, _ in fill_masks(",
                new="    fill_masks(list(jobs.values()), bitmask)\n"
                "    failed = [places[index] for index, _ in fill_masks(",
            ),
        ),
        finding=("counter", "mask_calls"),
        exit_code=exit_codes.REGRESSION,
        cells="serial+grammar",
    ),
    "cut-document": Fault(
        what="one document loses its last character",
        edits=(
            Edit(
                path="engine/sequence.py",
                old='        text = "".join(piece.text for piece in self.pieces)\n',
                new='        text = "".join(piece.text for piece in self.pieces)\n'
                "        if self.matcher is not None:\n"
                "            TOLD.append(text)\n"
                # The first ones are the warm-up, which nobody grades.
                "            text = text[:-1] if len(TOLD) == 3 else text\n",
            ),
            Edit(
                path="engine/sequence.py",
                old="\n\n@dataclass(slots=True",
                new="\n\nTOLD: list[str] = []\n\n\n@dataclass(slots=True",
            ),
        ),
        finding=("correctness", "conformance"),
        exit_code=exit_codes.CORRECTNESS,
        cells="serial+grammar",
    ),
    "lost-rollback": Fault(
        what="one rejected draft stays in the cache",
        edits=(
            Edit(
                path="engine/loop.py",
                old="        if slot.draft_budget and sequence.error is None:\n",
                new="        if verdict.num_accepted < len(draft.ids):\n"
                "            REJECTED.append(sequence)\n"
                "            if len(REJECTED) == 6:\n"
                "                verdict = replace(verdict, num_accepted=len(draft.ids))\n"
                "        if slot.draft_budget and sequence.error is None:\n",
            ),
            Edit(
                path="engine/loop.py",
                old="\n\nclass Engine:\n",
                new="\n\nREJECTED: list[object] = []\n\n\nclass Engine:\n",
            ),
        ),
        finding=("correctness", "identity"),
        exit_code=exit_codes.CORRECTNESS,
        cells="serial+spec+grammar@draft_budgets=fixed",
    ),
    "other-lane": Fault(
        what="rows with drafts are sent to the serial lane",
        edits=(
            Edit(
                path="engine/routing.py",
                old="    return draft_budget > 0 and (request.spec_batching",
                new="    return draft_budget > 0 or (request.spec_batching",
            ),
        ),
        finding=("correctness", "routing"),
        exit_code=exit_codes.CORRECTNESS,
        cells="batch4+spec@draft_budgets=fixed",
        workload="short-chat",
    ),
}

UNCHANGED = Fault(
    what="nothing",
    edits=(),
    finding=("", ""),
    exit_code=exit_codes.PASS,
    cells="serial+spec+grammar@draft_budgets=fixed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caught:
    """What a gate said of one copy.

    Args:
        failed: kind and name of every finding that decides and failed.
    """

    exit_code: int
    failed: frozenset[tuple[str, str]]
    report: dict[str, Any]

    def is_right(self, fault: Fault) -> bool:
        """Return whether the gate said what it has to say of the fault.

        Times that the machine gives no verdict on are no false alarm.
        """
        if not fault.edits:
            return self.exit_code in {
                exit_codes.PASS,
                exit_codes.INCONCLUSIVE,
                exit_codes.MACHINE_REFUSED,
            }
        return fault.finding in self.failed and self.exit_code == fault.exit_code

    def said_of(self, fault: Fault) -> str:
        """Return what the findings that have to show a fault say, with ratio and interval."""
        return "; ".join(
            f"{item['name']} {item['status']}{_effect(item['effect'])}: {item['detail']}"
            for item in self.report["findings"]
            if (item["kind"], item["name"]) == fault.finding and item["detail"]
        )


def _effect(effect: dict[str, Any] | None) -> str:
    if effect is None:
        return ""
    return f" {effect['ratio']:.3f} [{effect['low']:.3f}, {effect['high']:.3f}]"


class Copy:
    """A checkout of its own in a folder, with this checkout's files as its only commit."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.root.mkdir()
        source = Path(harness.__file__).resolve().parents[1]
        for part in PARTS:
            place = source / part
            if place.is_dir():
                shutil.copytree(
                    place, self.root / part, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copy2(place, self.root / part)
        for arguments in (
            ("init", "--quiet"),
            ("add", "--all"),
            ("commit", "--quiet", "-m", "as it is"),
        ):
            self._git(*arguments)

    def gate(self, fault: Fault, model: str, folder: Path, *options: str) -> Caught:
        """Put a fault in, run `fm gate --base HEAD`, and take it out again.

        Args:
            folder: takes the database and the reports.
        """
        folder.mkdir(parents=True)
        for edit in fault.edits:
            self._apply(edit)
        command = [
            *(sys.executable, "-P", "-m", "harness.cli", "gate", "--base", "HEAD", "--quiet"),
            *("--models", model, "--cells", fault.cells, "--workloads", fault.workload),
            *("--blocks", str(fault.blocks), "--prompts", str(fault.prompts), "--db", "fm.db"),
            *("--json", "gate.json", "--summary", "gate.md", *options),
        ]
        # Packages may be on the path too; the copy goes before them.
        path = os.pathsep.join(filter(None, (str(self.root), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path} | dict(fault.switches),
            capture_output=True,
            text=True,
            check=False,
        )
        self._git("checkout", "--quiet", "--", ".")
        if not (folder / "gate.json").is_file():
            raise RuntimeError(f"fm gate said nothing: {done.stderr.strip()[-500:]}")
        report = json.loads((folder / "gate.json").read_text(encoding="utf-8"))
        failed = frozenset(
            (item["kind"], item["name"])
            for item in report["findings"]
            if item["decides"] and item["status"] == "fail"
        )
        return Caught(exit_code=done.returncode, failed=failed, report=report)

    def _apply(self, edit: Edit) -> None:
        path = self.root / edit.path
        text = path.read_text(encoding="utf-8")
        if text.count(edit.old) < 1:
            raise RuntimeError(f"{edit.path} has no {edit.old!r} any more; renew the fault")
        path.write_text(text.replace(edit.old, edit.new, 1), encoding="utf-8")

    def _git(self, *arguments: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        command = ["git", "-C", str(self.root), *AUTHOR, *arguments]
        subprocess.run(command, env=env, check=True, capture_output=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the faults that are named, all by default, and print one line for each."""
    parser = argparse.ArgumentParser(prog="scripts/gate-faults", description=__doc__)
    parser.add_argument("--model", default="tiny-thinking", help="a name of `fm models`")
    parser.add_argument("--faults", default=",".join(FAULTS), help="out of " + ", ".join(FAULTS))
    parser.add_argument("--repeats", type=int, default=2, help="runs of each fault")
    parser.add_argument("--unchanged", type=int, default=2, help="runs of the build as it is")
    parser.add_argument("--option", action="append", default=[], help="passed on to fm gate")
    chosen = parser.parse_args(arguments)
    jobs = [(name, FAULTS[name]) for name in chosen.faults.split(",") if name] * chosen.repeats
    jobs += [("unchanged", UNCHANGED)] * chosen.unchanged
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        for number, (name, fault) in enumerate(jobs):
            place = Path(folder) / f"run-{number}"
            caught = copy.gate(fault, chosen.model, place, *chosen.option)
            is_right = caught.is_right(fault)
            wrong += not is_right
            failed = ", ".join(sorted(" ".join(pair) for pair in caught.failed)) or "nothing"
            word = "right" if is_right else "WRONG"
            sys.stdout.write(
                f"{word}: {name} ({fault.what}): exit {caught.exit_code}, failed: {failed}; "
                f"{caught.said_of(fault) or 'nothing was said of it'}\n"
            )
            sys.stdout.flush()
    return exit_codes.CORRECTNESS if wrong else exit_codes.PASS


if __name__ == "__main__":
    sys.exit(main())
