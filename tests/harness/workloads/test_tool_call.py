"""The tools of tool-call: a reply is a call of one of them, and of nothing else."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from harness.judging.grade import Outcome, grade_reply
from harness.workloads.workload import load_workload
from tests.harness.json_documents import compact, mask_allows, with_plain_dates

WORKLOAD = load_workload("tool-call")
PROMPTS = {item.id: item for item in WORKLOAD.prompts}

TOOLS = {
    name: [branch["properties"]["name"]["const"] for branch in schema["anyOf"]]
    for name, schema in WORKLOAD.schemas.items()
}

# Prompt -> values; each makes the arguments of the right call wrong.
INVALID: dict[str, list[dict[str, Any]]] = {
    "forecast-oslo": [{"days": 8}, {"days": "5"}, {"unit": "kelvin"}, {"city": "oslo"}],
    "pollen-lyon": [{"pollutant": "smoke"}, {"city": ""}],
    "sunset-porto": [{"date": "2024-09-31"}, {"date": "tomorrow"}],
    "event-dentist": [{"start": "8:15"}, {"minutes": 47}, {"minutes": 485}, {"place": None}],
    "move-review": [{"id": "318"}, {"id": "EV-31800"}, {"start": "24:00"}],
    "free-team": [{"people": []}, {"people": ["A", "Bo", "Cy", "Di"]}, {"people": "Ines"}],
    "list-reports": [{"ending": ".csv"}, {"folder": "/etc"}],
    "read-log": [{"first": 0}, {"last": 1210.5}],
    "copy-config": [{"overwrite": "no"}, {"target": ""}],
    "light-bedroom": [{"level": 101}, {"colour": "pink"}, {"room": "cellar"}],
    "heat-office": [{"degrees": 21.3}, {"degrees": 31}],
    "lock-night": [{"doors": []}, {"doors": ["roof"]}, {"locked": 1}],
    "convert-hotel": [{"amount": 24500}, {"amount": "24500"}, {"source": "yen"}],
    "send-rent": [{"currency": "eur"}, {"to": "helga"}, {"note": "x" * 25}],
    "list-card": [{"account": "loan"}, {"limit": 0}],
    "length-run": [{"value": -1}, {"target": "km"}],
    "weight-flour": [{"decimals": 7}, {"source": "cups"}],
    "volume-tank": [{"value": 30.25}, {"source": "grams"}],
    "web-bread": [{"count": 21}, {"language": "it"}, {"query": '"bread"'}],
    "mail-lease": [{"folder": "spam"}, {"unread": "yes"}],
    "places-pharmacy": [{"radius": 0}, {"kind": "bar"}],
    "trains-vienna": [{"date": "19.12.2024"}, {"after": "morning"}],
    "hotel-seville": [{"stars": 6}, {"guests": 0}, {"nights": 31}],
    "cancel-flight": [{"code": "k7q2zd"}, {"refund": "both"}],
}


def refused(schema: dict[str, Any], document: dict[str, Any]) -> bool:
    """True when the scorer, a second validator and the mask all refuse a document."""
    text = compact(document)
    return (
        grade_reply(text, "stop", schema).outcome is Outcome.SCHEMA_INVALID
        and not jsonschema_rs.is_valid(schema, document, validate_formats=True)
        and not mask_allows(with_plain_dates(schema), text)
    )


def test_every_tool_is_told_in_the_system_message_of_its_prompts() -> None:
    for item in WORKLOAD.prompts + WORKLOAD.warmup:
        told = item.messages[0]["content"]
        assert [name for name in TOOLS[item.schema_name or ""] if f"- {name}(" not in told] == []


def test_a_set_offers_three_tools_and_each_is_asked_for_or_shown() -> None:
    asked = {json.loads(item.messages[2]["content"])["name"] for item in WORKLOAD.prompts}
    asked |= {(item.expected or {})["name"] for item in WORKLOAD.prompts}
    names = [name for tools in TOOLS.values() for name in tools]
    assert {len(tools) for tools in TOOLS.values()} == {3}
    assert len(set(names)) == len(names) == 24
    assert asked == set(names)


def test_every_set_has_a_tool_with_an_optional_argument() -> None:
    for schema in WORKLOAD.schemas.values():
        shapes = [branch["properties"]["arguments"] for branch in schema["anyOf"]]
        assert any(set(shape["required"]) < set(shape["properties"]) for shape in shapes)


def test_wrong_arguments_are_tried_on_every_set() -> None:
    assert {PROMPTS[name].schema_name for name in INVALID} == set(WORKLOAD.schemas)


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, change) for name, changes in INVALID.items() for change in changes],
    ids=lambda value: value if isinstance(value, str) else repr(value)[:60],
)
def test_a_wrong_argument_is_refused_by_scorer_second_validator_and_mask(
    name: str, change: dict[str, Any]
) -> None:
    schema, right = PROMPTS[name].schema or {}, PROMPTS[name].expected or {}
    shape = next(
        branch["properties"]["arguments"]
        for branch in schema["anyOf"]
        if branch["properties"]["name"]["const"] == right["name"]
    )
    changed = {**right["arguments"], **change}
    ordered = {key: changed[key] for key in shape["properties"] if key in changed}
    assert refused(schema, {**right, "arguments": ordered})


@pytest.mark.parametrize("name", PROMPTS)
def test_a_call_with_something_missing_added_or_swapped_is_refused(name: str) -> None:
    item = PROMPTS[name]
    schema, right = item.schema or {}, item.expected or {}
    others = [tool for tool in TOOLS[item.schema_name or ""] if tool != right["name"]]
    assert refused(schema, {"name": right["name"]})
    assert refused(schema, {**right, "name": "no_tool"})
    assert refused(schema, {**right, "arguments": {}})
    assert refused(schema, {**right, "arguments": {**right["arguments"], "why": "x"}})
    assert refused(schema, {**right, "id": 1})
    assert [other for other in others if not refused(schema, {**right, "name": other})] == []
