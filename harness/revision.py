"""How a commit is told to people."""

from __future__ import annotations

SHORT = 12
"""Digits of a commit that tell it from all others of a repository."""


def revision_text(sha: str, *, is_dirty: bool) -> str:
    """Return a commit, or the beginning of one, and whether more than it lay in the checkout.

    Args:
        sha: empty where fm ran outside a checkout.
    """
    return f"{sha or 'unknown'}{' with uncommitted changes' if is_dirty else ''}"
