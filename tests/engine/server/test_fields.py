"""The table of fields and the page that shows it."""

from __future__ import annotations

from pathlib import Path

from engine.server.fields import FIELDS, field_table
from engine.server.standing import Standing

PAGE = Path(__file__).parents[3] / "docs" / "serving.md"


def test_the_page_shows_the_table_as_it_is() -> None:
    assert field_table() in PAGE.read_text(encoding="utf-8")


def test_every_enforced_field_is_read_and_no_other_is() -> None:
    for field in FIELDS:
        assert (field.read is not None) == (field.standing is Standing.ENFORCED), field.name
        assert field.help


def test_a_field_stands_once_for_each_endpoint() -> None:
    places = [(field.name, endpoint) for field in FIELDS for endpoint in field.where]
    assert len(places) == len(set(places))
