"""Errors of the engine as HTTP answers: one table, complete, in OpenAI's form."""

from __future__ import annotations

import engine.server.listen  # noqa: F401  # all error classes of the engine are defined by now
from engine.errors import FmError, SchemaError, UnknownNameError
from engine.server.problem import ANSWERS, problem_of


def family(base: type[FmError] = FmError) -> set[type[FmError]]:
    found = {base}
    for child in base.__subclasses__():
        found |= family(child)
    return found


def test_every_error_of_the_family_has_an_answer_of_its_own() -> None:
    own = {kind for kind in family() if kind.__module__ == "engine.errors"}
    assert own == set(ANSWERS)


def test_what_the_caller_did_is_below_500_and_says_what_to_change() -> None:
    problem = problem_of(SchemaError("no such\ntype", "", "type"), "response_format")
    assert problem.status == 400
    assert problem.document == {
        "error": {
            "message": "no such type",
            "type": "invalid_request_error",
            "param": "response_format",
            "code": "invalid_schema",
        }
    }
    assert problem_of(UnknownNameError("model", "x", ["y"])).status == 404
