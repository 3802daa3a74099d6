"""schemathesis against a live server: what the document says is what is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, Config, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.config import GenerationConfig

from engine.server.fields import CONSTRAINTS
from engine.server.protocol import LIMITS
from tests.engine.server.live import CHAT, COMPLETIONS, RESPONSES, Live
from tests.waiting import WAIT_S

load_all_checks()

ANSWERS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
"""What every answer has to be."""

PATHS = (CHAT, COMPLETIONS, RESPONSES)
PAGES = ("/v1/models", "/v1/models/{name}", "/health", "/stats", "/metrics", "/openapi.json")

ROUNDS = settings(
    max_examples=100,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

MOST_TOKENS = 4
"""Bodies may ask for more; a server that writes it all only takes longer."""


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as opened:
        yield opened


@pytest.fixture(scope="module")
def published(shared: Live) -> Any:
    return schemathesis.openapi.from_url(f"{shared.url}/openapi.json", config=Config())


def settle(case: Case) -> None:
    """Make a body that every field of which is taken one that is taken as a whole, and short.

    The rules between fields, and the model's vocabulary, are not in the document.
    """
    body = case.body
    if not isinstance(body, dict):
        return
    for name in LIMITS:
        if body.get(name) is not None:
            body[name] = MOST_TOKENS
    body.setdefault("max_output_tokens" if "input" in body else "max_tokens", MOST_TOKENS)
    constraints = [name for name in CONSTRAINTS if body.get(name) is not None]
    dropped = [*constraints[1:], "min_tokens", "logit_bias"]
    dropped += [] if body.get("stream") else ["stream_options"]
    dropped += [] if body.get("logprobs") is True else ["top_logprobs"]
    dropped += ["ignore_eos"] if constraints else []
    # what the model's chat template must know
    dropped += ["tools", "tool_choice", "reasoning_effort", "reasoning", "chat_template_kwargs"]
    for name in dropped:
        body.pop(name, None)
    talk = [item for item in body.get("messages", []) if isinstance(item, dict)]
    if "messages" in body:
        body["messages"] = [turn(item) for item in talk] or [turn({})]
    if isinstance(body.get("input"), list):
        said = [item for item in body["input"] if item.get("type", "message") == "message"]
        body["input"] = [turn(item) for item in said] or "hi"
    if "prompt" in body and not isinstance(body["prompt"], str | None):
        body["prompt"] = ["x", [1, 2]]


def turn(item: dict[str, Any]) -> dict[str, Any]:
    """A message of a person; what goes with which role is not in the document."""
    return {"role": "user", "content": item.get("content") or "hi"}


def answer(case: Case, session: requests.Session, *more: str) -> requests.Response:
    sent = case.call(session=session, timeout=WAIT_S)
    checks = [check for check in CHECKS.get_all() if check.__name__ in (*ANSWERS, *more)]
    assert len(checks) == len(ANSWERS) + len(more)
    case.validate_response(sent, checks=checks)
    return sent


@pytest.mark.parametrize("path", PATHS)
def test_bodies_of_the_document_are_answered_as_it_says(
    live: Live, published: Any, session: requests.Session, path: str
) -> None:
    statuses = []

    @ROUNDS
    @given(data=st.data())
    def each(data: st.DataObject) -> None:
        case = data.draw(published[path]["POST"].as_strategy(GenerationMode.POSITIVE))
        settle(case)
        statuses.append(answer(case, session).status_code)

    each()
    assert statuses.count(200) > len(statuses) / 3


@pytest.mark.parametrize("path", PATHS)
def test_bodies_against_the_document_are_refused(
    live: Live, published: Any, session: requests.Session, path: str
) -> None:
    @ROUNDS
    @given(data=st.data())
    def each(data: st.DataObject) -> None:
        case = data.draw(published[path]["POST"].as_strategy(GenerationMode.NEGATIVE))
        assert answer(case, session, "negative_data_rejection").status_code < 500

    each()


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_answered_as_the_document_says(
    live: Live, published: Any, session: requests.Session, path: str
) -> None:
    @settings(ROUNDS, max_examples=10)
    @given(data=st.data())
    def each(data: st.DataObject) -> None:
        case = data.draw(published[path]["GET"].as_strategy(GenerationMode.POSITIVE))
        answer(case, session, "unsupported_method")

    each()


@pytest.mark.parametrize("path", PATHS)
def test_values_on_the_bounds_of_the_document_are_answered_as_it_says(
    live: Live, published: Any, session: requests.Session, path: str
) -> None:
    cases = published.iter_coverage_cases(
        published[path]["POST"],
        generation_modes=list(GenerationMode),
        generation_config=GenerationConfig(deterministic=True),
    )
    count = 0
    for count, case in enumerate(cases, 1):  # noqa: B007  # the count is told below
        is_good = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
        if is_good:
            settle(case)
        answer(case, session, *(() if is_good else ("negative_data_rejection",)))
    assert count > 100
