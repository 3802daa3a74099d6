"""The gates that judge one cell: each sees every measured reply of it once, trial by trial.

None keeps a reply, so that a run may have any number of them: identity holds the ids of one block
at a time, and of each different pair a digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from harness.judging.grade import Grade, Outcome, judge_conformance
from harness.judging.law import Portions, judge_law
from harness.judging.token_identity import (
    ReplyIdentity,
    explain_difference,
    first_difference,
    sum_up,
)
from harness.sampling import always_promises_ids, promises_ids
from harness.store.index import Place, RunIndex
from harness.store.loaded import ReplyGroup
from harness.store.replies import Reply
from harness.store.rows import CellRow, DivergenceRow, GateRow, GateStatus, TrialRow

SHOWN_PROBLEMS = 3

Beside = Mapping[str, Sequence[Reply]]
"""Cell -> its replies in the same block, of the trials that were done."""


class CellGate(Protocol):
    """One gate on one cell."""

    def see(self, trial: TrialRow, replies: Sequence[Reply], beside: Beside) -> None:
        """Take in the replies of a trial; trials come by block."""
        ...

    def row(self) -> GateRow | None:
        """Return the verdict on all that was seen, None where the gate does not apply."""
        ...


@dataclass(slots=True)
class Conformance:
    """Every reply under a grammar is the document its schema asks for."""

    index: RunIndex
    place: Place
    grades: list[Grade] = field(default_factory=list)
    ungraded: int = 0

    def see(self, trial: TrialRow, replies: Sequence[Reply], beside: Beside) -> None:
        """Grade the replies but those that were lost with their whole trial."""
        for reply in replies:
            if trial.status == "failed" and reply.status != "ok":
                continue
            grade = grade_of(reply)
            if grade is None:
                self.ungraded += 1
            else:
                self.grades.append(grade)

    def row(self) -> GateRow | None:
        """Return the verdict."""
        verdict = judge_conformance(
            self.grades,
            allow_truncation=self.index.workloads[self.place.workload].allows_truncation,
        )
        gaps = [f"{self.ungraded} replies were not graded"] if self.ungraded else []
        status: GateStatus = "incomplete" if gaps and verdict.status == "pass" else verdict.status
        observed = verdict.ok / verdict.n if verdict.n else None
        notes = [*verdict.reasons, *gaps]
        return gate_row(self.index, self.place, "conformance", status, observed, verdict.n, notes)


def grade_of(reply: Reply) -> Grade | None:
    """Return the stored grade of a reply, None for one that was not graded."""
    outcome = outcome_of(reply)
    if outcome is None:
        return None
    if reply.conformance is None:
        return Grade(outcome=outcome, detail=reply.error or reply.status)
    return Grade(
        outcome=outcome,
        detail=reply.conformance_detail,
        unchecked_formats=reply.unchecked_formats,
    )


def outcome_of(reply: Reply | ReplyGroup) -> Outcome | None:
    """Return what a stored reply is worth, None for one that was not graded."""
    if reply.conformance is not None:
        return Outcome(reply.conformance)
    return None if reply.status == "ok" else Outcome.ERROR


@dataclass(slots=True)
class Difference:
    """A reply that is not its reference's, and what the oracle said of it."""

    prompt_id: str
    tokens: int
    position: int
    judged: Sequence[DivergenceRow]

    def explained(self) -> tuple[str, ReplyIdentity]:
        """Return the id of its prompt, and whether near-ties explain it."""
        return self.prompt_id, explain_difference(self.tokens, self.position, self.judged)


@dataclass(slots=True)
class Identity:
    """Every reply has the token ids of the reference cell's reply in the same block.

    Each different pair counts once, with its prompt: greedy blocks repeat them.

    Args:
        same: digests of the pairs that are equal, which have `same_tokens` together.
        differences: the pairs that are not, by digest.
    """

    index: RunIndex
    place: Place
    reference: str
    acceptance: str
    has_replies: bool = False
    has_promise: bool = False
    same: set[bytes] = field(default_factory=set)
    same_tokens: int = 0
    differences: dict[bytes, Difference] = field(default_factory=dict)

    def see(self, trial: TrialRow, replies: Sequence[Reply], beside: Beside) -> None:
        """Compare the replies with those of the reference."""
        self.has_replies = self.has_replies or bool(replies)
        expected = {reply.prompt_id: reply for reply in beside.get(self.reference, ())}
        for reply in replies:
            if not promises_ids(self.acceptance, reply):
                continue
            self.has_promise = True
            other = expected.get(reply.prompt_id)
            if trial.status == "done" and other is not None and _is_comparable(reply, other):
                self._compare(reply, other)

    def _compare(self, reply: Reply, other: Reply) -> None:
        pair = _digest(reply.prompt_id, reply.ids or "", other.ids or "")
        if pair in self.same:
            return
        if pair not in self.differences:
            ids = reply.token_ids or ()
            position = _parting(reply, other)
            if position is None:
                self.same.add(pair)
                self.same_tokens += len(ids)
                return
            self.differences[pair] = Difference(reply.prompt_id, len(ids), position, ())
        known = self.differences[pair]
        if not known.judged:
            known.judged = self.index.judged(reply.trial_id, reply.prompt_id, self.reference)

    def row(self) -> GateRow | None:
        """Return the verdict; the law gate takes its place where no reply promises ids."""
        if self.has_replies and not self.has_promise:
            return None
        compared = [difference.explained() for difference in self.differences.values()]
        waiting = [prompt for prompt, reply in compared if reply.is_unjudged]
        waiting = waiting if waiting and self.index.may_wait(self.place) else []
        verdict = sum_up(
            ((prompt, reply) for prompt, reply in compared if not (waiting and reply.is_unjudged)),
            equal=len(self.same),
            equal_tokens=self.same_tokens,
        )
        notes = list(verdict.problems)
        notes += [f"{len(waiting)} replies that differ wait to be judged"] if waiting else []
        if verdict.near_ties and not notes:
            notes.append(f"{verdict.near_ties} near-ties in {verdict.tokens} tokens")
        if not verdict.replies:
            notes.append(f"no reply could be compared with {self.reference}")
        share = verdict.matching / verdict.replies if verdict.replies else None
        status = _status(bool(verdict.problems), 0 if waiting else verdict.replies)
        n = verdict.replies
        return gate_row(self.index, self.place, "identity", status, share, n, notes)


def _digest(*texts: str) -> bytes:
    """Return what stands for some texts; that two differ and have one is out of the question."""
    return hashlib.sha256("\0".join(texts).encode()).digest()


@dataclass(slots=True)
class Law:
    """Replies which promise a law instead of token ids come from that law."""

    index: RunIndex
    place: Place
    acceptance: str
    has_due: bool = False
    chosen: Portions[Reply] = field(default_factory=Portions)

    def see(self, trial: TrialRow, replies: Sequence[Reply], beside: Beside) -> None:
        """Choose which draws are judged: those of trials that are done, as the oracle has them."""
        if trial.status != "done":
            return
        for reply in replies:
            if promises_ids(self.acceptance, reply):
                continue
            self.has_due = True
            if reply.status == "ok":
                self.chosen.offer(reply)

    def row(self) -> GateRow | None:
        """Return the verdict, None where every reply promises ids."""
        if not self.has_due:
            return None
        wanted = [portion.row for portion in self.chosen.portions]
        rows = [
            (row.prompt_id, found) for row in wanted if (found := self.index.law(row)) is not None
        ]
        verdict = judge_law(rows)
        notes = [verdict.line, *verdict.problems]
        unjudged = len(wanted) - len(rows)
        notes += [f"{unjudged} replies were not judged"] if unjudged else []
        status = _status(bool(verdict.problems), verdict.draws)
        if unjudged and status == "pass":
            status = "incomplete"
        share = 1 - verdict.impossible / verdict.draws if verdict.draws else None
        return gate_row(self.index, self.place, "law", status, share, verdict.draws, notes)


@dataclass(slots=True)
class Routing:
    """Every request took the lane its cell declares, and a routed one says why.

    Args:
        replies, told, untold: how many there were, that name their lane, and that went well and
            name none.
        wrong, silent: a line for each that took another lane, and that was routed in silence.
    """

    index: RunIndex
    place: Place
    cell: CellRow
    replies: int = 0
    told: int = 0
    untold: int = 0
    wrong: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)

    def see(self, trial: TrialRow, replies: Sequence[Reply], beside: Beside) -> None:
        """Look at the lanes."""
        expected, own = self.cell.expected_lane, self.cell.lane
        self.replies += len(replies)
        for reply in replies:
            lane, prompt = reply.lane_taken, reply.prompt_id
            self.told += bool(lane)
            self.untold += reply.status == "ok" and not lane
            if lane and lane != expected:
                self.wrong.append(f"prompt {prompt} took the {lane} lane, not {expected}")
            if lane and lane != own and not reply.lane_reason:
                self.silent.append(f"prompt {prompt} was routed without a reason")

    def row(self) -> GateRow | None:
        """Return the verdict."""
        told, untold = self.told, self.untold
        notes = [*self.wrong, *self.silent]
        notes += [] if told else ["no request says which lane it took"]
        notes += [f"{untold} of {self.replies} replies name no lane"] if told and untold else []
        share = (told - len(self.wrong)) / told if told else None
        status = _status(bool(self.wrong or self.silent), 0 if untold else told)
        return gate_row(self.index, self.place, "routing", status, share, told, notes)


@dataclass(slots=True)
class Acceptance:
    """A drafter that is the target has every draft accepted.

    The last burst of a reply may be cut by its end, so each reply may fall short by one burst.
    """

    index: RunIndex
    place: Place
    burst: int
    drafted: int = 0
    accepted: int = 0
    short: list[str] = field(default_factory=list)

    def see(self, trial: TrialRow, replies: Sequence[Reply], beside: Beside) -> None:
        """Count the drafts."""
        for reply in replies:
            if not reply.drafted:
                continue
            accepted = reply.accepted or 0
            self.drafted += reply.drafted
            self.accepted += accepted
            if reply.drafted - accepted > self.burst:
                self.short.append(
                    f"prompt {reply.prompt_id}: {reply.accepted} of {reply.drafted} drafts accepted"
                )

    def row(self) -> GateRow | None:
        """Return the verdict."""
        notes = self.short or ([] if self.drafted else ["nothing was drafted"])
        share = self.accepted / self.drafted if self.drafted else None
        status, n = _status(bool(self.short), self.drafted), self.drafted
        return gate_row(self.index, self.place, "acceptance", status, share, n, notes)


def _conformance(index: RunIndex, place: Place) -> CellGate | None:
    return Conformance(index, place) if index.cell(place).has("grammar") else None


def _identity(index: RunIndex, place: Place) -> CellGate | None:
    cell = index.cell(place)
    if cell.reference is None:
        return None
    return Identity(index, place, cell.reference, cell.acceptance)


def _law(index: RunIndex, place: Place) -> CellGate | None:
    acceptance = index.cell(place).acceptance
    return None if always_promises_ids(acceptance) else Law(index, place, acceptance)


def _routing(index: RunIndex, place: Place) -> CellGate | None:
    cell = index.cell(place)
    return Routing(index, place, cell) if cell.expected_lane else None


def _acceptance(index: RunIndex, place: Place) -> CellGate | None:
    cell = index.cell(place)
    if cell.settings.get("drafter") != "two_model" or not cell.has("spec"):
        return None
    if cell.settings.get("draft_model") != place.model:
        return None
    return Acceptance(index, place, burst=int(cell.settings.get("num_draft_tokens", 0)))


CELL_GATES: dict[str, Callable[[RunIndex, Place], CellGate | None]] = {
    "conformance": _conformance,
    "identity": _identity,
    "law": _law,
    "routing": _routing,
    "acceptance": _acceptance,
}
"""The gates that judge one cell, each begun where it applies, in the order reports print them."""


def summary(notes: Sequence[str]) -> str:
    """Return the first notes as one line, and how many more there are."""
    more = len(notes) - SHOWN_PROBLEMS
    return "; ".join(notes[:SHOWN_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")


def _is_comparable(one: Reply, other: Reply) -> bool:
    return (
        one.status == other.status == "ok"
        and one.ids is not None
        and other.ids is not None
        and one.was_sent_as(other)
    )


def _parting(one: Reply, other: Reply) -> int | None:
    """Return at which token two replies part, None where they do not."""
    if one.has_ids_of(other):
        return None
    return first_difference(one.token_ids or (), other.token_ids or ())


def _status(is_failed: bool, seen: int) -> GateStatus:
    if is_failed:
        return "fail"
    return "pass" if seen else "incomplete"


def gate_row(
    index: RunIndex,
    place: Place,
    name: str,
    status: GateStatus,
    observed: float | None,
    n: int,
    notes: Iterable[str],
) -> GateRow:
    """Return the row of a gate on one cell."""
    return GateRow(
        run_id=index.data.run.run_id,
        name=name,
        status=status,
        model=place.model,
        workload=place.workload,
        cell=place.cell,
        observed=observed,
        n=n,
        detail=summary(list(notes)),
    )
