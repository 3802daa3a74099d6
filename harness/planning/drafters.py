"""Which model drafts for which, as the registry says."""

from __future__ import annotations

from engine.models.registry import find_entry

OWN_DRAFTERS = ("ngram",)
"""Drafters of the registry that are no models."""


def draft_model_of(model: str) -> str | None:
    """Return the first draft model the registry names for a model, None where it names none.

    Raises:
        UnknownNameError: no such model.
    """
    drafters = find_entry(model).drafters
    return next((name for name in drafters if name not in OWN_DRAFTERS), None)
