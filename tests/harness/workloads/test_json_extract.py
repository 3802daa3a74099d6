"""The schemas of json-extract: as mixed as real ones, and a wrong document is always refused."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from harness.judging.grade import Outcome, grade_reply
from harness.workloads.workload import load_workload
from tests.harness.json_documents import compact, mask_allows, nodes, with_plain_dates

WORKLOAD = load_workload("json-extract")
SCHEMAS = sorted(WORKLOAD.schemas)
PROMPTS = WORKLOAD.prompts + WORKLOAD.warmup

ABSENT = "<absent>"
"""No value of any field."""

# Field -> value; each makes a true document of its schema wrong.
INVALID: dict[str, list[dict[str, Any]]] = {
    "api-config": [
        {"host": "10.0.3.256"},
        {"port": 65536},
        {"tls": "yes"},
        {"methods": []},
        {"methods": ["FETCH"]},
        {"retry": {"tries": 3}},
        {"timeout_s": 0.25},
        {"version": "1.2"},
        {"log": ABSENT},
    ],
    "appointment": [
        {"patient": {"name": "Peter Novak"}},
        {"date": "2023-02-29"},
        {"time": "24:00"},
        {"minutes": 7},
        {"unit": "surgery"},
        {"insured": None},
        {"doctor": ABSENT},
    ],
    "calendar-event": [
        {"date": "2024-13-01"},
        {"start": "9:15"},
        {"minutes": 485},
        {"people": ["Ana", "Bo", "Cy", "Di"]},
        {"people": ["ana"]},
        {"host": {"name": "Ines", "role": "boss"}},
        {"repeat": "yearly"},
        {"title": ABSENT},
    ],
    "invoice": [
        {"number": "2041"},
        {"total": "10000.00"},
        {"total": "1.005"},
        {"total": "01.00"},
        {"total": 114.9},
        {"lines": []},
        {"lines": [{"item": "ink", "qty": 1}]},
        {"lines": [{"item": "ink", "qty": 1.5, "price": "1.00"}]},
        {"issued": "05.03.2024"},
        {"currency": "eur"},
        {"seller": "Paper\u00e9"},
        {"seller": ABSENT},
    ],
    "job-posting": [
        {"mode": "anywhere"},
        {"pay": {"low": 1, "high": 20000, "currency": "EUR"}},
        {"pay": {"low": 20000, "high": 30000}},
        {"skills": ["SQL"]},
        {"years": 21},
        {"closes": "soon"},
        {"city": ABSENT},
    ],
    "library-book": [
        {"year": 1449},
        {"pages": 0},
        {"language": "la"},
        {"shelf": "A1"},
        {"copies": -1},
        {"due_back": "2024-06-31"},
        {"author": ABSENT},
    ],
    "product-listing": [
        {"sku": "LM22081"},
        {"price": "-1.00"},
        {"stock": 10000},
        {"size_cm": {"w": 1, "h": 1}},
        {"size_cm": {"w": 1, "h": 1, "d": 1, "kg": 1}},
        {"tags": ["lamp", "office", "home", "desk"]},
        {"rating": 4.7},
        {"brand": ABSENT},
    ],
    "recipe": [
        {"serves": 0},
        {"level": "expert"},
        {"items": [{"item": "flour", "qty": 0, "unit": "g"}]},
        {"items": [{"item": "flour", "qty": 1, "unit": "kg"}]},
        {"items": [{"item": "flour", "unit": "g"}]},
        {"vegan": 1},
        {"oven_c": 301},
        {"name": ABSENT},
    ],
    "shipment": [
        {"tracking": "DE2044171"},
        {"carrier": "drone"},
        {"origin": {"city": "Berlin"}},
        {"target": {"city": "Porto", "country": "PRT"}},
        {"parcels": 100},
        {"weight_kg": 7.45},
        {"weight_kg": 1000},
        {"eta": "2024-05-32"},
        {"status": ABSENT},
    ],
    "support-ticket": [
        {"id": "T-44"},
        {"customer": {"name": "Marta Lind", "plan": "gold"}},
        {"severity": "extreme"},
        {"summary": ""},
        {"summary": "x" * 31},
        {"tags": []},
        {"replies": -1},
        {"opened": ABSENT},
    ],
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_has_6_to_15_fields(name: str) -> None:
    assert 6 <= len(WORKLOAD.schemas[name]["properties"]) <= 15


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_has_an_optional_field(name: str) -> None:
    schema = WORKLOAD.schemas[name]
    assert set(schema["required"]) < set(schema["properties"])


def test_the_schemas_are_as_mixed_as_real_ones() -> None:
    found = {name: list(nodes(schema)) for name, schema in WORKLOAD.schemas.items()}
    nested = [name for name, parts in found.items() if sum("properties" in p for p in parts) > 1]
    assert len(nested) >= 5
    for kind in ("array", "string", "integer", "number", "boolean"):
        using = [n for n, parts in found.items() if any(p.get("type") == kind for p in parts)]
        assert len(using) >= 4, kind
    for word in ("enum", "format", "pattern", "multipleOf", "$ref"):
        assert any(word in part for parts in found.values() for part in parts), word


def documents(name: str) -> list[dict[str, Any]]:
    return [item.expected or {} for item in PROMPTS if item.schema_name == name]


def test_every_schema_has_enough_wrong_documents() -> None:
    assert sorted(INVALID) == SCHEMAS
    assert min(len(changes) for changes in INVALID.values()) >= 5


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, change) for name, changes in INVALID.items() for change in changes],
    ids=lambda value: value if isinstance(value, str) else repr(value)[:60],
)
def test_a_wrong_document_is_refused_by_scorer_second_validator_and_mask(
    name: str, change: dict[str, Any]
) -> None:
    schema = WORKLOAD.schemas[name]
    document = {**documents(name)[0], **change}
    document = {key: value for key, value in document.items() if value is not ABSENT}
    document = {key: document[key] for key in schema["properties"] if key in document}
    found = grade_reply(compact(document), "stop", schema)
    assert found.outcome is Outcome.SCHEMA_INVALID
    assert not jsonschema_rs.is_valid(schema, document, validate_formats=True)
    assert not mask_allows(with_plain_dates(schema), compact(document))


@pytest.mark.parametrize("name", SCHEMAS)
def test_an_unknown_field_is_refused(name: str) -> None:
    document = {**documents(name)[0], "note": "x"}
    found = grade_reply(compact(document), "stop", WORKLOAD.schemas[name])
    assert found.outcome is Outcome.SCHEMA_INVALID
