"""The conformance gate: every way to be wrong turns it red, seeing nothing is not passing."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from engine.errors import SchemaError
from harness.judging.grade import (
    Conformance,
    Grade,
    Outcome,
    conformance_lower_bound,
    grade_reply,
    judge_conformance,
)
from tests.effort import effort

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "born": {"type": "string", "format": "date"},
        "price": {"type": "number", "minimum": 0, "maximum": 100, "multipleOf": 0.01},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2},
    },
    "required": ["name", "born"],
    "additionalProperties": False,
}
GOOD = '{"name":"Ada","born":"1815-12-10","price":0.07}'
ANOTHER_SCHEMA = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}

RED: dict[str, tuple[str | None, str | None, Outcome]] = {
    "cut by the budget": (GOOD[:20], "length", Outcome.TRUNCATED),
    "cut by the budget, whole by luck": (GOOD, "length", Outcome.TRUNCATED),
    "cut by the budget, no content": (None, "length", Outcome.TRUNCATED),
    "cut, called a stop": (GOOD[:20], "stop", Outcome.NOT_JSON),
    "no content": (None, "stop", Outcome.EMPTY),
    "empty": ("", "stop", Outcome.EMPTY),
    "blank": (" \n", "stop", Outcome.EMPTY),
    "failed": (GOOD, "error", Outcome.ERROR),
    "cancelled": (GOOD, "cancelled", Outcome.ERROR),
    "never finished": (GOOD, None, Outcome.ERROR),
    "an unknown ending": (GOOD, "tool_calls", Outcome.ERROR),
    "text after": (GOOD + " There you go.", "stop", Outcome.NOT_JSON),
    "text before": ("Sure! " + GOOD, "stop", Outcome.NOT_JSON),
    "twice": (GOOD + GOOD, "stop", Outcome.NOT_JSON),
    "in a fence": (f"```json\n{GOOD}\n```", "stop", Outcome.NOT_JSON),
    "NaN": (GOOD.replace("0.07", "NaN"), "stop", Outcome.NOT_JSON),
    "a key twice": ('{"name":"Ada",' + GOOD[1:], "stop", Outcome.DUPLICATE_KEY),
    "beyond a double": (GOOD.replace("0.07", "1e999"), "stop", Outcome.OUT_OF_RANGE),
    "beyond the maximum": (GOOD.replace("0.07", "100.01"), "stop", Outcome.SCHEMA_INVALID),
    "part of a cent": (GOOD.replace("0.07", "0.075"), "stop", Outcome.SCHEMA_INVALID),
    "no such day": (GOOD.replace("12-10", "02-30"), "stop", Outcome.SCHEMA_INVALID),
    "a field missing": ('{"name":"Ada"}', "stop", Outcome.SCHEMA_INVALID),
    "a field unknown": ('{"x":1,' + GOOD[1:], "stop", Outcome.SCHEMA_INVALID),
    "a string too long": (GOOD.replace("Ada", "A" * 21), "stop", Outcome.SCHEMA_INVALID),
    "another type": ('"Ada"', "stop", Outcome.SCHEMA_INVALID),
}

OK = Grade(outcome=Outcome.OK)


def grade(text: str | None, finish_reason: str | None = "stop", **expected: Any) -> Grade:
    return grade_reply(text, finish_reason, SCHEMA, expected=expected or None)


def judge(*outcomes: Outcome, allow_truncation: bool = False) -> Conformance:
    grades = [Grade(outcome=outcome) for outcome in outcomes]
    return judge_conformance(grades, allow_truncation=allow_truncation)


def test_a_valid_document_is_ok_and_passes() -> None:
    verdict = judge_conformance([grade(GOOD)])
    assert (verdict.status, verdict.n, verdict.ok, verdict.reasons) == ("pass", 1, 1, ())


@pytest.mark.parametrize(("text", "finish_reason", "outcome"), RED.values(), ids=RED)
def test_each_fault_has_its_bucket_and_turns_the_gate_red(
    text: str | None, finish_reason: str | None, outcome: Outcome
) -> None:
    found = grade(text, finish_reason)
    assert found.outcome is outcome
    verdict = judge_conformance([OK] * 31 + [found])
    assert verdict.status == "fail"
    assert (verdict.n, verdict.ok, verdict.buckets[outcome]) == (32, 31, 1)
    assert outcome in verdict.reasons[0]


def test_a_hard_coded_document_turns_the_gate_red() -> None:
    replies = [grade_reply(GOOD, "stop", schema) for schema in (SCHEMA, ANOTHER_SCHEMA)]
    assert judge_conformance(replies).status == "fail"


def test_a_document_the_matcher_did_not_accept_turns_the_gate_red() -> None:
    found = grade_reply(GOOD, "stop", SCHEMA, is_accepting=False)
    assert found.outcome is Outcome.NOT_ACCEPTED
    assert judge_conformance([found]).status == "fail"
    assert grade_reply(GOOD, "stop", SCHEMA, is_accepting=True).outcome is Outcome.OK


def test_a_targets_own_error_comes_before_its_text() -> None:
    found = grade_reply(GOOD, "stop", SCHEMA, error="connection\nreset")
    assert (found.outcome, found.detail) == (Outcome.ERROR, "connection reset")


def test_a_schema_that_is_none_is_an_error_of_ours_not_of_the_model() -> None:
    with pytest.raises(SchemaError):
        grade_reply(GOOD, "stop", {"type": "objekt"})


def test_nothing_judged_is_incomplete() -> None:
    verdict = judge()
    assert (verdict.status, verdict.n, verdict.lower_bound) == ("incomplete", 0, None)


def test_allowed_truncation_is_counted_apart() -> None:
    verdict = judge(Outcome.OK, Outcome.TRUNCATED, allow_truncation=True)
    assert (verdict.status, verdict.n, verdict.ok) == ("pass", 1, 1)
    assert verdict.buckets == {Outcome.OK: 1, Outcome.TRUNCATED: 1}
    assert judge(Outcome.OK, Outcome.TRUNCATED).status == "fail"


def test_only_allowed_truncation_is_incomplete() -> None:
    assert judge(Outcome.TRUNCATED, allow_truncation=True).status == "incomplete"


def test_allowed_truncation_excuses_nothing_else() -> None:
    assert judge(Outcome.OK, Outcome.EMPTY, allow_truncation=True).status == "fail"


def test_a_format_nobody_checks_makes_the_gate_incomplete() -> None:
    found = grade_reply('"a b"', "stop", {"type": "string", "format": "slug"})
    verdict = judge_conformance([OK, found])
    assert verdict.status == "incomplete"
    assert "slug" in verdict.reasons[0]


def test_a_failure_outweighs_a_gap() -> None:
    found = grade_reply("1", "stop", {"type": "string", "format": "slug"})
    assert judge_conformance([found]).status == "fail"


@pytest.mark.parametrize(
    ("compiled", "status"), [(None, "incomplete"), (9, "fail"), (10, "pass"), (11, "pass")]
)
def test_the_pinned_number_of_schemas_has_to_compile(compiled: int | None, status: str) -> None:
    assert judge_conformance([OK], must_compile=10, compiled=compiled).status == status


@pytest.mark.parametrize(("n", "bound"), [(1, 0.05), (32, 0.9106), (300, 0.99006)])
def test_no_failure_of_n_proves_this_much(n: int, bound: float) -> None:
    assert conformance_lower_bound(n, n) == pytest.approx(bound, abs=1e-4)
    assert judge(*[Outcome.OK] * n).lower_bound == conformance_lower_bound(n, n)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_bound_is_clopper_and_pearsons(case: tuple[int, int]) -> None:
    ok, n = case
    exact = float(beta.ppf(0.05, ok, n - ok + 1)) if ok else 0.0
    assert conformance_lower_bound(ok, n) == pytest.approx(exact, abs=1e-9)


def test_five_thousand_absurd_numbers_are_graded_with_little_effort() -> None:
    def grade() -> None:
        text = "[" + ",".join(["1e4299"] * 5000) + "]"
        assert grade_reply(text, "stop", {"type": "array"}).outcome is Outcome.OUT_OF_RANGE
        text = "[" + ",".join(["1e308"] * 5000) + "]"
        schema = {"items": {"multipleOf": 0.01, "maximum": 1.7e308}}
        assert grade_reply(text, "stop", schema).outcome is Outcome.OK

    assert effort(grade) < 60


def test_fields_are_counted_by_leaf() -> None:
    found = grade(GOOD, name="Ada", born="1815-12-11", price=0.07, tags=["math"])
    assert (found.outcome, found.correct, found.total) == (Outcome.OK, 2, 4)
    assert found.field_accuracy == 0.5


@pytest.mark.parametrize(
    ("text", "wanted", "is_equal"),
    [
        ('" ADA "', "Ada", True),
        ('"STRASSE"', "straße", True),
        ("12.0", 12, True),
        ("1.2e1", 12, True),
        ('"12"', 12, False),
        ("1", True, False),
        ("true", 1, False),
        ("true", True, True),
        ("null", None, True),
        ("0", None, False),
    ],
)
def test_fields_compare_by_value(text: str, wanted: Any, is_equal: bool) -> None:
    found = grade_reply(f'{{"a":{text}}}', "stop", {}, expected={"a": wanted})
    assert found.field_accuracy == float(is_equal)


def test_items_compare_in_order_and_missing_ones_count() -> None:
    expected = {"a": [{"b": 1}, {"b": 2}, {"b": 3}]}
    found = grade_reply('{"a":[{"b":1},{"b":3}]}', "stop", {}, expected=expected)
    assert (found.correct, found.total) == (1, 3)


def test_an_unread_reply_has_no_field_right() -> None:
    assert grade(GOOD, "length", name="Ada").field_accuracy == 0.0
    assert grade("Ada was born in 1815.", name="Ada").field_accuracy == 0.0


def test_where_nothing_is_expected_there_is_no_accuracy() -> None:
    assert grade(GOOD).field_accuracy is None


def test_a_verdict_holds_nothing_a_strict_json_writer_refuses() -> None:
    verdict = judge(Outcome.OK, Outcome.EMPTY)
    assert math.isfinite(verdict.lower_bound or 0.0)
    json.dumps({"buckets": verdict.buckets, "bound": verdict.lower_bound}, allow_nan=False)
