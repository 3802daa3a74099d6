"""`fm promote`: from a stored run to the results page, and the row that says it was promoted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.report.build import build_report
from harness.report.figures import RunReport
from harness.results.page import ResultsError, page_of, read_page, write_page
from harness.results.tables import ResultTable, Row, rows_of, tables_of
from harness.store import EvalStore, PromotionRow, new_id, utc_now


@dataclass(frozen=True, slots=True)
class Promotion:
    """What a run would write: tables, and the rows that are left out with their reasons."""

    tables: tuple[ResultTable, ...]
    left_out: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Promoted:
    """What was done.

    Args:
        is_changed: False when the page held all of it already.
        notes: what a person should know, one line each.
    """

    is_changed: bool
    notes: tuple[str, ...]


def promotion_of(report: RunReport, *, with_unquotable: bool) -> Promotion:
    """Return what a run gives the page; rows that are not quotable only where they are asked for.

    Raises:
        ResultsError: the run has not come to its end, or nothing of it may be written.
    """
    run = report.run
    if run.status != "finished":
        raise ResultsError(
            f"run {run.run_id} is {run.status}; finish it first: fm run --resume {run.run_id}"
        )
    rows = rows_of(report)
    if not rows:
        raise ResultsError(f"run {run.run_id} measured no speed; there is nothing to promote")
    tables = tables_of(report, rows, "quotable")
    refused = tuple(row for row in rows if row.reasons)
    if with_unquotable:
        return Promotion((*tables, *tables_of(report, rows, "unquotable")), ())
    if not tables:
        reasons = dict.fromkeys(reason for row in rows for reason in row.reasons)
        raise ResultsError(
            f"run {run.run_id} is not quotable: {'; '.join(reasons)}; --unquotable writes it to a "
            "section marked so"
        )
    return Promotion(tables, refused)


def promote(
    store: EvalStore, reference: str, destination: Path, *, with_unquotable: bool
) -> Promoted:
    """Write what a run found to the results page, and that it was promoted to the database.

    Twice is the same as once, in both.

    Raises:
        ResultsError: nothing of the run may be written, or the page cannot be.
        FmError: there is no such run, or the database does not take the row.
    """
    report = build_report(store.load_report(store.find_run(reference).run_id))
    promotion = promotion_of(report, with_unquotable=with_unquotable)
    with page_of(destination) as file:
        is_changed = write_page(file, read_page(file).with_tables(promotion.tables))
    sections = {item.origin.section for item in promotion.tables}
    reasons = [reason for row in rows_of(report) for reason in row.reasons]
    is_quotable = "unquotable" not in sections
    store.record_promotion(
        PromotionRow(
            promotion_id=new_id(),
            run_id=report.run.run_id,
            promoted_at=utc_now(),
            quotable=is_quotable,
            reasons=() if is_quotable else tuple(dict.fromkeys(reasons)),
            destination=str(destination),
        )
    )
    return Promoted(is_changed, tuple(_notes(promotion)))


def _notes(promotion: Promotion) -> Iterator[str]:
    for row in promotion.left_out:
        place = row.cell.place
        yield (
            f"left out {place.model} {place.workload} {place.cell}, which is not quotable: "
            f"{'; '.join(row.reasons)}; --unquotable writes it to a section marked so"
        )
