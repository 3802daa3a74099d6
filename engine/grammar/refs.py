"""Where a `$ref` leads inside one document: pointers, anchors and embedded `$id`s."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from engine.errors import SchemaError
from engine.grammar.document import MAPS, Dialect, Json, pointer_of

DATA = ("const", "enum", "default", "examples")
"""Keywords whose value is data: what looks like an `$id` in it is none."""


class RefIndex:
    """Resolves references of a document to JSON pointers; never looks outside it."""

    def __init__(self, root: bool | dict[str, Json], dialect: Dialect) -> None:
        self._root = root
        self._bases: dict[str, str] = {}
        self._anchors: dict[tuple[str, str], str] = {}
        self._pointers: dict[str, str] = {"": ""}
        for pointer, base, item in _objects(root, dialect):
            self._bases[pointer] = base
            self._pointers.setdefault(base, pointer)
            for name in (item.get("$anchor"), _fragment(item.get(dialect.id_keyword))):
                if isinstance(name, str):
                    self._anchors[base, name] = pointer

    def schema_at(self, pointer: str) -> bool | dict[str, Json]:
        """Return the schema a pointer names; raises SchemaError when there is none."""
        found: Any = self._root
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                raise SchemaError(f"{pointer} does not exist in the schema", pointer)
        if not isinstance(found, dict | bool):
            raise SchemaError(f"{pointer} is {found!r:.40}, not a schema", pointer)
        return found

    def resolve(self, ref: object, at: str) -> str:
        """Return the pointer of what `ref`, a reference in the schema at `at`, leads to.

        Raises:
            SchemaError: it is missing, or lies outside the document.
        """
        if not isinstance(ref, str):
            raise SchemaError(f"$ref at {at or 'the root'} is not a string", at, "$ref")
        base = self._bases.get(at, "")
        target = base + ref if ref.startswith("#") else urljoin(base, ref)
        resource, fragment = urldefrag(target)
        if resource not in self._pointers:
            raise SchemaError(
                f"$ref {ref!r} at {at or 'the root'} leads out of the schema; "
                "nothing is fetched, so copy its target into $defs",
                at,
                "$ref",
            )
        pointer = self._locate(resource, unquote(fragment))
        try:
            self.schema_at(pointer)
        except SchemaError as error:
            raise SchemaError(
                f"$ref {ref!r} at {at or 'the root'} leads nowhere: {error}", at, "$ref"
            ) from error
        return pointer

    def _locate(self, resource: str, fragment: str) -> str:
        start = self._pointers[resource]
        if not fragment:
            return start
        if fragment.startswith("/"):
            return start + fragment
        return self._anchors.get((resource, fragment), f"/#{fragment}")


def _objects(
    root: bool | dict[str, Json], dialect: Dialect
) -> Iterator[tuple[str, str, dict[str, Json]]]:
    """Yield every object of a document with its pointer and base URI."""
    # (pointer, base, item, whether the names in item are free: it maps names to schemas)
    stack: list[tuple[str, str, Json, bool]] = [("", "", root, False)]
    while stack:
        pointer, base, item, is_map = stack.pop()
        if isinstance(item, list):
            parts: list[tuple[str | int, Json]] = list(enumerate(item))
        elif isinstance(item, dict):
            base = base if is_map else _base(item, base, dialect)
            yield pointer, base, {} if is_map else item
            parts = list(item.items())
        else:
            continue
        for name, child in parts:
            if is_map or name not in DATA:
                is_named = not is_map and name in MAPS
                stack.append((pointer + pointer_of((name,)), base, child, is_named))


def _base(item: dict[str, Json], base: str, dialect: Dialect) -> str:
    name = item.get(dialect.id_keyword)
    if dialect.is_ref_alone and "$ref" in item:
        return base
    if isinstance(name, str) and not name.startswith("#"):
        return urldefrag(urljoin(base, name))[0]
    return base


def _fragment(name: Json) -> str | None:
    """Until draft-07 an `$id` of "#name" was what `$anchor` is now."""
    return name[1:] if isinstance(name, str) and name.startswith("#") else None
