"""What is drafted for the rows of a step, and what a broken drafter costs: the row it breaks.

Whatever a drafter says or raises, other rows do not notice: a proposal is cut to what may be
verified, and an exception ends only the rows it is tied to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from operator import index

import mlx.core as mx

from engine.config import MAX_DRAFT_TOKENS
from engine.draft.budget import DraftBudgets, Outcome
from engine.draft.source import DraftRequest, DraftSource, Proposal
from engine.errors import detail_of
from engine.flight import Draft
from engine.kv_budget import Rectangle
from engine.models.load import LoadedModel
from engine.plan import Slot
from engine.sequence import Sequence
from engine.verify import Verdict

NOTHING = Proposal([])

LOG = logging.getLogger("fm")


@dataclass(frozen=True, slots=True)
class Offer:
    """A row's drafts for a step.

    Args:
        num_real: leading tokens that exist.
        num_legal: leading tokens that can be verified; the others count as rejected.
        scores: the laws they were drawn from, None for one-hot laws.
    """

    tokens: tuple[int, ...]
    num_real: int
    num_legal: int
    scores: mx.array | None

    def take(self, sequence: Sequence, most: int) -> Draft:
        """Count at most `most` drafts of `sequence`, and return them with the one behind them.

        Where the cut falls may hinge on what was drafted, so the first draft behind it is judged
        too: else tokens that are cut would be replaced by another law than tokens that are not.
        """
        offered, legal = min(len(self.tokens), most), min(self.num_legal, most)
        sequence.drafts.propose(offered, offered - legal)
        tail = self.tokens[legal : min(legal + 1, self.num_real)]
        scores = None if self.scores is None else self.scores[: legal + len(tail)]
        return Draft(self.tokens[:legal], tail, scores)


class Proposer:
    """The engine's side of a drafter.

    Args:
        drafter: open already; None drafts nothing.
        budgets: adapts how much is drafted; None drafts what the plan allows.
    """

    def __init__(
        self, model: LoadedModel, drafter: DraftSource | None, budgets: DraftBudgets | None
    ) -> None:
        self._model = model
        self._drafter = drafter
        self._budgets = budgets
        self._known: dict[int, Sequence] = {}
        self._leavers: list[Sequence] = []

    def make_room(self, room: Rectangle) -> None:
        """Let the drafter's own cache take at most this size."""
        if self._drafter is not None:
            self._drafter.make_room(room)

    @property
    def has_leavers(self) -> bool:
        """True while the drafter still holds rows that have ended."""
        return bool(self._leavers)

    def propose(self, slots: Many[Slot]) -> tuple[Draft, ...]:
        """Return the drafts of each slot, cut to what may be verified.

        A row whose drafter fails gets its `error` set and no drafts.
        """
        asked = [slot for slot in slots if slot.draft_budget]
        if self._drafter is None or not asked:
            return (Draft(),) * len(slots)
        self._known |= {id(slot.sequence): slot.sequence for slot in asked}
        proposals = dict(zip(map(id, asked), self._ask(asked), strict=True))
        offers = [self._offer(slot, proposals.get(id(slot), NOTHING)) for slot in slots]
        most = self._most(slots, offers)
        return tuple(
            offer.take(slot.sequence, most) for slot, offer in zip(slots, offers, strict=True)
        )

    def observe(
        self, slots: Many[Slot], drafts: Many[Draft], verdicts: Many[Verdict | None]
    ) -> None:
        """Let budgets learn from a decode step of all its rows."""
        if self._budgets is not None:
            self._budgets.observe(
                [
                    Outcome(slot.sequence, slot.draft_budget, len(draft.ids), verdict.num_accepted)
                    if verdict is not None
                    else Outcome(slot.sequence)
                    for slot, draft, verdict in zip(slots, drafts, verdicts, strict=True)
                ]
            )

    def learn(self, sequence: Sequence, num_accepted: int) -> None:
        """Tell the drafter how many of a row's last drafts were accepted."""
        drafter = self._drafter
        if drafter is not None:
            self._guard(sequence, lambda: drafter.commit(sequence, num_accepted))

    def leave(self, sequence: Sequence) -> None:
        """Note that a row has ended; from any thread."""
        if id(sequence) in self._known:
            self._leavers.append(sequence)
        if self._budgets is not None:
            self._budgets.close(sequence)

    def forget_leavers(self) -> None:
        """Let the drafter free what it holds for ended rows; on the engine's thread only."""
        while self._leavers and self._drafter is not None:
            sequence = self._leavers.pop()
            self._known.pop(id(sequence), None)
            if not self._closes(sequence):
                self._closes(sequence)

    def _closes(self, sequence: Sequence) -> bool:
        """Let the drafter forget a row; returns whether it did."""
        assert self._drafter is not None
        try:
            self._drafter.close(sequence)
        except Exception:  # the row has its answer already
            LOG.exception("the drafter failed to forget %s", sequence.request.request_id)
            return False
        return True

    def restart(self) -> None:
        """Let the drafter forget every row and all it has computed; on the engine's thread only."""
        self._leavers = list({**self._known, **{id(row): row for row in self._leavers}}.values())
        self.forget_leavers()
        if self._drafter is not None:
            try:
                self._drafter.make_room(Rectangle())
            except Exception:  # it is asked for room again before the next step
                LOG.exception("the drafter failed to give up its cache")

    def _ask(self, slots: Many[Slot]) -> list[Proposal]:
        """Ask for all rows at once; when that fails, row by row to find whose fault it is."""
        requests = [DraftRequest(slot.sequence, slot.draft_budget) for slot in slots]
        try:
            return self._checked(requests)
        except Exception:  # noqa: BLE001  # whatever a drafter raises, other rows go on
            return [self._ask_alone(request) for request in requests]

    def _ask_alone(self, request: DraftRequest) -> Proposal:
        found: list[Proposal] = []
        self._guard(request.sequence, lambda: found.extend(self._checked([request])))
        return found[0] if found else NOTHING

    def _checked(self, requests: list[DraftRequest]) -> list[Proposal]:
        assert self._drafter is not None
        proposals = self._drafter.propose(requests)
        if len(proposals) != len(requests):
            raise ValueError(f"{len(proposals)} proposals for {len(requests)} rows")
        for offered in proposals:
            for token in offered.ids:
                index(token)  # raises when it is no whole number
            wanted = (len(offered.ids), self._model.vocab_size)
            if offered.scores is not None and tuple(offered.scores.shape) != wanted:
                raise ValueError(f"laws of shape {offered.scores.shape}, not {wanted}")
        return proposals

    def _guard(self, sequence: Sequence, call: Callable[[], None]) -> None:
        """Run a drafter's code for one row; what it raises ends that row alone."""
        try:
            call()
        except Exception as error:  # noqa: BLE001  # ends this row alone
            sequence.error = (
                f"the drafter failed ({detail_of(error)}); send the request again with "
                "num_draft_tokens 0"
            )

    def _offer(self, slot: Slot, offered: Proposal) -> Offer:
        """Return a proposal within its budget, up to its first end token."""
        sequence = slot.sequence
        proposal = offered.ids[: slot.draft_budget]
        end = next((i for i, token in enumerate(proposal) if self._ends(sequence, token)), None)
        proposal = proposal if end is None else proposal[: end + 1]
        num_real = self._num_real(proposal)
        legal = self._num_legal(sequence, proposal[:num_real])
        return Offer(tuple(proposal), num_real, legal, offered.scores)

    def _num_real(self, proposal: list[int]) -> int:
        """Return how many leading tokens exist."""
        size = self._model.vocab_size
        return next((i for i, token in enumerate(proposal) if not 0 <= token < size), len(proposal))

    def _most(self, slots: Many[Slot], offers: Many[Offer]) -> int:
        """Return how many drafts a row may bring to the step, given what all of them have."""
        if self._budgets is None:
            return MAX_DRAFT_TOKENS
        rows = (slot.sequence for slot in slots)
        lengths = (offer.num_legal for offer in offers)
        return self._budgets.fit(zip(rows, lengths, strict=True)) - 1

    def _ends(self, sequence: Sequence, token: int) -> bool:
        return token in self._model.eos_ids and not sequence.request.ignore_eos

    def _num_legal(self, sequence: Sequence, proposal: list[int]) -> int:
        """Return how many leading tokens do not end the row too early, and are grammatical.

        Args:
            proposal: tokens that exist; an end token can only be the last.
        """
        legal = len(proposal)
        num_barred = sequence.request.sampling.min_tokens - sequence.num_emitted
        if 0 < legal <= num_barred and self._ends(sequence, proposal[legal - 1]):
            legal -= 1
        if sequence.matcher is not None and legal:
            try:
                legal = sequence.matcher.legal_prefix(proposal[:legal])
            except Exception as error:  # noqa: BLE001  # ends this row alone
                sequence.error = f"the grammar failed ({detail_of(error)}); send the request again"
                return 0
        return legal
