"""The audit of the grammar on the schema zoo: no model decodes, only its tokenizer is used.

Every entry compiles or is refused as it is pinned; every valid document is legal, but those listed
as stricter; no invalid one is; and every document that chance writes under the masks is valid for
two validators. Mask times are those of the walks, compile times cold and from the cache. Run it
with `scripts/audit --zoo`.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from engine.errors import FmError
from engine.grammar.compile import GrammarCompiler
from engine.models.load import LoadedModel, load_model
from harness import exit_codes
from harness.judging.grade import conformance_lower_bound
from harness.planning.choices import DEFAULT_MODELS
from harness.stats import percentile
from harness.workloads.zoo_entries import Entry, read_zoo
from harness.zoo.carried import read_carried
from harness.zoo.visits import Visit, Visitor
from harness.zoo.walks import Walker


@dataclass(slots=True)
class Summary:
    """The sums over some visits; a figure nothing was seen of is None.

    Attributes:
        lower_bound: least share of valid documents among all that can be walked, at 95 %.
        stricter_pct: valid documents the grammar does not allow, in percent of all.
        mask_us, compile_ms, cached_us: percentiles by nearest rank.
    """

    model: str
    schemas: int
    compiled: int
    refused: int
    valid: int
    invalid: int
    walks: int
    cut: int
    caught: int
    masks: int
    lower_bound: float | None
    stricter_pct: float | None
    mask_us: dict[str, float | None]
    compile_ms: dict[str, float | None]
    cached_us: dict[str, float | None]
    failures: dict[str, list[str]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return it for people."""
        return [
            f"{self.schemas} schemas: {self.compiled} compile, {self.refused} are refused by name",
            f"{self.valid} valid documents: {_shown(self.stricter_pct, '.2f')} % not legal",
            f"{self.invalid} invalid documents refused",
            f"{self.walks} documents written by chance, all valid for two validators unless told",
            f"so at least {_shown(self.lower_bound, '.2%')} of all such documents are",
            f"{self.caught} more caught by the final check, {self.cut} cut at their budget",
            f"mask us a token, {self.masks} masks: {_percentiles(self.mask_us)}",
            f"compile ms, cold: {_percentiles(self.compile_ms)}",
            f"compile us, cached: {_percentiles(self.cached_us)}",
        ]


def visit_all(
    model: LoadedModel, entries: Iterable[Entry], num_walks: int, seed: int
) -> list[Visit]:
    """Visit entries with one compiler; chance depends on the seed alone."""
    walker = Walker(model.tokenizer, model.vocab_size, model.eos_ids, np.random.default_rng(seed))
    visitor = Visitor(GrammarCompiler.of(model), model.tokenizer, walker, num_walks)
    return [visitor.visit(entry) for entry in entries]


def summed(model: str, visits: Sequence[Visit]) -> Summary:
    """Return the sums over visits."""
    totals: Counter[str] = Counter()
    for visit in visits:
        for name in ("valid", "invalid", "stricter", "walks", "cut", "caught", "is_refused"):
            totals[name] += getattr(visit, name)
    masks = [seconds for visit in visits for seconds in visit.mask_s]
    walks, valid = totals["walks"], totals["valid"]
    return Summary(
        model=model,
        schemas=len(visits),
        compiled=len(visits) - totals["is_refused"],
        refused=totals["is_refused"],
        valid=valid,
        invalid=totals["invalid"],
        walks=walks,
        cut=totals["cut"],
        caught=totals["caught"],
        masks=len(masks),
        lower_bound=conformance_lower_bound(walks, walks) if walks else None,
        stricter_pct=100 * totals["stricter"] / valid if valid else None,
        mask_us=_spread(masks, 1e6),
        compile_ms=_spread([item.compile_s for item in visits if item.compile_s is not None], 1e3),
        cached_us=_spread([item.cached_s for item in visits if item.cached_s is not None], 1e6),
        failures={visit.name: visit.failures for visit in visits if visit.failures},
    )


@click.command(help=__doc__)
@click.option("--model", default=DEFAULT_MODELS[0], show_default=True, help="whose tokenizer")
@click.option("--walks", type=click.IntRange(0, 10_000), default=20, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--carried/--no-carried", default=True, help="the schemas of check-jsonschema too")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, writable=True))
def main(model: str, walks: int, seed: int, *, carried: bool, json_path: str | None) -> None:
    """Audit the grammar; exits 3 when something does not hold, 6 when nothing was seen."""
    started_s = time.monotonic()
    visits: list[Visit] = []
    try:
        loaded = load_model(model)
        entries = [*read_zoo(), *(read_carried() if carried else ())]
        for family in dict.fromkeys(entry.family for entry in entries):
            of_family = [entry for entry in entries if entry.family == family]
            seen = visit_all(loaded, of_family, walks, seed)
            visits += seen
            click.echo(f"{time.monotonic() - started_s:6.0f} s  {_family_line(family, seen)}")
    except FmError as error:
        click.echo(f"fm: {error}", err=True)
        sys.exit(exit_codes.USAGE)
    summary = summed(model, visits)
    for line in summary.lines():
        click.echo(line)
    for name, failures in summary.failures.items():
        for failure in failures:
            click.echo(f"FAIL  {name}: {failure}")
    if json_path is not None:
        Path(json_path).write_text(json.dumps(asdict(summary), indent=1), encoding="utf-8")
    sys.exit(_exit_code(summary))


def _exit_code(summary: Summary) -> int:
    if summary.failures:
        return exit_codes.CORRECTNESS
    return exit_codes.PASS if summary.compiled else exit_codes.INCOMPLETE


def _family_line(family: str, visits: Sequence[Visit]) -> str:
    bad = sum(bool(visit.failures) for visit in visits)
    word = "FAIL" if bad else "pass"
    return f"{word}  {family}: {len(visits)} schemas, {sum(visit.walks for visit in visits)} walks"


def _spread(values: Sequence[float], unit: float) -> dict[str, float | None]:
    scaled = [unit * value for value in values]
    return {f"p{p}": percentile(scaled, p) for p in (50, 95, 99)}


def _percentiles(spread: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {_shown(value, '.1f')}" for name, value in spread.items())


def _shown(value: Any, form: str) -> str:
    return "n/a" if value is None else format(value, form)


if __name__ == "__main__":
    main()
