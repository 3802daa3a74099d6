"""The correctness gates of a run, from its stored rows: pure functions.

A gate that saw nothing is incomplete, never green; one that does not apply is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from harness import exit_codes
from harness.judging.grade import Grade, Outcome, judge_conformance
from harness.judging.law import judge_law, portions
from harness.judging.token_identity import ReplyIdentity, compare_reply, sum_up
from harness.sampling import promises_ids
from harness.store.index import Place, RunIndex
from harness.store.loaded import BlockRow, ReplyGroup, RunData
from harness.store.rows import DivergenceRow, GateRow, GateStatus, RequestRow, TrialRow

SHOWN_PROBLEMS = 3
NOTHING = "nothing was planned that can run"

Ids = tuple[int, ...]


def evaluate(data: RunData) -> tuple[GateRow, ...]:
    """Return every gate that applies to a run, in the order reports print them."""
    index = RunIndex(data)
    rows = [
        row
        for gate in GATES.values()
        for place in index.places()
        if not index.is_skipped(place)
        for row in gate(index, place)
    ]
    return (*rows, completeness(index))


def exit_code(
    gates: Sequence[GateRow], *, is_interrupted: bool = False, is_unsaved: bool = False
) -> int:
    """Return what `fm run` exits with: 130, else the worst of 3, 6 and 0.

    Args:
        is_interrupted: the user stopped the run; it can be resumed.
        is_unsaved: something was spooled, or could not be run, and waits for `--resume`.
    """
    if is_interrupted:
        return exit_codes.INTERRUPTED
    statuses = {gate.status for gate in gates}
    if "fail" in statuses:
        return exit_codes.CORRECTNESS
    if is_unsaved or "incomplete" in statuses or not statuses:
        return exit_codes.INCOMPLETE
    return exit_codes.PASS


def conformance(index: RunIndex, place: Place) -> Iterator[GateRow]:
    """Judge that every reply under a grammar is the document its schema asks for."""
    if not index.cell(place).has("grammar"):
        return
    requests = list(_replies(index, place))
    verdict = judge_conformance(
        [grade for request in requests if (grade := grade_of(request)) is not None],
        allow_truncation=index.workloads[place.workload].allows_truncation,
    )
    ungraded = sum(grade_of(request) is None for request in requests)
    gaps = [f"{ungraded} replies were not graded"] if ungraded else []
    status: GateStatus = "incomplete" if gaps and verdict.status == "pass" else verdict.status
    observed = verdict.ok / verdict.n if verdict.n else None
    yield _row(index, place, "conformance", status, observed, verdict.n, [*verdict.reasons, *gaps])


def grade_of(request: RequestRow) -> Grade | None:
    """Return the stored grade of a reply, None for one that was not graded."""
    outcome = outcome_of(request)
    if outcome is None:
        return None
    if request.conformance is None:
        return Grade(outcome=outcome, detail=request.error or request.status)
    return Grade(
        outcome=outcome,
        detail=request.conformance_detail,
        unchecked_formats=request.unchecked_formats,
    )


def outcome_of(reply: RequestRow | ReplyGroup) -> Outcome | None:
    """Return what a stored reply is worth, None for one that was not graded."""
    if reply.conformance is not None:
        return Outcome(reply.conformance)
    return None if reply.status == "ok" else Outcome.ERROR


def identity(index: RunIndex, place: Place) -> Iterator[GateRow]:
    """Judge that every reply has the token ids of the reference cell's reply in the same block."""
    reference = index.cell(place).reference
    replies = list(index.measured(index.trials(place)))
    acceptance = index.cell(place).acceptance
    is_law = replies and not any(promises_ids(acceptance, reply) for reply in replies)
    if reference is None or is_law:
        return
    compared = list(_compared(index, place, reference))
    waiting = [prompt for prompt, reply in compared if reply.is_unjudged]
    waiting = waiting if index.may_wait(place) else []
    verdict = sum_up(
        (prompt, reply) for prompt, reply in compared if not (waiting and reply.is_unjudged)
    )
    notes = list(verdict.problems)
    notes += [f"{len(waiting)} replies that differ wait to be judged"] if waiting else []
    if verdict.near_ties and not notes:
        notes.append(f"{verdict.near_ties} near-ties in {verdict.tokens} tokens")
    if not verdict.replies:
        notes.append(f"no reply could be compared with {reference}")
    share = verdict.matching / verdict.replies if verdict.replies else None
    status = _status(bool(verdict.problems), 0 if waiting else verdict.replies)
    yield _row(index, place, "identity", status, share, verdict.replies, notes)


def law(index: RunIndex, place: Place) -> Iterator[GateRow]:
    """Judge that replies which promise a law instead of token ids come from that law."""
    due = [
        reply
        for reply in index.measured(index.trials(place))
        if not promises_ids(index.cell(place).acceptance, reply)
    ]
    if not due:
        return
    wanted = [portion.row for portion in portions(row for row in due if row.status == "ok")]
    rows = [(row.prompt_id, found) for row in wanted if (found := index.law(row)) is not None]
    verdict = judge_law(rows)
    notes = [verdict.line, *verdict.problems]
    unjudged = len(wanted) - len(rows)
    notes += [f"{unjudged} replies were not judged"] if unjudged else []
    status = _status(bool(verdict.problems), verdict.draws)
    if unjudged and status == "pass":
        status = "incomplete"
    share = 1 - verdict.impossible / verdict.draws if verdict.draws else None
    yield _row(index, place, "law", status, share, verdict.draws, notes)


def routing(index: RunIndex, place: Place) -> Iterator[GateRow]:
    """Judge that every request took the lane its cell declares, and a routed one says why."""
    cell = index.cell(place)
    if not cell.expected_lane:
        return
    replies = list(index.measured(index.trials(place)))
    told = [item for item in replies if item.lane_taken]
    untold = sum(item.status == "ok" and not item.lane_taken for item in replies)
    wrong = [item for item in told if item.lane_taken != cell.expected_lane]
    silent = [item for item in told if cell.lane != item.lane_taken and not item.lane_reason]
    notes = [
        f"prompt {item.prompt_id} took the {item.lane_taken} lane, not {cell.expected_lane}"
        for item in wrong
    ]
    notes += [f"prompt {item.prompt_id} was routed without a reason" for item in silent]
    notes += [] if told else ["no request says which lane it took"]
    notes += [f"{untold} of {len(replies)} replies name no lane"] if told and untold else []
    share = (len(told) - len(wrong)) / len(told) if told else None
    status = _status(bool(wrong or silent), 0 if untold else len(told))
    yield _row(index, place, "routing", status, share, len(told), notes)


def acceptance(index: RunIndex, place: Place) -> Iterator[GateRow]:
    """Judge that a drafter that is the target has every draft accepted.

    The last burst of a reply may be cut by its end, so each reply may fall short by one burst.
    """
    cell = index.cell(place)
    if cell.settings.get("drafter") != "two_model" or not cell.has("spec"):
        return
    if cell.settings.get("draft_model") != place.model:
        return
    burst = int(cell.settings.get("num_draft_tokens", 0))
    drafting = [item for item in index.measured(index.trials(place)) if item.drafted]
    drafted = sum(item.drafted or 0 for item in drafting)
    accepted = sum(item.accepted or 0 for item in drafting)
    short = [
        f"prompt {item.prompt_id}: {item.accepted} of {item.drafted} drafts accepted"
        for item in drafting
        if (item.drafted or 0) - (item.accepted or 0) > burst
    ]
    notes = short or ([] if drafted else ["nothing was drafted"])
    share = accepted / drafted if drafted else None
    yield _row(index, place, "acceptance", _status(bool(short), drafted), share, drafted, notes)


def completeness(index: RunIndex) -> GateRow:
    """Judge that all that was planned ran, each with its baseline and a finite speed."""
    planned = [trial for trial in index.data.trials if trial.status != "skipped"]
    done = sum(trial.status == "done" for trial in planned)
    gaps = [gap for place in index.places() for gap in _gaps(index, place)]
    gaps += _models_without_result(index)
    unfilled = [
        trial
        for trial in planned
        if trial.status == "done" and trial.was_never_full and _is_timed(index, trial)
    ]
    gaps += _without_any_speed(index, unfilled)
    notes = list(_remarks(index, planned, unfilled))
    return GateRow(
        run_id=index.data.run.run_id,
        name="completeness",
        status="incomplete" if gaps or not planned else "pass",
        observed=done / len(planned) if planned else None,
        n=len(planned),
        detail=_summary(gaps or (notes if planned else [NOTHING])),
    )


GATES: dict[str, Callable[[RunIndex, Place], Iterator[GateRow]]] = {
    "conformance": conformance,
    "identity": identity,
    "law": law,
    "routing": routing,
    "acceptance": acceptance,
}
"""The gates that judge one cell; completeness judges the run."""

ORDER = (*GATES, "completeness")
"""Names of all gates, in the order in which reports print them."""


def _compared(index: RunIndex, place: Place, reference: str) -> Iterator[tuple[str, ReplyIdentity]]:
    """Yield each different pair of replies once, with its prompt: greedy blocks repeat them."""
    judged: dict[tuple[str, Ids, Ids], tuple[DivergenceRow, ...]] = {}
    theirs = {trial.block: trial for trial in index.trials(place.other(reference), "done")}
    for trial in index.trials(place, "done"):
        expected = {
            item.prompt_id: item
            for item in index.measured([theirs[trial.block]] if trial.block in theirs else [])
        }
        for item in index.measured([trial]):
            other = expected.get(item.prompt_id)
            if other is None or not _is_comparable(item, other):
                continue
            if not promises_ids(index.cell(place).acceptance, item):
                continue
            key = (item.prompt_id, item.token_ids or (), other.token_ids or ())
            if not judged.get(key):
                judged[key] = index.judged(item.trial_id, item.prompt_id, reference)
    for (prompt_id, ours, its), places in judged.items():
        yield prompt_id, compare_reply(ours, its, places)


def _replies(index: RunIndex, place: Place) -> Iterator[RequestRow]:
    """Yield the measured requests of a place but those that were lost with their whole trial."""
    for trial in index.trials(place):
        for request in index.measured([trial]):
            if trial.status != "failed" or request.status == "ok":
                yield request


def _is_comparable(one: RequestRow, other: RequestRow) -> bool:
    return (
        one.status == other.status == "ok"
        and one.token_ids is not None
        and other.token_ids is not None
        and one.sampling == other.sampling
    )


def _gaps(index: RunIndex, place: Place) -> Iterator[str]:
    """Yield what is missing at one place, one line each."""
    cell = index.cell(place)
    name = f"{place.model} {place.workload} {place.cell}"
    speeds = {
        row.block: row
        for row in index.data.blocks
        if (row.model, row.workload, row.cell) == (place.model, place.workload, place.cell)
    }
    baseline = {t.block for t in index.trials(place.other(cell.baseline or ""), "done")}
    for trial in index.trials(place):
        where = f"{name} block {trial.block + 1}"
        if trial.status in ("pending", "failed"):
            yield f"{where} {trial.status}{': ' + trial.reason if trial.reason else ''}"
        if trial.status != "done":
            continue
        requests = list(index.measured([trial]))
        errors = [item for item in requests if item.status != "ok"]
        if not requests:
            yield f"{where} measured no request"
        if errors:
            yield f"{where}: {len(errors)} of {len(requests)} requests failed"
        has_speed = _speed(trial, speeds.get(trial.block)) is not None
        if cell.kind != "routing" and not has_speed and not trial.was_never_full:
            yield f"{where} has no speed"
        if cell.baseline is not None and trial.block not in baseline:
            yield f"{where} has no baseline {cell.baseline}"


def _remarks(
    index: RunIndex, planned: Sequence[TrialRow], unfilled: Sequence[TrialRow]
) -> Iterator[str]:
    """Yield what is to be known of trials that are complete."""
    if unfilled:
        yield f"{_named(index, unfilled)} no speed, since no decode step had all its rows"
    again = [trial for trial in planned if trial.attempt and trial.status == "done"]
    if again:
        yield f"{_named(index, again)} failed before and been run again"


def _speed(trial: TrialRow, block: BlockRow | None) -> float | None:
    """Return tokens a second, by wall time where the target tells nothing of decode steps."""
    if block is None:
        return None
    return block.aggregate_tok_s if trial.is_told_steps else block.e2e_tok_s


def _is_timed(index: RunIndex, trial: TrialRow) -> bool:
    return index.cell(index.place_of(trial)).kind != "routing"


def _without_any_speed(index: RunIndex, unfilled: Sequence[TrialRow]) -> list[str]:
    """Return a gap where not one trial of the run has a speed; that a few have none is no gap.

    Replies end where the model ends them, so a wave may lose a row before its first decode step.
    Running the trial again would end the same, and its speed stays null.
    """
    timed = [row for row in index.data.blocks if row.aggregate_tok_s or row.e2e_tok_s]
    ids = {trial.trial_id for trial in unfilled}
    if not unfilled or any(row.trial_id not in ids for row in timed):
        return []
    return ["no decode step of the run had all its rows; begin a run with more --max-tokens"]


def _named(index: RunIndex, trials: Sequence[TrialRow]) -> str:
    places = dict.fromkeys(index.place_of(trial) for trial in trials)
    shown = [f"{place.model} {place.workload} {place.cell}" for place in places][:SHOWN_PROBLEMS]
    more = f" and {len(places) - len(shown)} more cells" if len(places) > len(shown) else ""
    count = "1 trial" if len(trials) == 1 else f"{len(trials)} trials"
    return f"{count} of {', '.join(shown)}{more} {'has' if len(trials) == 1 else 'have'}"


def _models_without_result(index: RunIndex) -> Iterator[str]:
    ran = {index.place_of(trial).model for trial in index.data.trials if trial.status == "done"}
    for trial in index.data.trials:
        place = index.place_of(trial)
        if place.model not in ran and trial.status == "skipped":
            ran.add(place.model)
            yield f"model {place.model} did not run: {trial.reason}"


def _status(is_failed: bool, seen: int) -> GateStatus:
    if is_failed:
        return "fail"
    return "pass" if seen else "incomplete"


def _row(
    index: RunIndex,
    place: Place,
    name: str,
    status: GateStatus,
    observed: float | None,
    n: int,
    notes: Iterable[str],
) -> GateRow:
    return GateRow(
        run_id=index.data.run.run_id,
        name=name,
        status=status,
        model=place.model,
        workload=place.workload,
        cell=place.cell,
        observed=observed,
        n=n,
        detail=_summary(list(notes)),
    )


def _summary(notes: list[str]) -> str:
    more = len(notes) - SHOWN_PROBLEMS
    return "; ".join(notes[:SHOWN_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
