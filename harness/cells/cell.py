"""Cells: lane presets read from cells/*.toml, and the names derived from them.

A file holds the preset of one name, or, where settings are lists, of one name for each choice among
their values. `batchN` with another N takes the settings of the file for the same features, `@aa`
repeats a bare lane, `@rejection` is the cell without it under the other acceptance, and
`@setting=value` the cell without it under another setting, so that any legal name has a cell
without a file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.errors import SettingError, UnknownNameError
from harness.cells.name import REJECTION, CellName, parse_cell_name
from harness.cells.settings import OWNERS, combinations, values_of
from harness.toml_file import read_toml

CORE_CELLS = (
    "serial",
    "batch4",
    "serial+grammar",
    "batch4+grammar",
    "serial+spec",
    "serial+spec+grammar",
    "batch4+spec",
    "batch4+spec+grammar",
)
"""What `fm run` measures when no cells are named."""


class CellKind(StrEnum):
    """Why a cell is run: speed, its routing, correctness, the noise floor, or comparison."""

    PERF = "perf"
    ROUTING = "routing"
    AUDIT = "audit"
    AA = "aa"
    PEER = "peer"


PLACEHOLDERS = ("python", "folder", "draft_folder", "port", "rows", "num_draft_tokens")
"""What a server's command may name in braces: this Python, the model's and the drafter's folder,
a free port of this machine, and settings of the cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """A server that a peer cell starts, in a child process.

    Args:
        command: program and arguments, with `{placeholders}`.
        health: path that answers 200 as soon as requests are served.
        model: what its requests call the model; "" takes the only one the server lists.
        counts_end: its usage counts the end token of a reply, which ours do not.
    """

    command: tuple[str, ...]
    health: str = "/health"
    model: str = ""
    counts_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One column of the matrix: a lane with its features and every setting.

    Args:
        lane_taken: the lane its requests must report, `serial` or `batch`.
        config: the engine's settings; for a peer cell, the drafter it gets.
        server: what a peer cell starts; None for mlx-lm without a server, and for our cells.
        is_remote: True where somebody else's server runs it, which tells neither lanes nor ids.
    """

    key: CellName
    kind: CellKind
    lane_taken: str
    config: EngineConfig
    server: ServerCommand | None = None
    is_remote: bool = False

    @property
    def name(self) -> str:
        """The canonical name."""
        return str(self.key)

    @property
    def rows(self) -> int:
        """Requests kept live together."""
        return self.key.rows or 1

    @property
    def digest(self) -> str:
        """Hex sha256 of everything that defines the cell."""
        content: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind.value,
            "lane_taken": self.lane_taken,
            "config": asdict(self.config),
        }
        # Named where they say something only, so that other cells keep the digests they had.
        content |= {} if self.server is None else {"server": asdict(self.server)}
        content |= {"is_remote": True} if self.is_remote else {}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CellCatalogue:
    """Every cell that has a file, by canonical name; `get` also derives those that have none.

    Args:
        sweeps: the name of a file whose settings are lists -> the cells it holds.
    """

    cells: Mapping[str, Cell]
    sweeps: Mapping[str, tuple[Cell, ...]] = field(default_factory=dict)

    def get(self, text: str) -> Cell:
        """Return the cell of a name in any spelling; FmError says what is wrong with the name."""
        return self.find(parse_cell_name(text))

    def find(self, key: CellName) -> Cell:
        """Return the cell of a parsed name; UnknownNameError lists the cells that exist."""
        if key.side:
            return replace(self.find(replace(key, side="")), key=key)
        cell = self.cells.get(str(key))
        if cell is not None:
            return cell
        if key.settings:
            return _with_settings(self.find(key.without_settings()), key)
        if key.url:
            config = EngineConfig(max_rows=key.rows or 1)
            return Cell(key=key, kind=CellKind.PEER, lane_taken=key.lane, config=config)
        if key.variant == "aa":
            bare = self.find(key.bare_lane())
            return _derived(bare, key, CellKind.AA)
        if key.variant == REJECTION:
            matching = self.find(replace(key, variant=""))
            config = replace(matching.config, acceptance=REJECTION)
            return replace(matching, key=key, config=config)
        for cell in self.cells.values():
            if key.rows is not None and _same_but_rows(cell.key, key):
                return _derived(cell, key, cell.kind)
        known = [*self.cells, *self.sweeps, "batchN for any N of 1-128"]
        raise UnknownNameError("cell", str(key), known)

    def get_all(self, names: Iterable[str]) -> tuple[Cell, ...]:
        """Return the cells of several names, each once, in the order of first mention."""
        keys = [parse_cell_name(name) for name in names]
        cells = [cell for key in keys for cell in self.sweeps.get(str(key)) or [self.find(key)]]
        found = {cell.name: cell for cell in cells}
        if not found:
            raise SettingError("no cell is named; give at least one, e.g. --cells serial")
        return tuple(found.values())


def load_cells(folder: Path) -> CellCatalogue:
    """Read every *.toml of a folder; a bad one raises SettingError with its file and line."""
    cells: dict[str, Cell] = {}
    sweeps: dict[str, tuple[Cell, ...]] = {}
    for path in sorted(folder.glob("*.toml")):
        name, found = read_cells(path)
        if name in cells or name in sweeps:
            raise SettingError(f"{path}:1: cell {name!r} has two files; remove one")
        if [cell.name for cell in found] != [name]:
            sweeps[name] = found
        cells |= {cell.name: cell for cell in found}
    if not cells:
        raise SettingError(f"no *.toml cell files in {folder}; reinstall, or run in a checkout")
    return CellCatalogue(cells, sweeps)


def read_cells(path: Path) -> tuple[str, tuple[Cell, ...]]:
    """Read one cell file: its name, and its cells, several where settings are lists.

    Raises:
        SettingError: naming the file, the line and what is wrong.
    """
    file = read_toml(path)
    with file.locating():
        return _cells_from(file.table)


def _cells_from(table: Mapping[str, Any]) -> tuple[str, tuple[Cell, ...]]:
    known = ("name", "kind", "lane_taken", "settings", "server")
    for word in table:
        if word not in known:
            raise SettingError(f"unknown key {word!r}; known: {', '.join(known)}")
    name = table.get("name")
    if not isinstance(name, str):
        raise SettingError(f"name is {name!r}; it must be a cell name such as 'serial+spec'")
    key = parse_cell_name(name)
    if str(key) != name:
        raise SettingError(f"name {name!r} is not canonical; write {str(key)!r}")
    if key.settings:
        raise SettingError(f"name {name!r} holds settings; write them under [settings]")
    settings = table.get("settings", {})
    if not isinstance(settings, dict):
        raise SettingError(f"settings is {settings!r}; it must be a table")
    lists = {
        word: value
        for word, value in settings.items()
        if word in OWNERS and isinstance(value, list)
    }
    return name, tuple(
        _cell_from(table, replace(key, settings=chosen), settings | values_of(chosen))
        for chosen in combinations(lists)
    )


def _cell_from(table: Mapping[str, Any], key: CellName, settings: Mapping[str, Any]) -> Cell:
    usual = CellKind.PEER if key.is_peer else CellKind.PERF
    kind = _choice(table, "kind", usual.value, [kind.value for kind in CellKind])
    lane_taken = _choice(table, "lane_taken", key.lane, ["serial", "batch"])
    return Cell(
        key=key,
        kind=CellKind(kind),
        lane_taken=lane_taken,
        config=_config_from(key, settings),
        server=_server_from(key, table.get("server")),
    )


def _server_from(key: CellName, table: Any) -> ServerCommand | None:
    if table is None:
        return None
    if not key.is_peer:
        raise SettingError("server is for peer cells; our cells are run by the target")
    if not isinstance(table, dict) or not isinstance(table.get("command"), list):
        raise SettingError("server must be a table with a command, a list of texts")
    known = [item.name for item in fields(ServerCommand)]
    for word in table:
        if word not in known:
            raise SettingError(f"unknown key {word!r} of server; known: {', '.join(known)}")
    server = ServerCommand(**{**table, "command": tuple(table["command"])})
    texts = (*server.command, server.health, server.model)
    if not server.command or not all(isinstance(text, str) for text in texts):
        raise SettingError("server: command must hold texts, and health and model be texts")
    if not isinstance(server.counts_end, bool):
        raise SettingError(f"counts_end is {server.counts_end!r}; it must be true or false")
    for name in re.findall(r"\{(\w+)\}", " ".join(server.command)):
        if name not in PLACEHOLDERS:
            raise SettingError(f"command names {{{name}}}; it may name {', '.join(PLACEHOLDERS)}")
    return server


def _config_from(key: CellName, settings: Mapping[str, Any]) -> EngineConfig:
    if "max_rows" in settings:
        raise SettingError("max_rows is set by the lane word of the name; drop it")
    config = EngineConfig.from_mapping({**settings, "max_rows": key.rows or 1})
    _check_drafts(key, config)
    if config.acceptance == REJECTION and not key.has("spec"):
        raise SettingError(
            f"acceptance is {REJECTION!r}; a cell without spec has no drafts: drop it"
        )
    if config.acceptance != REJECTION and key.variant == REJECTION:
        raise SettingError(
            f"acceptance is {config.acceptance!r}; '@{REJECTION}' needs {REJECTION!r}"
        )
    return config


def _check_drafts(key: CellName, config: EngineConfig) -> None:
    if key.has("spec") != (config.num_draft_tokens > 0):
        raise SettingError(
            f"num_draft_tokens is {config.num_draft_tokens}; a cell "
            f"{'with' if key.has('spec') else 'without'} spec needs "
            f"{'at least 1' if key.has('spec') else '0'}"
        )


def _choice(table: Mapping[str, Any], key: str, default: str, choices: list[str]) -> str:
    value = table.get(key, default)
    if value not in choices:
        raise SettingError(f"{key} is {value!r}; it must be one of {', '.join(choices)}")
    return str(value)


def _same_but_rows(one: CellName, other: CellName) -> bool:
    return one.rows is not None and one.serial() == other.serial() and one.variant == other.variant


def _with_settings(cell: Cell, key: CellName) -> Cell:
    values = values_of(key.settings)
    if "draft_model" in values and cell.config.drafter != "two_model":
        raise SettingError(
            f"cell {str(key)!r}: the drafter {cell.config.drafter!r} loads no draft_model; drop it"
        )
    config = replace(cell.config, **values)
    _check_drafts(key, config)
    return replace(cell, key=key, config=config)


def _derived(cell: Cell, key: CellName, kind: CellKind) -> Cell:
    config = replace(cell.config, max_rows=key.rows or 1)
    lane_taken = "serial" if config.max_rows == 1 else cell.lane_taken
    return replace(cell, key=key, kind=kind, lane_taken=lane_taken, config=config)
