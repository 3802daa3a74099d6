"""The error of a workload's files."""

from __future__ import annotations

from engine.errors import FmError


class WorkloadError(FmError, ValueError):
    """A file of a workload is missing or wrong; the text names file, line, value and remedy."""
