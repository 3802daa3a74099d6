"""Servers whose requests choose their lanes; each must be left idle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.server.cases.echo import echoing
from tests.engine.server.live import Live, serving


@pytest.fixture(scope="session")
def _echo() -> Iterator[Live]:
    with echoing() as live:
        yield live
        assert live.is_serving(), "the server must go on serving"


@pytest.fixture
def echo(_echo: Live) -> Iterator[Live]:
    """A server of the echo model."""
    yield _echo
    _echo.wait_until_idle()


@pytest.fixture(scope="session")
def _tiny() -> Iterator[Live]:
    with serving(allow_overrides=True) as live:
        yield live
        assert live.is_serving(), "the server must go on serving"


@pytest.fixture
def tiny(_tiny: Live) -> Iterator[Live]:
    """A server of the tiny model."""
    yield _tiny
    _tiny.wait_until_idle()
