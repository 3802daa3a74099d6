"""Servers for the tests of a module; each must leave them idle."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from engine.models.load import LoadedModel
from engine.testing import tiny_model
from tests.engine.hermes import hermes_model
from tests.engine.server.live import Live, lanes_of, serving


@pytest.fixture(scope="module")
def shared() -> Iterator[Live]:
    with serving() as live:
        yield live


@pytest.fixture
def live(shared: Live) -> Iterator[Live]:
    yield shared
    shared.wait_until_idle()
    assert shared.is_serving(), "the server must go on serving"


def served(model: LoadedModel, drafts: int) -> Iterator[Live]:
    with serving(lambda: lanes_of(model, drafts)) as live:
        yield live
        live.wait_until_idle()


DRAFTS: Any = {"scope": "module", "params": [0, 3], "ids": ["plain", "drafts"]}


@pytest.fixture(**DRAFTS)
def thinker(request: pytest.FixtureRequest) -> Iterator[Live]:
    yield from served(tiny_model(), request.param)


@pytest.fixture(**DRAFTS)
def hermes(request: pytest.FixtureRequest) -> Iterator[Live]:
    yield from served(hermes_model(), request.param)


@pytest.fixture(
    scope="module",
    params=itertools.product([tiny_model, hermes_model], [0, 3]),
    ids=lambda param: f"{param[0].__name__}-{param[1]}",
)
def either(request: pytest.FixtureRequest) -> Iterator[Live]:
    model, drafts = request.param
    yield from served(model(), drafts)
