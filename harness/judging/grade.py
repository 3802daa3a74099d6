"""What a reply is worth: its outcome against a schema, the conformance gate, field accuracy.

The rule: finish "stop", the matcher accepting, exactly one JSON document, valid under its schema.
How a reply ended is looked at before its text is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from engine.document import DocumentError, read_document
from engine.request import FinishReason
from harness.stats import CONFIDENCE
from harness.store.rows import GateStatus

if TYPE_CHECKING:
    from harness.judging.validation import SchemaCheck

NEGLIGIBLE = 1e-20
"""Share of a sum's largest term below which a term changes nothing."""


class Outcome(StrEnum):
    """The one bucket a reply falls into."""

    OK = "ok"
    TRUNCATED = "truncated"
    ERROR = "error"
    EMPTY = "empty"
    NOT_JSON = "not-json"
    DUPLICATE_KEY = "duplicate-key"
    OUT_OF_RANGE = "out-of-range"
    SCHEMA_INVALID = "schema-invalid"
    NOT_ACCEPTED = "not-accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """One reply, graded.

    Args:
        detail: why it is not OK, one line.
        correct, total: leaf fields equal to the expected ones, of all expected ones; total is 0
            where nothing is expected.
        unchecked_formats: formats of the schema that nothing could check.
    """

    outcome: Outcome
    detail: str = ""
    correct: int = 0
    total: int = 0
    unchecked_formats: tuple[str, ...] = ()

    @property
    def field_accuracy(self) -> float | None:
        """Share of the expected fields found, 0 to 1; None where nothing is expected."""
        return self.correct / self.total if self.total else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conformance:
    """The verdict of the conformance gate.

    Args:
        n: replies judged; truncated ones are left out where the workload allows them.
        lower_bound: least share of conforming replies that `ok` of `n` proves, 0 to 1; None when
            nothing was judged.
        buckets: replies per outcome, left-out ones included, no zeros.
        reasons: why the status is not "pass", one line each.
    """

    status: GateStatus
    n: int
    ok: int
    lower_bound: float | None
    buckets: Mapping[Outcome, int]
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Verdict:
    outcome: Outcome
    detail: str = ""
    document: Any = None


def grade_reply(
    text: str | None,
    finish_reason: str | None,
    schema: Mapping[str, Any],
    *,
    expected: Mapping[str, Any] | None = None,
    is_accepting: bool | None = None,
    error: str | None = None,
) -> Grade:
    """Return the grade of one reply; the same for constrained and for free text.

    Args:
        finish_reason: as the target told it; anything but "stop" and "length" is an error.
        expected: the true field values, for field accuracy.
        is_accepting: whether the engine's matcher accepted the end, None where it does not tell.
        error: the target's own words when it failed.

    Raises:
        SchemaError: `schema` is not valid.
    """
    # Imported here alone: its format checkers take a second or more, which no report needs.
    from harness.judging.validation import schema_check

    check = schema_check(schema)
    verdict = _judge_ending(text, finish_reason, error) or _judge_document(text or "", check)
    if verdict.outcome is Outcome.OK and is_accepting is False:
        verdict = _Verdict(Outcome.NOT_ACCEPTED, "the matcher refused the end", verdict.document)
    wanted, found = dict(_leaves(expected or {})), dict(_leaves(verdict.document))
    return Grade(
        outcome=verdict.outcome,
        detail=verdict.detail,
        correct=sum(place in found and _equal(found[place], wanted[place]) for place in wanted),
        total=len(wanted),
        unchecked_formats=check.unchecked_formats,
    )


def judge_conformance(
    grades: Sequence[Grade],
    *,
    allow_truncation: bool = False,
    must_compile: int = 0,
    compiled: int | None = None,
) -> Conformance:
    """Return the gate's verdict: one failure fails it, seeing nothing is not passing.

    Args:
        must_compile: schemas that have to compile, as the workload pins it.
        compiled: schemas that did; None where nobody counted.
    """
    buckets = Counter(grade.outcome for grade in grades)
    left_out = buckets[Outcome.TRUNCATED] if allow_truncation else 0
    n, ok = len(grades) - left_out, buckets[Outcome.OK]
    failures = _failures(grades, n - ok, allow_truncation)
    if compiled is not None and compiled < must_compile:
        failures.append(f"{compiled} of {must_compile} schemas compile")
    gaps = _gaps(grades, n, must_compile > 0 and compiled is None)
    return Conformance(
        status="fail" if failures else "incomplete" if gaps else "pass",
        n=n,
        ok=ok,
        lower_bound=conformance_lower_bound(ok, n) if n else None,
        buckets=dict(sorted(buckets.items())),
        reasons=(*failures, *gaps),
    )


@lru_cache(maxsize=1024)
def conformance_lower_bound(ok: int, n: int) -> float:
    """Return the one-sided 95 % Clopper-Pearson lower bound of a share.

    It is the p at which `ok` or more of `n` have a probability of 5 % (Clopper and Pearson 1934).

    Args:
        ok: successes, 0 to n.
        n: trials, at least 1.
    """
    if ok == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(ok, n, middle) < 1 - CONFIDENCE else (low, middle)
    return low


def _judge_ending(
    text: str | None, finish_reason: str | None, error: str | None
) -> _Verdict | None:
    if error is not None:
        return _Verdict(Outcome.ERROR, " ".join(error.split()))
    if finish_reason == FinishReason.LENGTH:
        return _Verdict(Outcome.TRUNCATED, "the token budget ended before the document")
    if finish_reason != FinishReason.STOP:
        return _Verdict(Outcome.ERROR, f"finish_reason is {finish_reason!r}")
    if text is None or not text.strip():
        return _Verdict(Outcome.EMPTY, "no text")
    return None


def _judge_document(text: str, check: SchemaCheck) -> _Verdict:
    try:
        document = read_document(text)
    except DocumentError as error:
        return _Verdict(Outcome(error.fault), str(error))
    broken = check.first_error(document)
    if broken is not None:
        return _Verdict(Outcome.SCHEMA_INVALID, broken, document)
    return _Verdict(Outcome.OK, document=document)


def _failures(grades: Sequence[Grade], bad: int, allow_truncation: bool) -> list[str]:
    for grade in grades:
        excused = allow_truncation and grade.outcome is Outcome.TRUNCATED
        if grade.outcome is not Outcome.OK and not excused:
            return [f"{bad} failed, the first: {grade.outcome}, {grade.detail}"]
    return []


def _gaps(grades: Sequence[Grade], n: int, is_uncounted: bool) -> list[str]:
    gaps = [] if n else ["no reply was judged"]
    formats = sorted({name for grade in grades for name in grade.unchecked_formats})
    if formats:
        gaps.append(
            f"no checker for format {', '.join(formats)}; install jsonschema[format-nongpl]"
        )
    if is_uncounted:
        gaps.append("nobody counted the schemas that compile")
    return gaps


def _leaves(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*place, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, (*place, index))
    else:
        yield place, value


def _equal(found: Any, wanted: Any) -> bool:
    if isinstance(found, str) and isinstance(wanted, str):
        return found.strip().casefold() == wanted.strip().casefold()
    # True == 1 in Python, not in JSON.
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


def _tail(ok: int, n: int, p: float) -> float:
    """Return the probability of at least `ok` successes in `n` trials, each of probability p."""
    terms: list[float] = []
    peak = 0.0
    for bad in range(n - ok, -1, -1):
        term = math.exp(
            math.lgamma(n + 1)
            - math.lgamma(bad + 1)
            - math.lgamma(n - bad + 1)
            + bad * math.log1p(-p)
            + (n - bad) * math.log(p)
        )
        # Terms rise to one peak and fall: once one is lost in rounding, so are all that follow.
        peak = max(peak, term)
        if term < NEGLIGIBLE * peak:
            break
        terms.append(term)
    return math.fsum(terms)
