"""What is drafted for the rows of a step, and what a broken drafter costs: the row it breaks.

Whatever a drafter says or raises, other rows do not notice: a proposal is cut to what may be
verified, and an exception ends only the rows it is tied to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Many

from engine.draft.source import DraftRequest, DraftSource, Proposal
from engine.flight import Draft
from engine.kv_budget import KvCosts, Rectangle
from engine.models.load import LoadedModel
from engine.plan import Slot
from engine.sequence import Sequence

NOTHING = Proposal([])

LOG = logging.getLogger("fm")


class Proposer:
    """The engine's side of a drafter.

    Args:
        drafter: None drafts nothing.
    """

    def __init__(self, model: LoadedModel, drafter: DraftSource | None) -> None:
        self._model = model
        self._drafter = drafter
        self._known: set[int] = set()
        self._leavers: list[Sequence] = []
        if drafter is not None:
            drafter.open(model)

    @property
    def kv_costs(self) -> KvCosts:
        """What a slot costs in the drafter's own cache."""
        return KvCosts(per_token=0) if self._drafter is None else self._drafter.kv_costs

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
        self._known |= {id(slot.sequence) for slot in asked}
        proposals = dict(zip(map(id, asked), self._ask(asked), strict=True))
        return tuple(self._cut(slot, proposals.get(id(slot), NOTHING)) for slot in slots)

    def learn(self, sequence: Sequence, num_accepted: int) -> None:
        """Tell the drafter how many of a row's last drafts were accepted."""
        drafter = self._drafter
        if drafter is not None:
            self._guard(sequence, lambda: drafter.commit(sequence, num_accepted))

    def leave(self, sequence: Sequence) -> None:
        """Note that a row has ended; from any thread."""
        if id(sequence) in self._known:
            self._leavers.append(sequence)

    def forget_leavers(self) -> None:
        """Let the drafter free what it holds for ended rows; on the engine's thread only."""
        while self._leavers and self._drafter is not None:
            sequence = self._leavers.pop()
            self._known.discard(id(sequence))
            try:
                self._drafter.close(sequence)
            except Exception:  # the row has its answer already
                LOG.exception("the drafter failed to forget %s", sequence.request.request_id)

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
            wanted = (len(offered.ids), self._model.vocab_size)
            if offered.scores is not None and tuple(offered.scores.shape) != wanted:
                raise ValueError(f"laws of shape {offered.scores.shape}, not {wanted}")
        return proposals

    def _guard(self, sequence: Sequence, call: Callable[[], None]) -> None:
        """Run a drafter's code for one row; what it raises ends that row alone."""
        try:
            call()
        except Exception as error:  # noqa: BLE001  # ends this row alone
            detail = " ".join(str(error).split())[:200]
            sequence.error = (
                f"the drafter failed ({type(error).__name__}: {detail}); send the request again "
                "with num_draft_tokens 0"
            )

    def _cut(self, slot: Slot, offered: Proposal) -> Draft:
        """Keep the part of a proposal that can be judged; the rest counts as rejected."""
        sequence = slot.sequence
        proposal = offered.ids[: slot.draft_budget]
        end = next((i for i, token in enumerate(proposal) if self._ends(sequence, token)), None)
        proposal = proposal if end is None else proposal[: end + 1]
        legal = self._num_legal(sequence, proposal)
        sequence.drafts.propose(len(proposal), len(proposal) - legal)
        tail = [token for token in proposal[legal : legal + 1] if self._exists(token)]
        scores = None if offered.scores is None else offered.scores[: legal + len(tail)]
        return Draft(tuple(proposal[:legal]), tuple(tail), scores)

    def _exists(self, token: int) -> bool:
        return 0 <= token < self._model.vocab_size

    def _ends(self, sequence: Sequence, token: int) -> bool:
        return token in self._model.eos_ids and not sequence.request.ignore_eos

    def _num_legal(self, sequence: Sequence, proposal: list[int]) -> int:
        """Return how many leading tokens exist, do not end the row too early, and are grammatical.

        Args:
            proposal: an end token can only be its last.
        """
        legal = next(
            (i for i, token in enumerate(proposal) if not self._exists(token)), len(proposal)
        )
        num_barred = sequence.request.sampling.min_tokens - sequence.num_emitted
        if 0 < legal <= num_barred and self._ends(sequence, proposal[legal - 1]):
            legal -= 1
        if sequence.matcher is not None and legal:
            legal = sequence.matcher.legal_prefix(proposal[:legal])
        return legal
