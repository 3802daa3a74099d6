"""What a reply cost and how it was made: the `usage` of a reply, from the records of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from engine.request import Completion

WORST_FIRST = ("failed", "checked", "enforced")
"""A reply of several choices conforms as its worst one does."""


def usage_of(completions: Sequence[Completion], num_choices: int) -> dict[str, Any]:
    """Return the usage of a reply.

    Args:
        completions: the rows of the reply, `num_choices` of each prompt behind one another. A
            prompt is counted once, however many choices it has.
    """
    first = completions[0]
    per_prompt = [
        completions[start : start + num_choices]
        for start in range(0, len(completions), num_choices)
    ]
    prompt_tokens = sum(rows[0].prompt_tokens for rows in per_prompt)
    completion_tokens = sum(len(row.token_ids) for row in completions)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": sum(min(row.cached_tokens for row in rows) for rows in per_prompt)
        },
        "completion_tokens_details": {
            "reasoning_tokens": sum(row.reasoning_tokens for row in completions)
        },
        "speculation": {
            "drafted": sum(row.drafted for row in completions),
            "accepted": sum(row.accepted for row in completions),
            "target_calls": sum(row.target_calls for row in completions),
            "drafted_by_position": _added(row.drafted_by_position for row in completions),
            "accepted_by_position": _added(row.accepted_by_position for row in completions),
        },
        "lane": first.lane,
        "lane_reason": first.lane_reason,
        "conformance": _worst(row.conformance for row in completions),
        "schema_report": first.schema_report,
    }


def response_usage_of(record: Completion) -> dict[str, Any]:
    """Return the usage of a response: the same, in the words of /v1/responses."""
    usage = usage_of([record], 1)
    return {
        "input_tokens": usage.pop("prompt_tokens"),
        "input_tokens_details": usage.pop("prompt_tokens_details"),
        "output_tokens": usage.pop("completion_tokens"),
        "output_tokens_details": usage.pop("completion_tokens_details"),
        **usage,
    }


def _added(counts: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*counts, fillvalue=0)]


def _worst(found: Iterable[str | None]) -> str | None:
    seen = set(found)
    return next((word for word in WORST_FIRST if word in seen), None)
