"""The JSON report: the contract scripts read. Absent figures are null, never NaN."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from harness.report.figures import (
    Acceptance,
    Against,
    CellFigures,
    Conforming,
    Parting,
    Partings,
    RunReport,
    Speed,
    Spread,
    StepTime,
)
from harness.stats import tail
from harness.store.codec import clean

SCHEMA_VERSION = 1


def to_json(report: RunReport) -> str:
    """Return the report as strict JSON with a line end, in the key order of the contract."""
    return json.dumps(to_mapping(report), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_mapping(report: RunReport) -> dict[str, Any]:
    """Return the report as JSON values; an object without data is None."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "run_id": report.run.run_id,
        "exit_code": report.exit_code,
        "quotable": report.is_quotable,
        "gates": [
            {"name": gate.name, "status": gate.status, "observed": gate.observed, "n": gate.n}
            for gate in report.summaries
        ],
        "cells": [_cell(cell) for cell in report.cells],
        "environment": {**report.environment, **_client(report)},
        "partings": [partings_mapping(cell) for cell in report.partings],
    }
    cleaned: dict[str, Any] = clean(content)
    return cleaned


def partings_mapping(cell: Partings) -> dict[str, Any]:
    """Return the replies of a cell that are not their reference's: `n`, and the first of them."""
    return {
        "model": cell.place.model,
        "workload": cell.place.workload,
        "cell": cell.place.cell,
        "reference": cell.reference,
        "n": cell.n,
        "replies": [
            {
                "trial_id": parting.trial_id,
                "block": parting.block,
                "prompt_id": parting.prompt_id,
                "position": parting.position,
                "token": parting.token,
                "reference_token": parting.reference_token,
                "judged": _judged(parting),
                "text": {
                    "before": parting.before,
                    "reply": parting.reply,
                    "reference": parting.reference_reply,
                },
            }
            for parting in cell.shown
        ],
    }


def _judged(parting: Parting) -> dict[str, Any] | None:
    """Return what the oracle said, None where it was not asked."""
    if not parting.is_judged:
        return None
    return {
        "position": parting.judged_at,
        "gap": parting.gap,
        "near_tie_below": parting.near_tie_below,
    }


def _client(report: RunReport) -> dict[str, Any]:
    """Return what is known of the load client, empty where there was none."""
    delays = {
        f"{cell.place.model} {cell.place.workload} {cell.place.cell}": 100 * cell.client_delay
        for cell in report.cells
        if cell.client_delay is not None
    }
    retries = sum(cell.retries for cell in report.cells)
    return {"client": {"delay_pct": delays, "retries": retries}} if delays else {}


def _cell(cell: CellFigures) -> dict[str, Any]:
    grammar = cell.grammar
    return {
        "model": cell.place.model,
        "workload": cell.place.workload,
        "cell": cell.place.cell,
        "lane": cell.cell.lane,
        "lane_taken": cell.lane_taken or None,
        "baseline": cell.cell.baseline,
        "n_blocks": cell.num_blocks,
        "tok_s": _speed(cell.speed),
        "ttft_ms": _milliseconds(cell.ttft),
        "ratio": _ratio(cell.main),
        "acceptance": _acceptance(cell.acceptance),
        "grammar_overhead_pct": None if grammar is None else grammar.overhead_pct,
        "grammar_free_ratio_pct": None if grammar is None else grammar.free_ratio_pct,
        "mask_us_per_token": None if grammar is None else grammar.mask_us_per_token,
        "conformance": _conforming(cell.conforming),
        "peak_bytes": _object({"mlx": cell.peak_mlx_bytes, "rss": cell.peak_rss_bytes}),
        "step_parts_ms": _parts(cell.step_time),
        "accept_histogram": _histogram(cell.acceptance),
        "roofline": None if cell.roofline is None else asdict(cell.roofline),
    }


def _parts(time: StepTime | None) -> dict[str, float] | None:
    """Return the parts of a mean decode step, which sum to it."""
    if time is None:
        return None
    return {name: 1000 * seconds for name, seconds in time.parts_s.items()}


def _histogram(acceptance: Acceptance | None) -> list[int] | None:
    """Return target calls by how many drafts they accepted, from 0 on."""
    counts = None if acceptance is None else acceptance.histogram
    return None if counts is None else list(counts)


def _speed(speed: Speed) -> dict[str, Any] | None:
    return _object({"aggregate": speed.aggregate, "per_stream": speed.per_stream, "e2e": speed.e2e})


def _milliseconds(spread: Spread | None) -> dict[str, Any] | None:
    if spread is None:
        return None
    p95 = None if tail(spread.n) == "hidden" else 1000 * spread.p95
    return {"p50": 1000 * spread.p50, "p95": p95}


def _ratio(against: Against | None) -> dict[str, Any] | None:
    """Return the ratio; what it compares is named where that is not `aggregate`."""
    if against is None or against.ratio.estimate is None:
        return None
    ratio = against.ratio
    named = {} if against.figure == "aggregate" else {"figure": against.figure}
    return {
        "estimate": ratio.estimate,
        "low": ratio.low,
        "high": ratio.high,
        "verdict": ratio.verdict,
        **named,
    }


def _acceptance(acceptance: Acceptance | None) -> dict[str, Any] | None:
    if acceptance is None:
        return None
    shares = [
        accepted / drafted if drafted else None for drafted, accepted in acceptance.per_position
    ]
    return {
        "rate": acceptance.rate,
        "drafted": acceptance.drafted,
        "accepted": acceptance.accepted,
        "target_calls": acceptance.target_calls,
        "per_position": shares or None,
    }


def _conforming(value: Conforming | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return {"n": value.n, "ok": value.ok, "lower_bound": value.lower_bound}


def _object(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the values, None when none of them is there."""
    return None if all(value is None for value in values.values()) else dict(values)
