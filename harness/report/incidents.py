"""What went wrong or was left out in a run: failed replies, skipped pairs, near-ties."""

from __future__ import annotations

from collections.abc import Iterator

from harness.report.figures import Failure, NearTie, Skip
from harness.store.index import RunIndex
from harness.store.loaded import FailedReply


def failures(index: RunIndex) -> Iterator[Failure]:
    """Yield failed trials, failed requests, and replies under a grammar that do not conform.

    Attempts that failed before the last one are among them.
    """
    for place in index.places():
        for trial in index.trials(place):
            for reason in trial.failed_before:
                what = f"{reason} (run again since)"
                yield Failure(place=place, block=trial.block, prompt_id="", what=what, quote="")
            if trial.status == "failed":
                yield Failure(
                    place=place, block=trial.block, prompt_id="", what=trial.reason, quote=""
                )
            for item in index.failed(trial):
                yield Failure(
                    place=place,
                    block=trial.block,
                    prompt_id=item.prompt_id,
                    what=_what_failed(item),
                    quote=item.text or "",
                )


def skips(index: RunIndex) -> Iterator[Skip]:
    """Yield each pair that was not run, with its reason."""
    for place in index.places():
        reasons = [trial.reason for trial in index.trials(place, "skipped")]
        for reason in dict.fromkeys(reasons):
            yield Skip(place, reason)


def near_ties(index: RunIndex) -> Iterator[NearTie]:
    """Yield each place where a reply parts from its reference as floating point allows."""
    trials = {trial.trial_id: trial for trial in index.data.trials}
    for row in index.data.divergences:
        if row.is_near_tie and row.gap is not None:
            trial = trials[row.trial_id]
            yield NearTie(
                place=index.place_of(trial),
                block=trial.block,
                prompt_id=row.prompt_id,
                reference=row.reference,
                position=row.position,
                gap=row.gap,
            )


def _what_failed(item: FailedReply) -> str:
    """Return what is wrong with a reply."""
    if item.status != "ok":
        return item.error or item.status
    detail = f": {item.conformance_detail}" if item.conformance_detail else ""
    return f"{item.conformance}{detail}"
