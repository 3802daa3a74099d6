"""A judgement as JSON for programs; absent figures are null, never NaN."""

from __future__ import annotations

import json
from typing import Any

from harness.exit_codes import WORDS
from harness.policy.judgement import Finding, Judgement
from harness.report.json_report import partings_mapping
from harness.store.codec import clean

SCHEMA_VERSION = 1


def to_json(judgement: Judgement) -> str:
    """Return strict JSON with a line end."""
    run = judgement.run
    content = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run.run_id,
        "policy": judgement.policy,
        "head": {"commit": run.git_sha or None, "changed": run.git_dirty},
        "base": judgement.base or None,
        "verdict": WORDS[judgement.verdict],
        "exit_code": judgement.exit_code,
        "strict": judgement.is_strict,
        "findings": [_finding(item) for item in judgement.findings],
        "notes": list(judgement.notes),
    }
    return json.dumps(clean(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _finding(item: Finding) -> dict[str, Any]:
    place, count, effect = item.place, item.count, item.effect
    return {
        "kind": item.kind,
        "name": item.name,
        "model": place.model or None,
        "workload": place.workload or None,
        "cell": place.cell or None,
        "status": item.status,
        "decides": item.is_hard,
        "detail": item.detail,
        "observed": item.observed,
        "n": item.n,
        "count": None
        if count is None
        else {"head": count.head, "base": count.base, "exact": count.is_exact},
        "effect": None
        if effect is None
        else {
            "ratio": effect.ratio,
            "low": effect.low,
            "high": effect.high,
            "limit": effect.limit,
            "p": effect.p,
            "wins": effect.wins,
            "spread": effect.spread,
            "minimum_detectable": effect.minimum_detectable,
        },
        "partings": None if item.partings is None else partings_mapping(item.partings),
    }
