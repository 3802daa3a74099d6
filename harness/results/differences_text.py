"""What differs between two runs, as Markdown and as JSON: only what differs is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from harness.report.checks import PLACE, place_names
from harness.report.gfm import bullets, escape, table
from harness.report.numbers import counted
from harness.results.differences import Difference, RunsCompared
from harness.revision import SHORT, revision_text
from harness.store.codec import clean
from harness.store.index import Place
from harness.store.rows import RunRow

SCHEMA_VERSION = 1
SIDES = (("A", False), ("B", False))

LEGEND = (
    "Each figure is one run's own, with the 95 % interval of that run. Machines change between "
    "runs, so no interval says how A and B differ, and no speed-up is computed across them: "
    "`fm gate --base REF` measures two builds in one run."
)


def compared_markdown(compared: RunsCompared) -> str:
    """Return the comparison, ending in a line end; parts without a difference are left out."""
    parts = [part for section in SECTIONS for part in section(compared)]
    return "\n\n".join(parts) + "\n"


def compared_json(compared: RunsCompared) -> str:
    """Return the comparison as strict JSON with a line end."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "a": compared.one.run_id,
        "b": compared.other.run_id,
        "comparable": compared.is_comparable,
        "not_comparable": [*compared.not_comparable, *compared.places_not_comparable],
        "settings": [_difference(item) for item in compared.settings],
        "environment": [_difference(item) for item in compared.environment],
        "gates": [
            {"gate": item.gate, **_place(item.place), "a": item.one, "b": item.other}
            for item in compared.gates
        ],
        "figures": [
            {
                **_place(item.place),
                "figure": item.what,
                "a": asdict(item.one),
                "b": asdict(item.other),
            }
            for item in compared.figures
        ],
        "figures_alike": compared.same,
        "only_a": [_place(place) for place in compared.only_one],
        "only_b": [_place(place) for place in compared.only_other],
    }
    return json.dumps(clean(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _difference(item: Difference) -> dict[str, Any]:
    return {"what": item.what, "a": item.one, "b": item.other}


def _place(place: Place) -> dict[str, Any]:
    return {"model": place.model, "workload": place.workload, "cell": place.cell}


def _banner(compared: RunsCompared) -> list[str]:
    parts = [
        f"# {escape(compared.one.run_id)} (A) and {escape(compared.other.run_id)} (B)",
        f"A: {_told(compared.one)}.\n\nB: {_told(compared.other)}.",
    ]
    barriers = [*compared.not_comparable, *compared.places_not_comparable]
    if barriers:
        parts += ["**Not comparable**:", bullets(f"not comparable: {line}" for line in barriers)]
    return parts


def _told(run: RunRow) -> str:
    amounts = f"{counted(run.blocks, 'block')} of {counted(run.prompts, 'prompt')}"
    return f"{escape(run.tag)}, {escape(run.created_at)}, {amounts}, revision {_revision(run)}"


def _revision(run: RunRow) -> str:
    return escape(revision_text(run.git_sha[:SHORT], is_dirty=run.git_dirty))


def _settings(compared: RunsCompared) -> list[str]:
    return _differences("Settings", compared.settings)


def _environment(compared: RunsCompared) -> list[str]:
    return _differences("Environment", compared.environment)


def _differences(heading: str, items: Sequence[Difference]) -> list[str]:
    if not items:
        return []
    rows = [(item.what, item.one, item.other) for item in items]
    return [f"## {heading}", table((("what", False), *SIDES), rows)]


def _gates(compared: RunsCompared) -> list[str]:
    if not compared.gates:
        return []
    rows = [(*place_names(item.place), item.gate, item.one, item.other) for item in compared.gates]
    return ["## Gates", table((*PLACE, ("gate", False), *SIDES), rows), *_where_told(compared)]


def _where_told(compared: RunsCompared) -> list[str]:
    """Return which reports show replies of a gate identity that failed in one run."""
    identity = [item for item in compared.gates if item.gate == "identity"]
    sides = (
        (compared.one, [item.one for item in identity]),
        (compared.other, [item.other for item in identity]),
    )
    lines = [
        f"fm report {run.run_id} shows where replies part from their reference, with their texts"
        for run, outcomes in sides
        if any(outcome.startswith("fail") for outcome in outcomes)
    ]
    return [bullets(lines)] if lines else []


def _figures(compared: RunsCompared) -> list[str]:
    if not compared.figures and not compared.same:
        return ["## Figures", "None can be told side by side."]
    alike = f"{counted(compared.same, 'figure')} printed alike."
    if not compared.figures:
        return ["## Figures", f"None differs as printed; {alike}"]
    rows = [
        (*place_names(item.place), item.what, item.one.text, item.other.text)
        for item in compared.figures
    ]
    right = (("A", True), ("B", True))
    return ["## Figures", table((*PLACE, ("figure", False), *right), rows), LEGEND, alike]


def _missing(compared: RunsCompared) -> list[str]:
    rows = [(*place_names(place), "A alone") for place in compared.only_one]
    rows += [(*place_names(place), "B alone") for place in compared.only_other]
    return ["## Cells of one run", table((*PLACE, ("in", False)), rows)] if rows else []


SECTIONS: tuple[Callable[[RunsCompared], list[str]], ...] = (
    _banner,
    _settings,
    _environment,
    _gates,
    _figures,
    _missing,
)
