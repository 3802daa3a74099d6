"""The tables that a run gives the results page: pure, one for each model, workload and section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from harness.machine import machine_id
from harness.report import numbers
from harness.report.composition import COMPOSITION, RATIOS, composition_row, ratio_row
from harness.report.figures import Against, CellFigures, Group, RunReport
from harness.report.gfm import escape, table
from harness.report.visible import one_line
from harness.revision import SHORT, revision_text

Section = Literal["quotable", "unquotable"]

COUNT = (("n", True),)
REASONS = (("why unquotable", False),)

OF_RUN = "the run is not quotable, see above"
OF_CELL = "its cell is not quotable, see above"

UNKNOWN_MACHINE = "unknown machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a table comes from: all that decides its place on the page, and what it replaces.

    Args:
        machine: what must be equal for two runs to be comparable (machine_id).
        label: the machine in a few words.
    """

    section: Section
    machine: str
    label: str
    model: str
    workload: str
    command: str
    run_id: str
    created_at: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    def replaces(self, other: Origin) -> bool:
        """True for what the same run gave before, and for an earlier measuring of the same.

        A table that is not quotable never takes the place of another run's that is.
        """
        if other.run_id == self.run_id:
            return True
        measured = (self.machine, self.model, self.workload, self.command)
        is_same = measured == (other.machine, other.model, other.workload, other.command)
        return is_same and (self.section == "quotable" or other.section == "unquotable")


@dataclass(frozen=True, slots=True)
class ResultTable:
    """One table with its caption, as Markdown, and where it comes from."""

    origin: Origin
    body: str


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of a group with the reasons against quoting it, none for a quotable one."""

    group: Group
    cell: CellFigures
    reasons: tuple[str, ...]


def rows_of(report: RunReport) -> tuple[Row, ...]:
    """Return each cell that has a speed, with every reason against quoting it, each once."""
    return tuple(
        Row(group, cell, _reasons(report, cell))
        for group in report.groups
        for cell in group.cells
        if cell.speed.is_known
    )


def tables_of(report: RunReport, rows: Sequence[Row], section: Section) -> tuple[ResultTable, ...]:
    """Return the tables of one section, of those rows that belong there."""
    chosen = [row for row in rows if bool(row.reasons) == (section == "unquotable")]
    groups = {(row.group.model, row.group.workload.name): row.group for row in chosen}
    return tuple(
        _table(report, section, group, [row for row in chosen if row.group is group])
        for group in groups.values()
    )


def machine_label(environment: Mapping[str, Any]) -> str:
    """Return a machine in a few words: its device, and what decides how fast that is."""
    device = environment.get("device_name") or environment.get("cpu")
    if not isinstance(device, str) or not device:
        return UNKNOWN_MACHINE
    parts = [device]
    cores, memory = environment.get("usable_cores"), environment.get("memory_bytes")
    if environment.get("device") == "cpu":
        parts += [numbers.counted(cores, "core")] if isinstance(cores, int) else []
        parts += [f"{memory / 2**30:.0f} GiB"] if isinstance(memory, int) else []
        parts += [str(environment["blas"])] if environment.get("blas") else []
    return one_line(", ".join(parts))


def _reasons(report: RunReport, cell: CellFigures) -> tuple[str, ...]:
    reasons = [*report.unquotable_reasons, *cell.refusals]
    for against in (cell.main, cell.serial):
        if against is not None:
            reasons += _of_ratio(report, cell, against)
    return tuple(dict.fromkeys(reasons))


def _of_ratio(report: RunReport, cell: CellFigures, against: Against) -> list[str]:
    """Return the reasons against one ratio that stand neither against its run nor its cell."""
    known = {*report.refusals, *report.unquotable_reasons, *cell.refusals}
    return [
        f"against {against.baseline}: {reason}"
        for reason in against.ratio.refusals
        if reason not in known
    ]


def _table(report: RunReport, section: Section, group: Group, rows: Sequence[Row]) -> ResultTable:
    run = report.run
    label = machine_label(run.environment)
    origin = Origin(
        section=section,
        machine=machine_id(run.environment),
        label=label,
        model=group.model,
        workload=group.workload.name,
        command=run.command,
        run_id=run.run_id,
        created_at=run.created_at,
    )
    parts = [
        f"#### {escape(group.model)} on {escape(group.workload.name)}",
        _caption(report, label, rows),
        f"    {one_line(run.command)}",
        _speeds(section, rows),
        *_ratios(report, section, rows),
    ]
    return ResultTable(origin, "\n\n".join(parts))


def _caption(report: RunReport, label: str, rows: Sequence[Row]) -> str:
    run = report.run
    blocks = max(row.cell.num_blocks for row in rows)
    requests = max(row.cell.num_requests for row in rows)
    cap = "the workload's own cap" if run.max_tokens is None else f"cap {run.max_tokens} tokens"
    revision = escape(revision_text(run.git_sha[:SHORT], is_dirty=run.git_dirty))
    return (
        f"Run {escape(run.run_id)} of {escape(run.created_at[:10])}, {escape(run.tag)}, on "
        f"{escape(label)}: "
        f"{numbers.counted(blocks, 'block')} of {numbers.counted(run.prompts, 'prompt')}, "
        f"n = {requests} requests a cell, {cap}, seed {run.seed}, preset {escape(run.preset)}, "
        f"revision {revision}. {_noise(rows[0].group)}"
    )


def _noise(group: Group) -> str:
    if group.noise is None:
        return "The baseline was not repeated."
    floor = numbers.interval(group.noise.ratio)
    name = escape(group.noise.baseline)
    return f"Noise floor: {name} repeated, against {name}: {floor}."


def _speeds(section: Section, rows: Sequence[Row]) -> str:
    columns = (*COMPOSITION, *COUNT)
    lines = [(*composition_row(row.cell), str(row.cell.num_requests)) for row in rows]
    if section == "quotable":
        return table(columns, lines)
    return table(
        (*columns, *REASONS),
        [(*line, "; ".join(row.reasons)) for line, row in zip(lines, rows, strict=True)],
    )


def _ratios(report: RunReport, section: Section, rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of ratios; one that is refused is told with its reasons, never as sound.

    What stands against the whole run is spelled out in the table of speeds alone.
    """
    ratios = [
        (row, against)
        for row in rows
        for against in row.cell.ratios
        if section == "unquotable" or not against.ratio.refusals
    ]
    if not ratios:
        return
    lines = [ratio_row(row.cell, against) for row, against in ratios]
    if section == "quotable":
        yield table(RATIOS, lines)
        return
    of_run = [OF_RUN] if report.unquotable_reasons else []
    reasons = [
        [*of_run, *row.cell.refusals, *_of_ratio(report, row.cell, against)]
        for row, against in ratios
    ]
    yield table(
        (*RATIOS, *REASONS),
        [(*line, "; ".join(why) or OF_CELL) for line, why in zip(lines, reasons, strict=True)],
    )
