"""What a field of a request body is: enforced, refused or harmless, and at which endpoints."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from engine.server.readers import Json, Reader, or_null

MAX_NOTE = 65_536
"""Characters of a text that is not kept."""


class Standing(StrEnum):
    """What the server does with a field."""

    ENFORCED = "enforced"
    REFUSED = "refused"
    HARMLESS = "harmless"


class Endpoint(StrEnum):
    """Where a body may be sent."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"


ALL = frozenset(Endpoint)
CHAT = frozenset({Endpoint.CHAT})
COMPLETIONS = frozenset({Endpoint.COMPLETIONS})
RESPONSES = frozenset({Endpoint.RESPONSES})
TALKS = CHAT | RESPONSES
"""Endpoints whose prompts a chat template writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field.

    Args:
        read: checks a value, of an enforced field, and returns what it is taken as.
        help: what the field does, or why it is refused.
        asks_nothing: values of a refused field that ask for nothing, and are let pass.
    """

    name: str
    standing: Standing
    help: str
    read: Reader | None = None
    where: frozenset[Endpoint] = ALL
    is_required: bool = False
    asks_nothing: tuple[Any, ...] = ()

    @property
    def schema(self) -> Json:
        """What the field may hold, as a JSON Schema; null where it may be left out."""
        if self.standing is Standing.REFUSED:
            found: Json = {"enum": [*self.asks_nothing, None]}
        elif self.read is None:
            found = {"maxLength": MAX_NOTE}
        else:
            found = self.read.schema if self.is_required else or_null(self.read.schema)
        return {**found, "description": self.help}
