"""One run of two sides: this checkout's code and another commit's, in the same shuffled blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from engine.errors import SettingError
from harness.base.side import Side
from harness.base.two_sides import TwoSides
from harness.base.worktree import Checkout, checked_out, commit_of, own_checkout
from harness.downloads import Fetching
from harness.machine import git_state
from harness.planning.choices import Choices
from harness.revision import SHORT, revision_text
from harness.running.conclusion import Concluded, Places
from harness.running.interrupts import interruptible
from harness.running.plan_rows import choices_of
from harness.running.progress import Progress
from harness.running.session import Session, matrix_of
from harness.store import EvalStore, RunRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs of two sides.

    Args:
        progress: shows the run, and is told which code the sides are.
        fetching: makes the callback that shows a download.
        is_forced: give verdicts on a machine that is not clean, and mark the run.
    """

    places: Places
    progress: Progress
    fetching: Fetching
    is_forced: bool = False

    def start(self, choices: Choices, reference: str) -> Concluded:
        """Run the cells of both sides.

        Raises:
            FmError: a choice, a file, the commit or the database is wrong; nothing was measured.
        """
        head = own_checkout()
        chosen = replace(choices, base=commit_of(head.root, reference))
        matrix = matrix_of(chosen)
        with self._session(head, chosen) as session:
            return session.start(matrix)

    def resume(self, reference: str) -> Concluded:
        """Go on with such a run; FmError also where this checkout is at another commit now."""
        with EvalStore.open_existing(self.places.db) as store:
            run = store.find_run(reference)
        chosen, head = choices_of(run), own_checkout()
        _check_same(run, chosen, head)
        with self._session(head, chosen) as session:
            return session.resume(run.run_id)

    @contextmanager
    def _session(self, head: Checkout, chosen: Choices) -> Iterator[Session]:
        # From here on there is something to remove, whoever ends this process.
        with interruptible(), checked_out(head.root, chosen.base) as base:
            self.progress.note(f"base: {base.sha[:SHORT]}, head: {described(head)}")
            tell = self.progress.note
            target = TwoSides(
                head=Side("head", head.root, chosen.target, tell),
                base=Side("base", base.root, chosen.target, tell),
            )
            try:
                yield Session(
                    target=target,
                    places=self.places,
                    progress=self.progress,
                    fetching=self.fetching,
                    is_forced=self.is_forced,
                )
            finally:
                target.close()


def described(head: Checkout) -> str:
    """Return the commit of a checkout, and whether there is more in it than that."""
    return revision_text(head.sha[:SHORT], is_dirty=git_state(head.root).is_dirty)


def _check_same(run: RunRow, chosen: Choices, head: Checkout) -> None:
    if not chosen.base:
        raise SettingError(
            f"run {run.run_id} has no base; go on with: fm run --resume {run.run_id}"
        )
    now = described(head)
    began = revision_text(run.git_sha[:SHORT], is_dirty=run.git_dirty)
    if run.git_sha == head.sha and now != began:
        raise SettingError(
            f"run {run.run_id} began at {began} and the checkout is at {now}; bring the code back "
            "to what it was, or start a new run"
        )
    if run.git_sha != head.sha:
        raise SettingError(
            f"run {run.run_id} began at {run.git_sha[:SHORT]} and the checkout is at "
            f"{head.sha[:SHORT]}; check the first one out to go on, or start a new run"
        )
