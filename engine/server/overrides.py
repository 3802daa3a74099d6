"""The body field `fm`: lane and drafts of one request, for whoever measures the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.config import EngineConfig
from engine.request import Request
from engine.server.problem import refusal
from engine.server.readers import reads, record, setting_of

FIELD = "fm"

MEMBERS = {"lane": "lane", "draft": "num_draft_tokens", "spec_batching": "spec_batching"}
"""Member of the field -> field of Request."""


OVERRIDES = record({name: setting_of(Request, item) for name, item in MEMBERS.items()})


@reads(OVERRIDES.schema)
def overrides(value: Any) -> dict[str, Any]:
    """Take the field; returns fields of Request."""
    return {MEMBERS[name]: item for name, item in OVERRIDES(value).items()}


def check_overrides(
    given: Mapping[str, Any] | None, config: EngineConfig, *, is_allowed: bool
) -> None:
    """Raise HttpError when overrides are not taken, or ask for more drafts than there are."""
    if given is None:
        return
    if not is_allowed:
        message = f"{FIELD} is not taken; the server must be started with --allow-overrides"
        raise refusal(message, FIELD, "unsupported_parameter")
    asked, most = given.get("num_draft_tokens", 0), config.num_draft_tokens
    if asked > most:
        raise refusal(
            f"{FIELD}.draft is {asked}; the server drafts at most {most}", f"{FIELD}.draft"
        )
