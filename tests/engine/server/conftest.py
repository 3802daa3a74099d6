"""One server for the tests of a module; each must leave it idle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.server.live import Live, serving


@pytest.fixture(scope="module")
def shared() -> Iterator[Live]:
    with serving() as live:
        yield live


@pytest.fixture
def live(shared: Live) -> Iterator[Live]:
    yield shared
    shared.wait_until_idle()
    assert shared.is_serving(), "the server must go on serving"
