"""Workloads: prompts, the schemas their replies must meet, and the facts they hold.

A workload is a folder of workload.toml (what kind, which budget), prompts.jsonl (measured),
warmup.jsonl (never measured) and schemas/*.json. Its name is the folder's.

A line that continues an earlier one holds only what the conversation goes on with: its prompt
begins with all messages of that one. Such prompts are a session, which is replayed in order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.errors import SettingError, UnknownNameError
from engine.request import Constraint, ConstraintKind
from harness.resources import workloads_dir
from harness.workloads.files import HEADER_FILE, PlacedLine, WorkloadFiles, read_files
from harness.workloads.strict import WorkloadError

KINDS: dict[str, bool] = {"text": False, "json": True}
"""Kind -> whether every prompt names the schema its reply must meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One conversation to be answered.

    Args:
        messages: role and content, the last one from the user.
        session: id of the prompt that the conversation began with, "" where it is this one.
        schema_name: name of a schema of the workload, None for free text.
        schema: that schema.
        expected: the field values that the conversation states, None where it states none.
    """

    id: str
    messages: tuple[dict[str, str], ...]
    session: str = ""
    schema_name: str | None = None
    schema: dict[str, Any] | None = None
    expected: dict[str, Any] | None = None

    @property
    def num_characters(self) -> int:
        """How long the conversation is."""
        return sum(len(message["content"]) for message in self.messages)

    @property
    def constraint(self) -> Constraint | None:
        """What the engine is told to hold the reply to, None for free text."""
        if self.schema is None:
            return None
        return Constraint(kind=ConstraintKind.JSON_SCHEMA, value=self.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Prompts with one budget.

    Args:
        kind: a key of KINDS.
        max_tokens: most tokens of a reply; no schema's longest document needs more.
        warmup: prompts for warming up, never measured.
        must_compile: schemas that have to compile for the conformance gate to pass.
        allow_truncation: True when a reply that fills the budget is no failure.
        digest: hex sha256 of the files, line ends normalised.
    """

    name: str
    kind: str
    description: str
    max_tokens: int
    prompts: tuple[Prompt, ...]
    warmup: tuple[Prompt, ...]
    schemas: Mapping[str, dict[str, Any]]
    must_compile: int
    allow_truncation: bool
    digest: str

    @property
    def is_constrained(self) -> bool:
        """True when replies have to meet a schema."""
        return KINDS[self.kind]

    def order(self, seed: int) -> tuple[int, ...]:
        """Return the indices of `prompts`, shuffled by `seed`, schemas taking turns.

        Neighbours have different schemas as long as schemas are left, so that a few prompts show
        as many schemas as they can. The prompts of a session stay together and in their order. It
        depends on ids alone, on no library's generator.
        """
        sessions: dict[str, list[int]] = {}
        for index, prompt in enumerate(self.prompts):
            sessions.setdefault(prompt.session or prompt.id, []).append(index)
        turns: dict[str | None, list[tuple[str, list[int]]]] = {}
        for name, indices in sessions.items():
            schema = self.prompts[indices[0]].schema_name
            turns.setdefault(schema, []).append((_shuffle_key(seed, name), indices))
        ranked = [
            (turn, _shuffle_key(seed, str(schema)), indices)
            for schema, keyed in turns.items()
            for turn, (_, indices) in enumerate(sorted(keyed))
        ]
        return tuple(index for _, _, indices in sorted(ranked) for index in indices)

    def select(self, count: int, *, seed: int, block: int = 0) -> tuple[Prompt, ...]:
        """Return `count` different prompts; another block goes on where the last one ended.

        Raises:
            SettingError: `count` is not between 1 and the number of prompts.
        """
        size = len(self.prompts)
        if not 1 <= count <= size:
            raise SettingError(
                f"{count} prompts asked of workload {self.name!r}, which has {size}; "
                f"give --prompts 1 to {size}"
            )
        order = self.order(seed)
        return tuple(self.prompts[order[(block * count + i) % size]] for i in range(count))


def list_workloads(root: Path | None = None) -> tuple[str, ...]:
    """Return the names of the workloads under `root`, by default those that fm brings along."""
    root = workloads_dir() if root is None else root
    return tuple(sorted(path.parent.name for path in root.glob(f"*/{HEADER_FILE}")))


def load_workload(name: str, root: Path | None = None) -> Workload:
    """Return a workload by name.

    Raises:
        UnknownNameError: there is none of that name; the text lists what exists.
        WorkloadError: one of its files is missing or wrong.
    """
    root = workloads_dir() if root is None else root
    known = list_workloads(root)
    if name not in known:
        raise UnknownNameError("workload", name, known)
    return read_workload(root / name)


def read_workload(folder: Path) -> Workload:
    """Return the workload in a folder.

    Raises:
        WorkloadError: a file is missing or wrong, or two do not fit together.
    """
    files = read_files(folder)
    _check_fit(folder, files)
    header = files.header
    return Workload(
        name=folder.name,
        kind=header.kind,
        description=header.description,
        max_tokens=header.max_tokens,
        prompts=_prompts(files.prompts, files.schemas),
        warmup=_prompts(files.warmup, files.schemas),
        schemas=MappingProxyType(files.schemas),
        must_compile=header.must_compile,
        allow_truncation=header.allow_truncation,
        digest=files.digest,
    )


def _prompts(
    items: Iterable[PlacedLine], schemas: Mapping[str, dict[str, Any]]
) -> tuple[Prompt, ...]:
    found: dict[str, Prompt] = {}
    for item in items:
        name = item.line.continues
        if name is not None and name not in found:
            raise WorkloadError(
                f"{item.place}: continues is {name!r}, and no line above has that id; name one "
                "of this file"
            )
        found[item.line.id] = _prompt(item, None if name is None else found[name], schemas)
    return tuple(found.values())


def _prompt(
    item: PlacedLine, before: Prompt | None, schemas: Mapping[str, dict[str, Any]]
) -> Prompt:
    line = item.line
    messages = tuple(message.model_dump() for message in line.messages)
    return Prompt(
        id=line.id,
        messages=messages if before is None else (*before.messages, *messages),
        session="" if before is None else before.session or before.id,
        schema_name=line.schema_name,
        schema=None if line.schema_name is None else schemas[line.schema_name],
        expected=line.expected,
    )


def _check_fit(folder: Path, files: WorkloadFiles) -> None:
    if files.header.must_compile > len(files.schemas):
        raise WorkloadError(
            f"{folder / HEADER_FILE}: must_compile is {files.header.must_compile}, but there are "
            f"{len(files.schemas)} schemas; lower it or add schemas"
        )
    lines = files.prompts + files.warmup
    for item in lines:
        _check_schema_name(item, files.header.kind, files.schemas)
    _check_ids(lines)


def _check_schema_name(item: PlacedLine, kind: str, schemas: Mapping[str, Any]) -> None:
    name = item.line.schema_name
    if KINDS[kind] and name not in schemas:
        known = ", ".join(schemas) or "none"
        raise WorkloadError(f"{item.place}: schema is {name!r}; name one of schemas/: {known}")
    if not KINDS[kind] and name is not None:
        raise WorkloadError(
            f"{item.place}: schema is {name!r} in a workload of kind {kind!r}; remove it or set "
            'kind = "json"'
        )


def _check_ids(lines: Iterable[PlacedLine]) -> None:
    seen: dict[str, str] = {}
    for item in lines:
        name = item.line.id
        if name in seen:
            raise WorkloadError(f"{item.place}: id {name!r} is taken by {seen[name]}; rename one")
        seen[name] = item.place


def _shuffle_key(seed: int, text: str) -> str:
    return hashlib.sha256(f"{seed}/{text}".encode()).hexdigest()
