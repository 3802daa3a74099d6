"""The Markdown report: the same rows give the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness.report import numbers
from harness.report.checks import NONE_LINE, failure_section, gate_section, routing_section
from harness.report.composition import composition
from harness.report.figures import RunReport
from harness.report.gfm import bullets, code_block, escape, table
from harness.report.mechanisms import acceptance_section, grammar_section
from harness.report.outcome import outcome_word
from harness.report.step_section import step_section
from harness.revision import revision_text
from harness.store.rows import RunRow


def to_markdown(report: RunReport) -> str:
    """Return the whole report, ending in a line end."""
    return "\n\n".join(section(report) for section in SECTIONS) + "\n"


def flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted keys and texts of a nested mapping, sorted by key."""
    for key in sorted(value):
        item = value[key]
        if isinstance(item, Mapping):
            yield from flatten(item, f"{prefix}{key}.")
        elif isinstance(item, list | tuple):
            yield f"{prefix}{key}", ", ".join(map(str, item))
        else:
            yield f"{prefix}{key}", numbers.DASH if item is None else str(item)


def _banner(report: RunReport) -> str:
    run = report.run
    lines = (
        f"# {escape(run.tag)}: {outcome_word(report.exit_code)}",
        "**QUOTABLE**" if report.is_quotable else "**UNQUOTABLE**, because",
        *([] if report.is_quotable else [bullets(report.unquotable_reasons)]),
        (
            f"Run {escape(run.run_id)}, {escape(run.created_at)}, preset {escape(run.preset)}: "
            f"{numbers.counted(run.blocks, 'block')} of {numbers.counted(run.prompts, 'prompt')}, "
            f"cap {cap_of(run)} tokens a reply (a grammar cell keeps what its schema needs), "
            f"seed {run.seed}. Exit code {report.exit_code}."
        ),
    )
    return "\n\n".join(lines)


def cap_of(run: RunRow) -> str:
    """Return the largest number of tokens a reply of a run may have."""
    return "the workload's own" if run.max_tokens is None else str(run.max_tokens)


def _environment(report: RunReport) -> str:
    rows = list(flatten(report.environment))
    columns = (("what", False), ("value", False))
    parts = ["## Environment", table(columns, rows) if rows else NONE_LINE]
    if report.machine or report.warnings:
        parts.append(bullets([*report.machine, *report.warnings]))
    return "\n\n".join(parts)


def _reproduce(report: RunReport) -> str:
    run = report.run
    again = f"The raw observations are in the database; `fm report {run.run_id}` writes this"
    told = f"{escape(origin(run))} {again} file again."
    return "\n\n".join(("## How to reproduce", code_block(run.command), told))


def origin(run: RunRow) -> str:
    """Return what a run was made from, in a sentence."""
    revision = revision_text(run.git_sha, is_dirty=run.git_dirty)
    return (
        f"Revision {revision}, plan {run.plan_hash or 'unknown'}, "
        f"target {run.target}, seed {run.seed}."
    )


SECTIONS: tuple[Callable[[RunReport], str], ...] = (
    _banner,
    gate_section,
    composition,
    grammar_section,
    acceptance_section,
    step_section,
    routing_section,
    failure_section,
    _environment,
    _reproduce,
)
"""The parts of the report, in the order in which they are read."""
