"""Two validators that know nothing of each other or of the grammar: jsonschema, jsonschema-rs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema.validators import validator_for
from referencing import Registry

from engine.document import DocumentError, read_document
from engine.errors import SettingError
from harness.judging.validation import DIALECT, schema_check


@dataclass(frozen=True, slots=True)
class Judges:
    """Both validators of one schema.

    Args:
        first: the one of the conformance gate; returns why a document is wrong, None when it is
            not. Of another dialect than 2020-12, jsonschema as it comes.
        second: jsonschema-rs, formats asserted.
    """

    first: Callable[[Any], str | None]
    second: Callable[[Any], bool]

    @classmethod
    def of(cls, schema: Any) -> Judges:
        """Return the judges of a schema.

        Raises:
            SettingError: jsonschema-rs is not installed.
        """
        try:
            import jsonschema_rs
        except ImportError:
            raise SettingError(
                "jsonschema-rs is not installed; it comes with the development packages: "
                "scripts/install"
            ) from None
        second = jsonschema_rs.validator_for(schema, validate_formats=True)
        return cls(_first(schema), second.is_valid)

    def fault(self, document: Any) -> str | None:
        """Return why one of them refuses a document, None when both take it."""
        error = self.first(document)
        if error is not None:
            return f"jsonschema: {error}"
        return None if self.second(document) else "jsonschema-rs refuses it"

    def fault_of_text(self, text: str) -> str | None:
        """Return why a text is not one document that both take."""
        try:
            return self.fault(read_document(text))
        except DocumentError as error:
            return str(error)


def _first(schema: Any) -> Callable[[Any], str | None]:
    dialect = schema.get("$schema", DIALECT) if isinstance(schema, Mapping) else DIALECT
    if isinstance(schema, Mapping) and dialect.removesuffix("#") == DIALECT:
        return schema_check(schema).first_error
    kind: Any = validator_for(schema)
    validator = kind(json.loads(json.dumps(schema)), registry=Registry())
    validator.format_checker = kind.FORMAT_CHECKER

    def first_error(document: Any) -> str | None:
        error = next(validator.iter_errors(document), None)
        return None if error is None else " ".join(str(error.message).split())[:200]

    return first_error
