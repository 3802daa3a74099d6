"""A commit of the checkout that fm runs from, checked out beside it for as long as it is needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

import harness
from engine.errors import SettingError
from harness.machine import git_state

CHILD = Path("harness/base/child.py")
"""What a commit needs to be measured: its own end of the trial protocol."""

PREFIX = "fm-base-"
"""Folders of checkouts begin so; the id of the process that made one follows."""

GIT_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Checkout:
    """Where a version of fm lies, and which commit it is."""

    root: Path
    sha: str


def own_checkout() -> Checkout:
    """Return the checkout whose fm this is, with the changes that were made in it.

    Raises:
        SettingError: this fm was installed from a wheel.
    """
    root = Path(harness.__file__).resolve().parents[1]
    state = git_state(root)
    if not state.sha:
        raise SettingError(
            f"the fm in {root} lies in no git checkout of its own; run fm gate --base from one"
        )
    return Checkout(root, state.sha)


def commit_of(root: Path, reference: str) -> str:
    """Return the full sha of a commit that somebody names; SettingError where there is none."""
    done = _git(
        root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{reference}^{{commit}}"
    )
    if done.returncode:
        raise SettingError(
            f"--base {reference!r} is no commit of {root}; name a branch, a tag or a commit, and "
            "fetch it first where the checkout is shallow"
        )
    return done.stdout.strip()


@contextmanager
def checked_out(root: Path, sha: str) -> Iterator[Checkout]:
    """Check a commit out into a folder of its own, which is removed at the end.

    Raises:
        SettingError: git does not do it, or the commit knows nothing of this command.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    tree = folder / sha[:12]
    try:
        _remove_left_behind(root)
        # No hooks: they are for people's checkouts.
        done = _git(
            root, "-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", str(tree), sha
        )
        if done.returncode:
            raise SettingError(
                f"git cannot check out {sha[:12]}: {_last_line(done.stderr)}; free the disk or "
                "repair the checkout"
            )
        if not (tree / CHILD).is_file():
            raise SettingError(
                f"commit {sha[:12]} has no {CHILD}, so it cannot run trials for fm gate; name a "
                "later commit with --base"
            )
        yield Checkout(tree.resolve(), sha)
    finally:
        _remove(root, tree)


def _remove(root: Path, tree: Path) -> None:
    _git(root, "worktree", "remove", "--force", str(tree))
    shutil.rmtree(tree.parent, ignore_errors=True)
    _git(root, "worktree", "prune")


def _remove_left_behind(root: Path) -> None:
    """Remove the checkouts of processes that were killed."""
    listed = _git(root, "worktree", "list", "--porcelain").stdout
    for place in re.findall(r"^worktree (.+)$", listed, flags=re.MULTILINE):
        tree = Path(place)
        made = re.match(rf"{PREFIX}(\d+)-", tree.parent.name)
        if made and not psutil.pid_exists(int(made.group(1))):
            _remove(root, tree)


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git on a checkout, whatever repository a hook or a shell has set."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            env=env | {"LC_ALL": "C"},
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingError(f"git does not run ({error}); install it or free the machine") from error


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1][:300]
