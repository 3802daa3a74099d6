"""`fm gate`."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import click

from engine.errors import SettingError
from harness import exit_codes
from harness.commands.matrix_flags import choices_of, matrix_options
from harness.commands.places import DEFAULT_DB, DEFAULT_REPORTS
