"""The matrix: cells x models x workloads with their baselines, and the shuffled trials of a run.

Pure planning. A cell brings in what its figures are compared with (its bare lane, itself without
grammar, itself without spec, and the cell its token ids must equal); a pair that cannot run is
kept with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from harness.cells.cell import Cell, CellCatalogue, CellKind
from harness.cells.name import BASE, FEATURES, CellName
from harness.planning.choices import Choices
from harness.planning.shuffle import turns_of_blocks
from harness.sampling import Sampling
from harness.store.rows import content_hash
from harness.workloads.workload import Prompt, Workload

SELF_DRAFTER = "self"
"""As a cell's draft_model: the target drafts for itself."""

MIN_AA_BLOCKS = 6
"""From this many blocks on timing gets verdicts, and so the baseline is measured twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One cell on one workload with one model.

    Args:
        baseline: the cell its ratio is computed against; None for `serial` and for peers.
        reference: the cell whose token ids its own must equal; None where there is none.
        max_tokens: most tokens of one reply.
        skip_reason: why it cannot run, "" when it can.
    """

    model: str
    workload: Workload
    cell: Cell
    baseline: str | None
    reference: str | None
    max_tokens: int
    skip_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTrial:
    """One pair in one block, in turns of one wave of requests, or in one of all its waves.

    Args:
        order: 0-based place of its first turn among those of the block's trials.
        places: 0-based places of its turns in the block's sequence, ascending.
        prompts: the block's, then as many further ones as fill the last wave of the cell's rows.
    """

    pair: Pair
    block: int
    order: int
    places: tuple[int, ...]
    prompts: tuple[Prompt, ...]
    sampling: Sampling

    def prompts_of(self, turn: int) -> tuple[Prompt, ...]:
        """Return what it is asked in one of its turns."""
        size = len(self.prompts) // len(self.places)
        return self.prompts[turn * size : (turn + 1) * size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Everything a run is going to do."""

    choices: Choices
    pairs: tuple[Pair, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell of the matrix, each once, baselines before what is compared with them.

        A cell with a draft model is another one for each model that brings its own drafter.
        """
        return tuple({pair.cell.digest: pair.cell for pair in self.pairs}.values())

    @property
    def skipped(self) -> tuple[Pair, ...]:
        """Pairs that cannot run."""
        return tuple(pair for pair in self.pairs if pair.skip_reason)

    @property
    def digest(self) -> str:
        """Hex sha256 of all that decides which trials run, in which order, and how."""
        amounts, target = self.choices.amounts(), self.choices.target
        # Named where it says something only, so that older runs can still be gone on with.
        named = {} if target == Choices().target else {"target": target}
        named |= {"base": self.choices.base} if self.choices.base else {}
        return content_hash(
            {
                **named,
                "amounts": asdict(amounts),
                "seed": self.choices.seed,
                "temperature": self.choices.temperature,
                "pairs": [
                    [
                        pair.model,
                        pair.workload.digest,
                        pair.cell.digest,
                        pair.max_tokens,
                    ]
                    for pair in self.pairs
                ],
            }
        )

    def trials(self) -> tuple[PlannedTrial, ...]:
        """Return the trials of every pair that can run, in the order in which they run."""
        groups: dict[tuple[str, str], list[Pair]] = {}
        for pair in self.pairs:
            if not pair.skip_reason:
                groups.setdefault((pair.model, pair.workload.name), []).append(pair)
        return tuple(trial for group in groups.values() for trial in self._of_group(group))

    def _of_group(self, group: Sequence[Pair]) -> Iterator[PlannedTrial]:
        first, blocks = group[0], self.choices.amounts().blocks
        # Seeded by place, never by cell name: renaming a cell must not move it.
        seed = f"{self.choices.seed}/{first.model}/{first.workload.name}"
        asked = first.workload.order(self.choices.seed)
        prompts = [first.workload.prompts[index] for index in asked]
        turns = [self._num_turns(pair) for pair in group]
        for block, places in enumerate(turns_of_blocks(turns, blocks, seed)):
            order = sorted(range(len(group)), key=lambda member: places[member][0])
            for rank, member in enumerate(order):
                yield PlannedTrial(
                    pair=group[member],
                    block=block,
                    order=rank,
                    places=places[member],
                    prompts=self._prompts(prompts, group[member], block),
                    sampling=self.choices.sampling(),
                )

    def _num_turns(self, pair: Pair) -> int:
        """Return in how many turns a trial answers its prompts.

        One that caches prefixes is run in one go: what it finds must be its own, whichever other
        trials share an engine and the bytes of its cache, and wherever a run was gone on with.
        """
        return 1 if pair.cell.config.prefix_cache_bytes else self._num_waves(pair)

    def _num_waves(self, pair: Pair) -> int:
        """Return in how many waves a trial answers its prompts."""
        return -(-self.choices.amounts().prompts // pair.cell.rows)

    def _prompts(self, prompts: Sequence[Prompt], pair: Pair, block: int) -> tuple[Prompt, ...]:
        """Return what a cell is asked in a block, of all in the run's order."""
        count = self._num_waves(pair) * pair.cell.rows
        start = block * self.choices.amounts().prompts
        return tuple(prompts[(start + place) % len(prompts)] for place in range(count))


def plan_matrix(
    choices: Choices,
    catalogue: CellCatalogue,
    workloads: Mapping[str, Workload],
    drafter_of: Callable[[str], str | None],
) -> Matrix:
    """Return the matrix of a person's choices.

    Args:
        workloads: the chosen workloads by name.
        drafter_of: the drafter the registry names for a model, None where it names none.

    Raises:
        FmError: an unknown cell, or more prompts than a workload has.
    """
    wanted = catalogue.get_all(choices.cells)
    cells = with_baselines(wanted, catalogue)
    if choices.amounts().blocks >= MIN_AA_BLOCKS:
        cells = _with_noise_floor(cells, catalogue)
    if choices.base:
        cells = _with_twins(cells, catalogue)
    if choices.is_remote:
        cells = tuple(replace(cell, is_remote=not cell.key.is_peer) for cell in cells)
    for workload in workloads.values():
        workload.select(choices.amounts().prompts, seed=choices.seed)
    pairs = [
        _pair(choices, model, workload, cell, drafter_of)
        for model in dict.fromkeys(choices.models)
        for workload in workloads.values()
        for cell in cells
    ]
    return Matrix(choices=choices, pairs=tuple(pairs))


def skip_model(matrix: Matrix, model: str, reason: str) -> Matrix:
    """Return the matrix with every pair of one model skipped."""
    return replace(
        matrix,
        pairs=tuple(
            replace(pair, skip_reason=reason) if pair.model == model else pair
            for pair in matrix.pairs
        ),
    )


def skip_pair(matrix: Matrix, skipped: Pair, reason: str) -> Matrix:
    """Return the matrix with one pair skipped."""
    pairs = (
        replace(pair, skip_reason=reason) if pair is skipped else pair for pair in matrix.pairs
    )
    return replace(matrix, pairs=tuple(pairs))


def with_baselines(cells: Iterable[Cell], catalogue: CellCatalogue) -> tuple[Cell, ...]:
    """Return the cells and all they are compared with, each once, what is needed first."""
    found: dict[str, Cell] = {}

    def add(cell: Cell) -> None:
        if cell.name in found:
            return
        for key in needed(cell):
            add(catalogue.find(key))
        found[cell.name] = cell

    for cell in cells:
        add(cell)
    return tuple(found.values())


def needed(cell: Cell) -> tuple[CellName, ...]:
    """Return the cells that one cell brings in: what it is compared with."""
    key = cell.key
    reference = identity_reference(cell)
    needs = [] if reference is None else [reference]
    if cell.kind is not CellKind.ROUTING:
        needs += [key.without(feature) for feature in reversed(key.features)]
        needs += [] if key.is_bare and not key.variant else [key.bare_lane()]
        needs += [bare_baseline(key)] if key.is_bare else []
    return tuple(dict.fromkeys(need for need in needs if need != key))


def ratio_baseline(cell: Cell) -> CellName | None:
    """Return the cell without its last mechanism; None for serial, peers and routing checks."""
    key = cell.key
    if key.is_peer or cell.kind is CellKind.ROUTING:
        return None
    if cell.kind is CellKind.AA:
        return key.bare_lane()
    for feature in FEATURES:
        if key.has(feature):
            return key.without(feature)
    return None if key == bare_baseline(key) else bare_baseline(key)


def bare_baseline(key: CellName) -> CellName:
    """Return what a lane without features is compared with: serial, then without its settings."""
    return key.serial() if key.rows is not None else key.without_settings()


def identity_reference(cell: Cell) -> CellName | None:
    """Return the cell whose ids a cell must repeat: the serial lane, grammar as in the cell."""
    key = cell.key
    if key.is_peer or cell.is_remote:
        return None
    reference = key.identity()
    return None if reference == key else reference


def _with_noise_floor(cells: tuple[Cell, ...], catalogue: CellCatalogue) -> tuple[Cell, ...]:
    if not any(cell.name == "serial" for cell in cells):
        return cells
    return with_baselines([*cells, catalogue.get("serial@aa")], catalogue)


def _with_twins(cells: tuple[Cell, ...], catalogue: CellCatalogue) -> tuple[Cell, ...]:
    """Return the cells, and each that has a speed of ours once more on the side of the base."""
    twins = (
        catalogue.find(replace(cell.key, side=BASE)) for cell in cells if cell.kind is CellKind.PERF
    )
    return (*cells, *twins)


def _pair(
    choices: Choices,
    model: str,
    workload: Workload,
    cell: Cell,
    drafter_of: Callable[[str], str | None],
) -> Pair:
    baseline, reference = ratio_baseline(cell), identity_reference(cell)
    resolved = with_drafter(cell, model, drafter_of)
    return Pair(
        model=model,
        workload=workload,
        cell=resolved,
        baseline=None if baseline is None else str(baseline),
        reference=None if reference is None else str(reference),
        max_tokens=_budget(choices, workload, cell),
        skip_reason=_skip_reason(choices, model, workload, resolved),
    )


def with_drafter(cell: Cell, model: str, drafter_of: Callable[[str], str | None]) -> Cell:
    """Return the cell with the draft model it gets beside a target; other cells stay as they are.

    `draft_model = "self"` is the target itself, none at all is the first one of the registry.
    """
    if cell.config.drafter != "two_model":
        return cell
    named = cell.config.draft_model or drafter_of(model)
    draft_model = model if named == SELF_DRAFTER else named
    return replace(cell, config=replace(cell.config, draft_model=draft_model))


def _skip_reason(choices: Choices, model: str, workload: Workload, cell: Cell) -> str:
    if cell.key.is_peer and choices.temperature > 0:
        return "peer cells take likeliest tokens only; they run at --temperature 0"
    if cell.key.has("grammar") and not workload.is_constrained:
        return f"workload {workload.name} has no constraint for a grammar cell"
    if cell.config.drafter == "two_model" and cell.config.draft_model is None:
        return f"the registry names no draft model for {model}"
    return ""


def _budget(choices: Choices, workload: Workload, cell: Cell) -> int:
    """Return the workload's own budget, capped for free-running cells only: a schema needs its."""
    if cell.key.has("grammar"):
        return workload.max_tokens
    if choices.max_tokens is not None:
        return choices.max_tokens
    return min(workload.max_tokens, choices.amounts().max_tokens or workload.max_tokens)
