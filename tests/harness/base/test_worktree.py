"""A commit is checked out beside a checkout and goes away again, whatever happens in between."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import SettingError
from harness.base import worktree
from harness.base.worktree import CHILD, PREFIX, checked_out, commit_of, own_checkout
from harness.machine import GitState


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(root), *identity, *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits: one without a child that could run trials, one with it, tagged `new`."""
    root = tmp_path / "with space ü"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    (root / "README.md").write_text("first")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "first")
    git(root, "tag", "old")
    (root / CHILD).parent.mkdir(parents=True)
    (root / CHILD).write_text("second")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "second")
    git(root, "tag", "-a", "new", "-m", "annotated")
    return root


def left(root: Path) -> list[str]:
    return git(root, "worktree", "list", "--porcelain").split("\n\n")


@pytest.mark.parametrize("reference", ["main", "new", "HEAD", "HEAD~0"])
def test_any_name_of_a_commit_is_resolved(repository: Path, reference: str) -> None:
    assert commit_of(repository, reference) == git(repository, "rev-parse", "HEAD")


@pytest.mark.parametrize("reference", ["nonesuch", "", "--all", "HEAD~9", "main:README.md"])
def test_what_is_no_commit_is_one_line(repository: Path, reference: str) -> None:
    with pytest.raises(SettingError, match="is no commit of") as error:
        commit_of(repository, reference)
    assert len(str(error.value).splitlines()) == 1


def test_the_commit_is_there_as_it_was_and_gone_at_the_end(repository: Path) -> None:
    (repository / CHILD).write_text("changed and not committed")
    sha = commit_of(repository, "main")
    with checked_out(repository, sha) as base:
        assert (base.root / CHILD).read_text() == "second"
        assert base.sha == sha
        assert len(left(repository)) == 2
        (base.root / "left behind").write_text("by a run")
    assert not base.root.exists()
    assert len(left(repository)) == 1
    assert (repository / CHILD).read_text() == "changed and not committed"


def test_it_goes_away_when_the_run_fails(repository: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        checked_out(repository, commit_of(repository, "main")) as base,
    ):
        raise KeyboardInterrupt
    assert not base.root.exists()
    assert len(left(repository)) == 1


def test_a_commit_that_knows_nothing_of_gates_is_refused(repository: Path) -> None:
    with (
        pytest.raises(SettingError, match="name a later commit with --base"),
        checked_out(repository, commit_of(repository, "old")),
    ):
        pass
    assert len(left(repository)) == 1


def test_hooks_of_the_checkout_do_not_run(repository: Path, tmp_path: Path) -> None:
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n")
    hook.chmod(0o755)
    with checked_out(repository, commit_of(repository, "main")):
        pass
    assert not (tmp_path / "ran").exists()


def test_another_repository_in_the_environment_is_not_asked(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    with checked_out(repository, commit_of(repository, "main")) as base:
        assert (base.root / CHILD).is_file()


def test_an_installed_fm_has_nothing_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worktree, "git_state", lambda root: GitState("", is_dirty=False))
    with pytest.raises(SettingError, match="run fm gate --base from one"):
        own_checkout()


HOLD = """
import sys, time
from pathlib import Path
from harness.base.worktree import checked_out
with checked_out(Path(sys.argv[1]), sys.argv[2]) as base:
    print(base.root, flush=True)
    time.sleep(600)
"""


def holding(root: Path, sha: str) -> tuple[subprocess.Popen[str], Path]:
    """Return a process that uses a checkout, and where that is."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root), sha], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def test_what_a_killed_process_left_is_removed_by_the_next_one_and_nothing_else(
    repository: Path,
) -> None:
    """The next one may have the same id, as in a container: ids tell nothing."""
    sha = commit_of(repository, "main")
    gone, left_behind = holding(repository, sha)
    gone.kill()
    gone.communicate()
    live, in_use = holding(repository, sha)
    try:
        assert in_use.is_dir()
        assert not left_behind.parent.exists()
        with checked_out(repository, sha):
            assert in_use.is_dir()
    finally:
        live.kill()
        live.communicate()
    with checked_out(repository, sha):
        assert not in_use.parent.exists()
    assert len(left(repository)) == 1


def test_a_checkout_that_was_killed_while_git_made_it_goes_away(
    repository: Path, tmp_path: Path
) -> None:
    """Git keeps it locked until it is whole."""
    sha = commit_of(repository, "main")
    tree = tmp_path / f"{PREFIX}abc" / sha[:12]
    git(repository, "worktree", "add", "--lock", "--detach", str(tree), sha)
    with checked_out(repository, sha):
        assert not tree.parent.exists()
    assert len(left(repository)) == 1


def test_a_checkout_whose_folder_is_gone_is_forgotten(repository: Path, tmp_path: Path) -> None:
    sha = commit_of(repository, "main")
    tree = tmp_path / f"{PREFIX}abc" / sha[:12]
    git(repository, "worktree", "add", "--lock", "--detach", str(tree), sha)
    shutil.rmtree(tree.parent)
    with checked_out(repository, sha):
        pass
    assert len(left(repository)) == 1


def test_who_stands_in_another_checkout_of_fm_is_told(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One environment serves many checkouts: the wrong one would be measured, and be green."""
    monkeypatch.chdir(repository / CHILD.parent)
    with pytest.raises(SettingError, match="start the fm of the first one") as error:
        own_checkout()
    assert str(repository) in str(error.value)
    monkeypatch.chdir(repository.parent)
    assert own_checkout().root == Path(__file__).parents[3]
