"""Numbers are finite, of a bounded length, and inside their bounds to the last digit."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

BIG = 2**63 - 1
TABLE: dict[str, tuple[object, list[str], list[str]]] = {
    "an integer has at most 15 digits": (
        {"type": "integer"},
        ["0", "-5", "9" * 15],
        ["9" * 16, "9" * 300, "1e5", "1.0", "01", "-"],
    ),
    "a number has at most 15 digits and 9 after the point": (
        {"type": "number"},
        ["0", "0.000000001", "-12.5", "9" * 15, "1.50"],
        ["9" * 16, "0.0000000001", "1e5", "1e999", "3.5.5", "1.", ".5", "+1"],
    ),
    "a free value holds bounded numbers": (
        {"type": "object"},
        ['{"a":[1.5]}'],
        ['{"a":1e999}', '{"a":' + "9" * 16 + "}"],
    ),
    "a bound of one side leaves the other limited": (
        {"type": "integer", "minimum": 3},
        ["3", "9" * 15],
        ["2", "9" * 16],
    ),
    "a bound beyond the limit moves it": (
        {"type": "integer", "minimum": 10**16},
        [str(10**16), str(10**17)],
        [str(10**16 - 1), "9" * 300],
    ),
    "int64 bounds": (
        {"type": "integer", "minimum": -(2**63), "maximum": BIG},
        ["0", str(2**62), str(-(2**62))],
        [str(BIG + 1), str(-(2**63) - 1)],
    ),
    "a bound that no double holds is drawn in": (
        {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
        ["5", str(10**17)],
        [str(10**18)],
    ),
    "a number with far bounds": (
        {"type": "number", "minimum": 0, "maximum": BIG},
        ["0.5", "9" * 15],
        [str(BIG + 1), "-1"],
    ),
    "exclusive bounds": (
        {"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": 0.3},
        ["0.11", "0.2", "0.100000001"],
        ["0.1", "0.3", "0.10", "0.30", "0.09", "0.1" + "0" * 20 + "1"],
    ),
    "an exclusive bound beside an equal plain one": (
        {
            "type": "number",
            "minimum": 0,
            "exclusiveMinimum": 0,
            "maximum": 1,
            "exclusiveMaximum": 1,
        },
        ["0.5"],
        ["0", "0.0", "1", "1.0"],
    ),
    "an exclusive bound with the other one close by": (
        {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
        ["0.1", "0.5", "0.000000001"],
        ["0", "0.0", "-0"],
    ),
    "an exclusive upper bound with the other one close by": (
        {"type": "number", "minimum": -1.5, "exclusiveMaximum": -1},
        ["-1.5", "-1.000000001"],
        ["-1", "-1.0"],
    ),
    "an exclusive bound on whole numbers": (
        {"type": "integer", "exclusiveMinimum": 0.5, "exclusiveMaximum": 3},
        ["1", "2"],
        ["0", "3"],
    ),
    "bounds with many decimals": (
        {"type": "number", "minimum": 0.00000000123, "maximum": 0.00000000124},
        ["0.00000000123", "0.00000000124"],
        ["0.00000000122", "0"],
    ),
    "multiples": ({"type": "integer", "multipleOf": 3}, ["0", "3", "-9"], ["1", "4", "3.0"]),
    "multiples of a binary fraction": (
        {"type": "number", "multipleOf": 0.25},
        ["0.25", "1.50", "3"],
        ["0.1", "0.3"],
    ),
    "multiples of a decimal fraction": (
        {"type": "number", "multipleOf": 0.01, "minimum": 0},
        ["0.07", "19.99", "4.35", "3"],
        ["0.071", "0.005"],
    ),
    "bounds on a value that may be no number": (
        {"minimum": 3},
        ["3", '"x"', "null", "[]"],
        ["2", "2.9", "9" * 16],
    ),
    "a decimal const": ({"const": 0.1}, ["0.1"], ["0.10", "0.2"]),
    "a large const": ({"const": 2**60}, [str(2**60)], [str(2**60 + 1)]),
}


@pytest.mark.parametrize("name", TABLE)
def test_verdicts(bench, name):
    schema, accepted, rejected = TABLE[name]

    verdicts = bench.verdicts(schema, [*accepted, *rejected])

    assert verdicts == dict.fromkeys(accepted, True) | dict.fromkeys(rejected, False)


@pytest.mark.parametrize("text", ["0.07", "19.99", "4.35", "1.10"])
def test_the_final_check_divides_decimals(bench, text):
    grammar = bench.compile({"type": "number", "multipleOf": 0.01})

    assert grammar.start(bench.encode(text)).check_text(text) == "enforced"


BOUND = st.one_of(
    st.integers(-(10**17), 10**17),
    st.integers(-20, 20),
    st.decimals(-1000, 1000, places=3).map(float),
)


@given(
    kind=st.sampled_from(["integer", "number"]),
    bounds=st.dictionaries(
        st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]), BOUND
    ),
    data=st.data(),
)
@settings(max_examples=150)
def test_a_number_near_its_bounds_is_never_allowed_wrongly(bench, kind, bounds, data):
    schema = {"type": kind, **bounds}
    near = [0, *bounds.values()]
    offsets = [0, 1, -1, 0.001, -0.001, 0.5, 128, -128]
    texts = [json.dumps(value + offset) for value in near for offset in offsets]
    try:
        verdicts = bench.verdicts(schema, texts)
    except ValueError:
        return
    second = jsonschema_rs.validator_for(schema)

    for text, is_allowed in verdicts.items():
        if is_allowed:
            assert Draft202012Validator(schema).is_valid(json.loads(text)), text
            assert second.is_valid(json.loads(text)), text
