"""The files a gate writes: JUnit, Markdown, JSON, each whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.errors import SettingError
from harness.policy.json_form import to_json
from harness.policy.judgement import Judgement
from harness.policy.junit import to_junit
from harness.policy.summary import to_markdown
from harness.report import ReportError, check_folder, write_report


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where to; None writes none."""

    junit: Path | None
    summary: Path | None
    json: Path | None

    def check(self) -> None:
        """Raise SettingError when one could not be written at the end."""
        for flag, path in (
            ("--junit", self.junit),
            ("--summary", self.summary),
            ("--json", self.json),
        ):
            if path is not None:
                check_folder(path.absolute().parent, flag)
                if path.is_dir():
                    raise SettingError(f"{path} is a folder; name a file with {flag}")

    def clear(self) -> None:
        """Remove those of an earlier gate: one that says nothing must not look like that one."""
        for path in (self.junit, self.summary, self.json):
            if path is not None:
                path.unlink(missing_ok=True)

    def write(self, judgement: Judgement) -> Iterator[str | ReportError]:
        """Write them, and yield a line for each, or why it could not be written."""
        for kind, path, make in (
            ("junit", self.junit, to_junit),
            ("summary", self.summary, to_markdown),
            ("json", self.json, to_json),
        ):
            if path is not None:
                try:
                    write_report(path, make(judgement))
                    yield f"{kind}: {path}"
                except ReportError as error:
                    yield error
