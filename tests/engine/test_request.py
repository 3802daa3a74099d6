"""What a request may hold: a wrong value fails when it is built, and is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import FmError
from engine.loop import Engine
from engine.request import Constraint, Request, SamplingParams
from engine.testing import tiny_model


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
        (SamplingParams, {"logit_bias": {"3": 1.0}}, "'3'"),
        (SamplingParams, {"logit_bias": {3: "1"}}, "'1'"),
        (SamplingParams, {"logit_bias": {3: 1j}}, "1j"),
        (SamplingParams, {"logit_bias": None}, "None"),
        (SamplingParams, {"temperature": None}, "None"),
        (request, {"max_tokens": None}, "None"),
        (request, {"cache_salt": ["a"]}, "'a'"),
        (request, {"request_id": ["a"]}, "'a'"),
        (request, {"adapter": None}, "None"),
        (request, {"sampling": {"seed": 1}}, "dict"),
        (request, {"constraint": "[a-f]"}, "str"),
        (Request, {"prompt_ids": {65, 66}}, "set"),
        (Request, {"prompt_ids": None}, "NoneType"),
        (Constraint, {"kind": "poem"}, "poem"),
        (EngineConfig, {"drafter": None}, "None"),
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


def test_a_submitted_row_does_not_change_with_what_the_caller_changes() -> None:
    prompt, bias = [65, 66, 67], {80: 5.0}
    row = Request(
        prompt_ids=prompt,  # type: ignore[arg-type]  # a list is taken, as a copy
        sampling=SamplingParams(logit_bias=bias),
        max_tokens=6,
        ignore_eos=True,
    )
    engine = Engine(tiny_model(), EngineConfig())
    expected = engine.generate([row])[0].token_ids
    request_id = engine.submit(row)
    prompt += [68] * 9
    while engine.has_work:
        engine.step()
        bias[81] = 1e9
    assert engine.completion(request_id).token_ids == expected
