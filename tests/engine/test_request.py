"""What a request may hold: a wrong value fails when it is built, and is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import FmError
from engine.request import Request, SamplingParams


def request(**settings: Any) -> Request:
    """A request with a prompt."""
    return Request(prompt_ids=(65,), **settings)


@pytest.mark.parametrize(
    ("build", "settings", "named"),
    [
        (request, {"max_tokens": 1.5}, "1.5"),
        (request, {"max_tokens": 0}, "0"),
        (request, {"num_draft_tokens": 16}, "16"),
        (request, {"ignore_eos": "no"}, "'no'"),
        (request, {"stop": "abc"}, "'abc'"),
        (request, {"stop": ("",)}, "empty"),
        (SamplingParams, {"seed": 1.5}, "1.5"),
        (SamplingParams, {"seed": 2**64}, str(2**64)),
        (SamplingParams, {"top_k": 2.5}, "2.5"),
        (SamplingParams, {"temperature": float("nan")}, "nan"),
        (SamplingParams, {"logit_bias": {3: 1e39}}, "1e\\+39"),
        (SamplingParams, {"logit_bias": {3: float("nan")}}, "nan"),
        (SamplingParams, {"logit_bias": {-3: 1.0}}, "-3"),
        (EngineConfig, {"max_rows": 1.5}, "1.5"),
        (EngineConfig, {"max_rows": True}, "True"),
        (EngineConfig, {"pipelined": "false"}, "'false'"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_wrong_value_is_refused_by_name(
    build: Callable[..., Any], settings: dict[str, Any], named: str
) -> None:
    (setting,) = settings
    with pytest.raises(FmError, match=named) as refused:
        build(**settings)
    assert setting in str(refused.value)


def test_whole_numbers_serve_where_fractions_may_stand() -> None:
    assert SamplingParams(temperature=1, top_p=1).temperature == 1
