"""What a gate compares between head and base by counting: the same on any machine, however busy.

Budgets of drafts that follow measured times make what they decide differ between two runs of one
build. Counts that depend on them are told of such cells and decide nothing; cells with
`@draft_budgets=fixed` draft the same every time. What an engine has come to over a run (grammars
compiled, bytes held) decides nothing in a run that was gone on with, since its engines began twice,
and none where the head alone ran some cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.conditions.findings import PREFLIGHT
from harness.policy.twins import pairs, shared_trials, unpaired_cells
from harness.store.index import Place, RunIndex
from harness.store.replies import Reply
from harness.store.rows import CellRow, TrialRow

Read = Callable[[Sequence[TrialRow]], int | None]
Scope = Literal["cell", "group"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """One count.

    Args:
        what: what is counted, in a few words.
        is_better_high: False where more is worse.
        follows_drafts: True where it depends on how much is drafted.
        scope: `group` for what all cells of a model and workload come to together.
        read: the count over some trials; None where nothing tells it. Those of a cell's requests
            are read from the requests, see BothSides.
    """

    what: str
    is_better_high: bool = False
    follows_drafts: bool = True
    scope: Scope = "cell"
    read: Read


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A count on both sides; None where a side does not tell it.

    Args:
        place: of the head; its cell is "" for a whole group.
        is_exact: False where the same build may count otherwise.
    """

    name: str
    place: Place
    head: int | None
    base: int | None
    is_exact: bool

    @property
    def excess(self) -> float:
        """How much worse the head is, relatively; negative where it is better."""
        assert self.head is not None
        assert self.base is not None
        worse = self.head - self.base
        if COUNTERS[self.name].is_better_high:
            worse = -worse
        return worse / self.base if self.base else float(worse)


def of_work(name: str) -> Read:
    """Return the reader of what engines counted of their work, summed."""

    def read(trials: Sequence[TrialRow]) -> int | None:
        return _sum([trial.counters.get(name) for trial in trials])

    return read


def most_work(name: str) -> Read:
    """Return the reader of what engines came to, the most of it."""

    def read(trials: Sequence[TrialRow]) -> int | None:
        return max(_whole([trial.counters.get(name) for trial in trials]), default=None)

    return read


def _of_requests(_trials: Sequence[TrialRow]) -> int | None:
    """Stand where a count is read from the requests of both sides, see BothSides."""
    return None


COUNTERS: dict[str, Counter] = {
    "changed_replies": Counter(
        what="replies of other tokens than the base's", follows_drafts=False, read=_of_requests
    ),
    "drafted": Counter(what="drafts", read=_of_requests),
    "accepted": Counter(what="drafts that were accepted", is_better_high=True, read=_of_requests),
    "target_calls": Counter(what="decode forwards", read=_of_requests),
    "mask_calls": Counter(what="masks filled", read=of_work("mask_calls")),
    "steps": Counter(what="engine steps", read=of_work("steps")),
    "positions": Counter(what="positions computed, padding included", read=of_work("positions")),
    "host_syncs": Counter(what="waits for the device", read=of_work("host_syncs")),
    "compiles": Counter(
        what="grammars compiled", follows_drafts=False, scope="group", read=most_work("compiles")
    ),
    "kv_bytes": Counter(what="bytes of keys and values", scope="group", read=most_work("kv_bytes")),
}
"""Every counter a policy may name."""

OF_REQUESTS = ("drafted", "accepted", "target_calls")
"""The counters that are columns of requests, summed."""


@dataclass(slots=True)
class Spoken:
    """What the requests of some trials come to together, told one by one.

    Args:
        sums: of OF_REQUESTS; None from the first request on that does not tell it.
    """

    requests: int = 0
    sums: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(OF_REQUESTS, 0))

    def take(self, replies: Sequence[Reply]) -> None:
        """Add the requests of a trial."""
        self.requests += len(replies)
        for name, total in self.sums.items():
            values = [total, *(getattr(reply, name) for reply in replies)]
            self.sums[name] = _sum(values)

    def count(self, name: str) -> int | None:
        """Return a sum, None where a part of it is missing, or all."""
        return self.sums[name] if self.requests else None


@dataclass(slots=True)
class BothSides:
    """The requests of a cell on both sides, each read once.

    Args:
        compared, changed: replies whose ids both sides tell, and those of them that differ.
    """

    head: Spoken = field(default_factory=Spoken)
    base: Spoken = field(default_factory=Spoken)
    compared: int = 0
    changed: int = 0

    def take(self, ours: Sequence[Reply], theirs: Sequence[Reply]) -> None:
        """Add the requests of a block; replies to the same prompt are compared."""
        self.head.take(ours)
        self.base.take(theirs)
        expected = {reply.prompt_id: reply for reply in theirs}
        for reply in ours:
            other = expected.get(reply.prompt_id)
            if reply.ids is not None and other is not None and other.ids is not None:
                self.compared += 1
                self.changed += not reply.has_ids_of(other)

    def count(self, name: str) -> tuple[int | None, int | None]:
        """Return a count of the head and of the base."""
        if name in OF_REQUESTS:
            return self.head.count(name), self.base.count(name)
        return (self.changed, 0) if self.compared else (None, None)


def counts(index: RunIndex) -> Iterator[Count]:
    """Yield every counter of every cell, then of every group, that at least one side tells."""
    found = list(pairs(index))
    for place, twin in found:
        for count in _cell_counts(index, place, twin):
            yield from _told(count)
    groups = dict.fromkeys((place.model, place.workload) for place, _ in found)
    for model, workload in groups:
        members = [pair for pair in found if (pair[0].model, pair[0].workload) == (model, workload)]
        for name, counter in COUNTERS.items():
            if counter.scope == "group":
                yield from _told(_group_count(index, Place(model, workload, ""), members, name))


def is_exact(cell: CellRow) -> bool:
    """Return whether one build drafts the same for a cell every time."""
    settings = cell.settings
    return not settings.get("num_draft_tokens") or settings.get("draft_budgets") == "fixed"


def _told(count: Count) -> Iterator[Count]:
    if count.head is not None or count.base is not None:
        yield count


def _cell_counts(index: RunIndex, place: Place, twin: Place) -> Iterator[Count]:
    ours, theirs = shared_trials(index, place, twin)
    requests = BothSides()
    for one, other in zip(ours, theirs, strict=True):
        requests.take(index.heard(one), index.heard(other))
    for name, counter in COUNTERS.items():
        if counter.scope != "cell":
            continue
        if counter.read is _of_requests:
            head, base = requests.count(name)
        else:
            head, base = counter.read(ours), counter.read(theirs)
        exact = is_exact(index.cell(place)) or not counter.follows_drafts
        yield Count(name=name, place=place, head=head, base=base, is_exact=exact)


def _group_count(
    index: RunIndex, group: Place, members: Sequence[tuple[Place, Place]], name: str
) -> Count:
    counter = COUNTERS[name]
    ours: list[TrialRow] = []
    theirs: list[TrialRow] = []
    for place, twin in members:
        one, other = shared_trials(index, place, twin)
        ours += one
        theirs += other
    exact = not _was_resumed(index) and not unpaired_cells(index, group.model)
    if counter.follows_drafts:
        exact = exact and all(is_exact(index.cell(place)) for place, _ in members)
    return Count(
        name=name,
        place=group,
        head=counter.read(ours),
        base=counter.read(theirs),
        is_exact=exact,
    )


def _was_resumed(index: RunIndex) -> bool:
    """Return whether engines began anew within the run, and forgot what they had come to."""
    return sum(row.phase == PREFLIGHT for row in index.data.conditions) > 1


def _sum(values: Sequence[int | None]) -> int | None:
    known = _whole(values)
    return sum(known) if known else None


def _whole(values: Sequence[int | None]) -> Sequence[int]:
    """Return the counts; none where one is missing, since a part of them looks like less."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []
