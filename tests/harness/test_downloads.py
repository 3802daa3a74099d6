"""What a person sees of a download: tenths of it, and nothing where all of it is here."""

from __future__ import annotations

import io

from harness.downloads import DownloadProgress


def test_a_download_is_told_by_tenths_and_what_was_here_not_at_all() -> None:
    stream = io.StringIO()
    told = DownloadProgress("m", stream)
    for received in range(0, 101, 2):
        told(received * 1_000_000, 100_000_000)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 10
    assert lines[-1] == "fetching m: 100 of 100 MB"
    cached = io.StringIO()
    DownloadProgress("m", cached)(5, 5)
    assert not cached.getvalue()


def test_a_download_of_unknown_size_is_told_too() -> None:
    stream = io.StringIO()
    told = DownloadProgress("m", stream)
    for received in (0, 9_000_000, 25_000_000, 26_000_000):
        told(received, None)
    assert stream.getvalue() == "fetching m: 25 MB\n"
