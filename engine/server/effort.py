"""How much a reply reasons before it speaks: what a request says of it, and who is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.models.tokenizer import Tokenizer
from engine.server.problem import refusal
from engine.server.readers import one_of, reads, record

NO_EFFORT = "none"
EFFORTS = (NO_EFFORT, "minimal", "low", "medium", "high", "xhigh", "max")

SWITCH, DIAL = "enable_thinking", "reasoning_effort"
"""The variables under which chat templates are told whether to reason, and how much."""

HELP = f"none: no reasoning; others where the chat template reads {DIAL}, else 400"

UNSAID = {"summary": "auto", "generate_summary": "auto", "context": "auto", "mode": "standard"}
"""Members of `reasoning` beside the effort -> the one value that asks for nothing."""

read_effort = one_of(*EFFORTS)
"""Takes the effort of a chat."""


REASONING = record(
    {"effort": read_effort, **{name: one_of(unsaid) for name, unsaid in UNSAID.items()}}
)


@reads(REASONING.schema)
def read_reasoning(value: Any) -> str | None:
    """Take `reasoning` of a response; returns the effort, None where nothing is said of it."""
    effort: str | None = REASONING(value).get("effort")
    return effort


def effort_options(
    effort: str, options: Mapping[str, Any], tokenizer: Tokenizer, place: str
) -> dict[str, Any]:
    """Return the variables that tell a chat template of an effort.

    Args:
        options: the template's variables as the request sets them.
        place: the field that holds the effort.

    Raises:
        HttpError: the template takes no such effort, or the request says two things.
    """
    if effort == NO_EFFORT:
        told: dict[str, Any] = {SWITCH: False}
    elif tokenizer.template_names(DIAL):
        told = {DIAL: effort, SWITCH: True}
    else:
        raise refusal(
            f"{place} {effort} is not supported: the model's chat template reads no {DIAL}; "
            f"leave it out, or say {NO_EFFORT}",
            place,
            "unsupported_value",
        )
    for name, value in told.items():
        if options.get(name, value) != value:
            raise refusal(f"{place} and chat_template_kwargs.{name} say two things", place)
    return told
