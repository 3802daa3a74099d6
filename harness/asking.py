"""What the system says when it is asked: texts of files and commands, "" where it gives none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

COMMAND_TIMEOUT_S = 5.0


def output_of(*command: str) -> str:
    """Return what a command prints, "" when it is missing, fails or hangs."""
    env = os.environ | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=env,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def text_of(path: Path) -> str:
    """Return the text of a file, "" when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
