"""Where fm keeps what it can make or fetch again: the one place that knows the cache folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_dir() -> Path:
    """Return the cache folder, which need not exist yet.

    FM_CACHE_DIR names it outright; otherwise it is `fm` in XDG_CACHE_HOME or in ~/.cache, and
    for a user without a home folder one in the folder for temporary files.
    """
    named, base = os.environ.get("FM_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    try:
        if named:
            return Path(named).expanduser()
        return (Path(base).expanduser() if base else Path.home() / ".cache") / "fm"
    except RuntimeError:  # no HOME, and no entry in the user database
        return Path(tempfile.gettempdir()) / f"fm-{os.getuid()}"
