"""The results page: what stands between its markers is ours, all else is kept as it is.

Each table lies between markers of its own, the first of which says where the table comes from, so
the page alone tells what to replace: databases of several machines write into one page.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path

from engine.errors import FmError
from harness.report.gfm import escape
from harness.report.outcome import write_report
from harness.results.tables import Origin, ResultTable, Section

BEGIN = "<!-- fm promote: begin; written by `fm promote`, do not edit up to the end -->"
END = "<!-- fm promote: end -->"
_TABLE = re.compile(r"<!-- fm promote: table (\{.*\}) -->")
_TABLE_END = "<!-- fm promote: table end -->"

HEAD = "# Results\n"
"""What a new page begins with."""

SECTIONS: dict[Section, str] = {
    "quotable": (
        "## Quotable\n\n"
        "Measured on machines that were clean throughout, with enough blocks for a verdict."
    ),
    "unquotable": (
        "## Unquotable\n\n"
        "**Do not quote these figures**: the last column of each table says why. Ratios compare "
        "cells of the same run and block; speeds are those of a machine that was not clean, or of "
        "too few blocks."
    ),
}
NOTHING = "Nothing was promoted yet."

WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


class ResultsError(FmError):
    """Nothing can be promoted, or the page cannot be read or written; the text names a remedy."""


@dataclass(frozen=True, slots=True)
class Page:
    """A results page taken apart: the text around the markers, and the tables between them."""

    before: str
    tables: tuple[ResultTable, ...]
    after: str

    def with_tables(self, added: Sequence[ResultTable]) -> Page:
        """Return the page with more tables, in place of those they replace."""
        kept = [
            old for old in self.tables if not any(new.origin.replaces(old.origin) for new in added)
        ]
        return Page(self.before, (*kept, *added), self.after)

    def text(self) -> str:
        """Return the page as Markdown; the same tables give the same bytes in whatever order."""
        return f"{self.before}{BEGIN}\n\n{_region(self.tables)}\n\n{END}\n{self.after}"


def read_page(path: Path) -> Page:
    """Return the page of a file, an empty one where there is no file.

    Raises:
        ResultsError: it cannot be read, or its markers are not in order.
    """
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        return Page(f"{HEAD}\n", (), "")
    except OSError as error:
        raise ResultsError(
            f"{path} cannot be read ({error.strerror}); name another page with --to"
        ) from error
    except UnicodeDecodeError as error:
        raise ResultsError(f"{path} is not UTF-8; save it so, or name another with --to") from error
    return parse_page(text, str(path))


@contextmanager
def page_of(path: Path) -> Iterator[Path]:
    """Hold a page while the block reads and writes it; gives the file itself, links followed.

    Of two promotions at once the second waits, so that neither loses what the other wrote. The
    claim is on the folder: the file is replaced, and a lock file would lie beside a committed page.

    Raises:
        ResultsError: the folder cannot be made.
    """
    file = path.resolve()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(file.parent, os.O_RDONLY)
    except OSError as error:
        raise ResultsError(
            f"{file.parent} cannot be used ({error.strerror}); name another page with --to"
        ) from error
    try:
        with suppress(OSError):  # a file system without locks has no claims either
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(folder)


def write_page(path: Path, page: Page) -> bool:
    """Write the page, whole or not at all; False when the file has these very bytes already.

    Raises:
        ResultsError: the file is write-protected: replacing it would not ask.
        ReportError: it cannot be written.
    """
    text = page.text()
    if path.is_file():
        if path.read_bytes() == text.encode():
            return False
        if not path.stat().st_mode & WRITABLE:
            raise ResultsError(
                f"{path} is write-protected; allow writing to it, or name another page with --to"
            )
    write_report(path, text)
    return True


def parse_page(text: str, name: str) -> Page:
    """Return a page from its text; ResultsError names what is wrong with its markers."""
    lines = text.splitlines(keepends=True)
    # An indented line is text: commands stand in the tables so, whatever they hold.
    marks = [line.rstrip() for line in lines]
    begins = [place for place, mark in enumerate(marks) if mark == BEGIN]
    ends = [place for place, mark in enumerate(marks) if mark == END]
    if not begins and not ends:
        gap = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
        return Page(text + gap, (), "")
    if len(begins) != 1 or len(ends) != 1 or ends[0] < begins[0]:
        raise ResultsError(
            f"{name} has {len(begins)} lines {BEGIN!r} and {len(ends)} lines {END!r}; there must "
            "be one of each, in this order: restore them, or remove them all"
        )
    begin, end = begins[0], ends[0]
    return Page(
        before="".join(lines[:begin]),
        tables=tuple(_tables(marks[begin + 1 : end], lines[begin + 1 : end], name)),
        after="".join(lines[end + 1 :]),
    )


def _tables(marks: Sequence[str], lines: Sequence[str], name: str) -> Iterator[ResultTable]:
    origin, start = None, 0
    for place, mark in enumerate(marks):
        found = _TABLE.fullmatch(mark)
        if found is not None and origin is None:
            origin, start = _origin(found[1], name), place + 1
        elif mark == _TABLE_END and origin is not None:
            body = "".join(lines[start:place]).replace("\r\n", "\n")
            yield ResultTable(origin, body.strip("\n"))
            origin = None
        elif found is not None or mark == _TABLE_END:
            raise ResultsError(f"{name} has a table marker out of place: {mark[:80]}; restore it")
    if origin is not None:
        raise ResultsError(f"{name} has a table without {_TABLE_END!r}; restore it")


def _origin(text: str, name: str) -> Origin:
    try:
        content = json.loads(text)
        values = {item.name: content[item.name] for item in fields(Origin)}
    except (ValueError, LookupError) as error:
        raise ResultsError(
            f"{name} has a table marker that cannot be read: {text[:80]}; restore it"
        ) from error
    if values["section"] not in SECTIONS or not all(isinstance(v, str) for v in values.values()):
        raise ResultsError(f"{name} has a table of an unknown section: {text[:80]}; restore it")
    return Origin(**values)


def _region(tables: Iterable[ResultTable]) -> str:
    parts = [part for section in SECTIONS for part in _section(section, tables)]
    return "\n\n".join(parts or [NOTHING])


def _section(section: Section, tables: Iterable[ResultTable]) -> Iterator[str]:
    chosen = sorted(
        (item for item in tables if item.origin.section == section),
        key=lambda item: _order(item.origin),
    )
    if not chosen:
        return
    yield SECTIONS[section]
    machine = None
    for item in chosen:
        if item.origin.machine != machine:
            machine = item.origin.machine
            yield f"### {escape(f'{item.origin.label} ({machine})')}"
        yield f"{_mark(item.origin)}\n\n{item.body}\n\n{_TABLE_END}"


def _order(origin: Origin) -> tuple[str, ...]:
    return (
        origin.label,
        origin.machine,
        origin.model,
        origin.workload,
        origin.created_at,
        origin.run_id,
    )


def _mark(origin: Origin) -> str:
    r"""Return a table's first marker; `<`, `>` and `-` are \u escapes: no text ends the comment."""
    text = json.dumps(origin.as_dict(), ensure_ascii=True, sort_keys=True)
    for character in "<>-":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f"<!-- fm promote: table {text} -->"
