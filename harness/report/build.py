"""From the rows of a run to its report: pure, so the same rows give the same report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.conditions.summary import summary
from harness.judging import gates as gate_rules
from harness.report.cells import CellReader
from harness.report.figures import Against, GateSummary, Group, RunReport
from harness.report.incidents import failures, near_ties, skips
from harness.report.partings import partings
from harness.report.refusals import (
    cached_reasons,
    machine_marks,
    machine_reasons,
    noise_refusals,
    unquotable,
)
from harness.store.index import Place, RunIndex
from harness.store.loaded import RunData
from harness.store.rows import ComparisonRow, GateRow, GateStatus

_WORST_FIRST: tuple[GateStatus, ...] = ("fail", "incomplete", "pass")


def build_report(data: RunData) -> RunReport:
    """Return the report of a run; gates that were not stored yet are evaluated."""
    index = RunIndex(data)
    gates = tuple(sorted(data.gates or gate_rules.evaluate(data), key=_gate_order))
    noise = _noise(index, CellReader(index, gates))
    machine = machine_reasons(data.run, data.conditions)
    refusals = (*machine, *noise_refusals(noise, data.run.blocks))
    marks = machine_marks(data.run, data.conditions)
    groups = tuple(_groups(index, CellReader(index, gates, refusals), noise))
    summaries = tuple(_summaries(gates))
    against_quoting = (*refusals, *cached_reasons(data.blocks, index.cells))
    stored = data.run.exit_code
    return RunReport(
        run=data.run,
        exit_code=gate_rules.exit_code(gates) if stored is None else stored,
        unquotable_reasons=unquotable(data.run, summaries, groups, against_quoting, marks),
        refusals=refusals,
        machine_refusals=machine,
        machine=summary(data.conditions),
        partings=tuple(partings(data, gates)),
        gates=gates,
        summaries=summaries,
        groups=groups,
        failures=tuple(failures(index)),
        skips=tuple(skips(index)),
        near_ties=tuple(near_ties(index)),
        warnings=tuple(dict.fromkeys(text for row in data.conditions for text in row.warnings)),
        environment=data.run.environment,
    )


def comparison_rows(report: RunReport) -> tuple[ComparisonRow, ...]:
    """Return the ratios of a report as the database keeps them."""
    return tuple(
        ComparisonRow(
            run_id=report.run.run_id,
            model=cell.place.model,
            workload=cell.place.workload,
            cell=cell.place.cell,
            baseline=against.baseline,
            metric=against.figure,
            n=against.ratio.n,
            estimate=against.ratio.estimate,
            low=against.ratio.low,
            high=against.ratio.high,
            verdict=against.ratio.verdict,
        )
        for cell in report.cells
        for against in cell.ratios
    )


def _gate_order(gate: GateRow) -> tuple[int, str, str, str]:
    return (gate_rules.ORDER.index(gate.name), gate.model, gate.workload, gate.cell)


def _noise(index: RunIndex, reader: CellReader) -> Mapping[Place, Against]:
    """Return each A/A cell with its ratio to the baseline it repeats."""
    found = {
        place: reader.against(place, index.cell(place).baseline)
        for place in index.places()
        if index.cell(place).kind == "aa"
    }
    return {place: against for place, against in found.items() if against is not None}


def _groups(index: RunIndex, reader: CellReader, noise: Mapping[Place, Against]) -> Iterator[Group]:
    groups: dict[tuple[str, str], list[Place]] = {}
    for place in index.places():
        if not index.is_skipped(place):
            groups.setdefault((place.model, place.workload), []).append(place)
    for (model, workload), places in groups.items():
        yield Group(
            model=model,
            workload=index.workloads[workload],
            cells=tuple(reader.read(place) for place in places if place not in noise),
            noise=next((noise[place] for place in places if place in noise), None),
        )


def _summaries(rows: Sequence[GateRow]) -> Iterator[GateSummary]:
    for name in dict.fromkeys(row.name for row in rows):
        same = [row for row in rows if row.name == name]
        n = sum(row.n for row in same)
        seen = sum((row.observed or 0.0) * row.n for row in same)
        yield GateSummary(
            name=name,
            status=next(s for s in _WORST_FIRST if any(row.status == s for row in same)),
            observed=seen / n if n else None,
            n=n,
        )
