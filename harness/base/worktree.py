"""A commit of the checkout that fm runs from, checked out beside it for as long as it is needed."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import harness
from engine.errors import SettingError
from harness.machine import git_state
from harness.revision import SHORT
from harness.running.interrupts import uninterrupted

CHILD = Path("harness/base/child.py")
"""What a commit needs to be measured: its own end of the trial protocol, at this very place."""

PREFIX = "fm-base-"
"""Folders of checkouts begin so."""

LOCK = "in-use"
"""A file beside a checkout, locked by the process that uses it: the system lets go of it however
that ends. An id of a process would not do, since in a container every run may have the same."""

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
    _check_folder(root)
    return Checkout(root, state.sha)


def _check_folder(root: Path) -> None:
    """Refuse to measure one checkout for somebody who stands in another one."""
    top = _git(Path.cwd(), "rev-parse", "--show-toplevel").stdout.strip()
    here = Path(top).resolve() if top else root
    if here != root and (here / CHILD).is_file():
        raise SettingError(
            f"this is the checkout {here}, and this fm is the one of {root}; start the fm of the "
            "first one, e.g. with PYTHONPATH, or change to the other"
        )


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
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    tree = folder / sha[:SHORT]
    with _locked(folder), _removed_at_end(root, tree):
        _remove_left_behind(root)
        # No hooks: they are for people's checkouts.
        done = _git(
            root, "-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", str(tree), sha
        )
        if done.returncode:
            raise SettingError(
                f"git cannot check out {sha[:SHORT]}: {_last_line(done.stderr)}; free the disk or "
                "repair the checkout"
            )
        if not (tree / CHILD).is_file():
            raise SettingError(
                f"commit {sha[:SHORT]} has no {CHILD}, so it cannot run trials for fm gate; name a "
                "later commit with --base"
            )
        yield Checkout(tree.resolve(), sha)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a checkout's folder; False where another process has it."""
    try:
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        # The folder is gone, so nobody uses it.
        yield True
        return
    except OSError:
        yield False
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(file)


@contextmanager
def _removed_at_end(root: Path, tree: Path) -> Iterator[None]:
    try:
        yield
    finally:
        with uninterrupted():
            _remove(root, tree)


def _remove(root: Path, tree: Path) -> None:
    """Remove a checkout as far as that goes; what is left is for the next gate."""
    with suppress(SettingError):
        # Twice: git locks a checkout while it makes it, and one that was killed then stays locked.
        _git(root, "worktree", "remove", "--force", "--force", str(tree))
    shutil.rmtree(tree.parent, ignore_errors=True)
    with suppress(SettingError):
        _git(root, "worktree", "prune")


def _remove_left_behind(root: Path) -> None:
    """Remove the checkouts of processes that were killed."""
    listed = _git(root, "worktree", "list", "--porcelain").stdout
    for place in re.findall(r"^worktree (.+)$", listed, flags=re.MULTILINE):
        tree = Path(place)
        if tree.parent.name.startswith(PREFIX):
            with _locked(tree.parent) as is_unused:
                if is_unused:
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
            # A Ctrl-C on the terminal is for fm, which may be removing a checkout by then.
            start_new_session=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingError(f"git does not run ({error}); install it or free the machine") from error


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1][:300]
