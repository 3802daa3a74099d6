"""The fields that /v1/responses has for itself."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from engine.request import MAX_TOP_LOGPROBS, Request, SamplingParams
from engine.server.effort import HELP as EFFORT
from engine.server.effort import read_reasoning
from engine.server.messages import MAX_TEXT
from engine.server.readers import listed, off, one_of, reads, record, setting_of, text
from engine.server.response_input import input_items
from engine.server.response_tools import flat_tool_choice, flat_tools
from engine.server.standing import RESPONSES, Field, Standing
from engine.server.tools import MAX_TOOLS

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
INCLUDED = (LOGPROBS, ENCRYPTED)

MAX_INCLUDED = 16

REFUSED_RESPONSES: dict[str, tuple[tuple[Any, ...], str]] = {
    "previous_response_id": ((), "nothing is kept; send the whole conversation as input"),
    "conversation": ((), "nothing is kept; send the whole conversation as input"),
    "prompt": ((), "no prompts are kept; send instructions and input"),
    "background": ((False,), "nothing is kept; stay until the reply has come"),
    "background_options": ((), "nothing is kept; stay until the reply has come"),
    "truncation": (("disabled",), "an input that does not fit is refused, never cut"),
    "context_management": (([],), "an input that does not fit is refused, never cut"),
    "image": ((), "inputs are text"),
    "access_programs": ((), "there are none"),
}
"""Refused fields -> what they may hold all the same, and why."""

NOTED_RESPONSES = {"max_tool_calls": "it limits tools that a server calls; there are none"}
"""Fields that change no reply."""


INCLUDE = listed(one_of(*INCLUDED), MAX_INCLUDED)


@reads(INCLUDE.schema)
def _included(value: Any) -> tuple[str, ...]:
    return tuple(INCLUDE(value))


STREAM_OPTIONS = record({"include_obfuscation": off})


@reads(STREAM_OPTIONS.schema)
def _stream_options(value: Any) -> bool:
    """Take what asks for nothing; returns False: no chunk of usage is asked for."""
    STREAM_OPTIONS(value)
    return False


def enforced_responses() -> Iterable[Field]:
    """Return the enforced fields."""
    field = partial(Field, standing=Standing.ENFORCED, where=RESPONSES)
    yield field(
        name="input",
        read=input_items,
        is_required=True,
        help="a text, or items: messages of the roles of a chat, their parts of type input_text or "
        "output_text; calls and outputs of functions; reasoning items are dropped",
    )
    yield field(
        name="instructions",
        read=text(MAX_TEXT),
        help="a system message before the input; one with a system message that opens the input",
    )
    yield field(
        name="max_output_tokens",
        read=setting_of(Request, "max_tokens"),
        help="cut to what the context leaves; unset: --default-max-tokens",
    )
    yield field(
        name="tools",
        read=flat_tools,
        help=f"functions the model may call, at most {MAX_TOOLS}, their names beside their types; "
        "a strict one's schema is enforced whole or 400, one that does not say is not strict",
    )
    yield field(
        name="tool_choice",
        read=flat_tool_choice,
        help="auto, none, required, one function, or allowed_tools",
    )
    yield field(
        name="reasoning",
        read=read_reasoning,
        help=f"effort ({EFFORT}); summary: only auto, and none is made",
    )
    yield field(
        name="include",
        read=_included,
        help=f"{LOGPROBS}; {ENCRYPTED} is let pass: reasoning items hold their text",
    )
    yield field(
        name="top_logprobs",
        read=setting_of(SamplingParams, "top_logprobs"),
        help=f"likeliest tokens beside each, at most {MAX_TOP_LOGPROBS}; only with include "
        f"{LOGPROBS}",
    )
    yield field(
        name="stream_options",
        read=_stream_options,
        help="include_obfuscation: only false; usage is in the last event unasked",
    )
