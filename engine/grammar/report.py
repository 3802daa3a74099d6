"""What a compiled constraint enforces, what was rewritten for it, and what it leaves alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark about one keyword.

    Args:
        pointer: JSON pointer to the schema that holds the keyword, "" for the root.
        note: what it means for the output, one clause.
    """

    pointer: str
    keyword: str
    note: str

    def __str__(self) -> str:
        return f"{self.keyword} at {self.pointer or 'the root'}: {self.note}"


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """The account of one constraint; nothing in a schema is ignored without a line here.

    Args:
        enforced: keywords the mask enforces, each named once.
        rewritten: assertions enforced in another, equal or stricter, form.
        annotations: keywords and formats that assert nothing, here or anywhere.
        unenforced: assertions left to the final check; empty unless "validate" was asked for.
    """

    enforced: tuple[str, ...] = ()
    rewritten: tuple[Finding, ...] = ()
    annotations: tuple[Finding, ...] = ()
    unenforced: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "enforced": list(self.enforced),
            "rewritten": [str(item) for item in self.rewritten],
            "annotations": [str(item) for item in self.annotations],
            "unenforced": [str(item) for item in self.unenforced],
        }
