"""`fm gate`."""

from __future__ import annotations
