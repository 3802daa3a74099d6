"""Strict reading: exactly one JSON document, every number finite, every key once."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.document import DocumentError, Fault, read_document
from tests.effort import effort

REFUSED = {
    "nothing": ("", Fault.NOT_JSON),
    "blanks": (" \n", Fault.NOT_JSON),
    "prose": ("Sure!", Fault.NOT_JSON),
    "prose before": ('Here: {"a":1}', Fault.NOT_JSON),
    "prose after": ('{"a":1} Done.', Fault.NOT_JSON),
    "a code fence": ('```json\n{"a":1}\n```', Fault.NOT_JSON),
    "two documents": ('{"a":1}{"a":1}', Fault.NOT_JSON),
    "an open object": ('{"a":1', Fault.NOT_JSON),
    "an open string": ('{"a":"b', Fault.NOT_JSON),
    "a comma too many": ('{"a":1,}', Fault.NOT_JSON),
    "single quotes": ("{'a':1}", Fault.NOT_JSON),
    "a raw newline in a string": ('"a\nb"', Fault.NOT_JSON),
    "a byte order mark": ('\ufeff{"a":1}', Fault.NOT_JSON),
    "a no-break space": ('\u00a0{"a":1}', Fault.NOT_JSON),
    "NaN": ('{"a":NaN}', Fault.NOT_JSON),
    "Infinity": ("[Infinity]", Fault.NOT_JSON),
    "minus Infinity": ("[-Infinity]", Fault.NOT_JSON),
    "a leading zero": ("01", Fault.NOT_JSON),
    "a bare point": ("1.", Fault.NOT_JSON),
    "two points": ("1.5.5", Fault.NOT_JSON),
    "a brace storm": ("[" * 200_000, Fault.NOT_JSON),
    "a key twice": ('{"a":1,"b":2,"a":1}', Fault.DUPLICATE_KEY),
    "a key twice, once escaped": ('{"a":1,"\\u0061":2}', Fault.DUPLICATE_KEY),
    "a nested key twice": ('[{"a":{"b":1,"b":1}}]', Fault.DUPLICATE_KEY),
    "an infinite exponent": ("1e999", Fault.OUT_OF_RANGE),
    "a negative infinite exponent": ('{"x":-1e999}', Fault.OUT_OF_RANGE),
    "an integer beyond a double": ("9" * 309, Fault.OUT_OF_RANGE),
    "an integer beyond Python's digit limit": ("9" * 100_000, Fault.OUT_OF_RANGE),
}


@pytest.mark.parametrize(("text", "fault"), REFUSED.values(), ids=list(REFUSED))
def test_anything_but_one_well_formed_document_is_refused(text: str, fault: Fault) -> None:
    with pytest.raises(DocumentError) as caught:
        read_document(text)
    assert caught.value.fault is fault


@pytest.mark.parametrize("text", [text for text, _ in REFUSED.values()], ids=list(REFUSED))
def test_a_refusal_is_one_short_line(text: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read_document(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_blanks_around_a_document_belong_to_it() -> None:
    assert read_document('\n {"a": [1, 2.5, null]}\t\n') == {"a": [1, 2.5, None]}


def test_the_largest_double_is_still_read() -> None:
    largest = 2**1024 - 2**971
    assert read_document("1.7976931348623157e308") == read_document(str(largest)) == largest


@pytest.mark.parametrize("literal", ["1e4299", "1e-4299", "-1e4299", "9" * 4299])
def test_five_thousand_absurd_numbers_are_read_or_refused_with_little_effort(literal: str) -> None:
    text = "[" + ",".join([literal] * 5000) + "]"
    assert effort(lambda: fault_of(text)) < 60


NUMBERS = st.from_regex(
    r"-?(0|[1-9][0-9]{0,320})(\.[0-9]{1,5})?([eE][+-]?[0-9]{1,5})?", fullmatch=True
)


@given(NUMBERS)
def test_a_number_is_finite_or_out_of_range(literal: str) -> None:
    is_finite = math.isfinite(float(literal))
    assert fault_of(literal) is (None if is_finite else Fault.OUT_OF_RANGE)
    assert not is_finite or math.isfinite(read_document(literal))


def fault_of(text: str) -> Fault | None:
    try:
        read_document(text)
    except DocumentError as error:
        return error.fault
    return None
