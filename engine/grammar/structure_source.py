"""From structures in free text to a grammar text: their schemas take the way of all schemas.

A control token that a tag names is that token, at the level of rules; where the vocabulary has no
such token it is text. Free text is a lexeme without any trigger, or one that ends with its first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from llguidance import LLMatcher

from engine.errors import SchemaError
from engine.grammar.build import Builder, BuildError
from engine.grammar.counts import check_counts
from engine.grammar.document import SchemaDocument, json_text
from engine.grammar.report import Finding, SchemaReport
from engine.grammar.schema_source import SchemaSource, compile_schema
from engine.grammar.structures import Structure, Structures
from engine.models.special_names import shown_names

ANY = "(?s:.*)"


@dataclass(frozen=True, slots=True)
class StructureSource:
    """Structures ready for use.

    Args:
        documents: the schema of each structure, and last that of the document if there is one.
    """

    documents: tuple[SchemaDocument, ...]
    grammar: str
    matcher: LLMatcher
    report: SchemaReport


def compile_structures(
    tag: Structures, may_drop: bool, builder: Builder, names: Names
) -> StructureSource:
    """Compile structures.

    Args:
        may_drop: leave to the final check what no mask can enforce, whatever a structure says.
        names: the control tokens that tags may name.

    Raises:
        SchemaError: a schema is none or cannot be enforced, or a tag names an end token; with the
            JSON pointer in the constraint.
    """
    holders = [*tag.structures, *([tag.document] if tag.document else [])]
    known: dict[tuple[str, bool], SchemaSource] = {}
    sources = [_compile(holder, may_drop, builder, known) for holder in holders]
    lark = _Lark(tag, names, sources).text()
    named = {source.grammar: f"s{index}" for index, source in enumerate(sources)}
    grammars = [{**_only_grammar(text), "name": name} for text, name in named.items()]
    grammar = json.dumps({"grammars": [{"lark_grammar": lark}, *grammars]})
    try:
        matcher = builder.matcher(grammar)
    except BuildError as error:
        reason = shown_names(str(error))
        raise SchemaError(f"structural_tag cannot be compiled: {reason}", "") from error
    documents = tuple(source.document for source in sources)
    return StructureSource(documents, grammar, matcher, _report(holders, sources))


def _compile(
    holder: Structure,
    may_drop: bool,
    builder: Builder,
    known: dict[tuple[str, bool], SchemaSource],
) -> SchemaSource:
    lax = may_drop or not holder.strict
    try:
        key = (json_text(holder.schema), lax)
        if key not in known:
            check_counts(holder.schema, builder.limits)
            known[key] = compile_schema(holder.schema, lax, builder)
        return known[key]
    except SchemaError as error:
        pointer = holder.place + (error.pointer or "")
        raise SchemaError(f"{holder.place}: {error}", pointer, error.keyword) from error


def _only_grammar(text: str) -> dict[str, object]:
    (grammar,) = json.loads(text)["grammars"]
    return {"json_schema": grammar["json_schema"]}


def _report(holders: Iterable[Structure], sources: Iterable[SchemaSource]) -> SchemaReport:
    """Return one account of all schemas, with pointers into the constraint."""
    enforced: set[str] = {"structural_tag"}
    found: dict[str, list[Finding]] = {"rewritten": [], "annotations": [], "unenforced": []}
    for holder, source in zip(holders, sources, strict=True):
        enforced |= set(source.report.enforced)
        for name, findings in found.items():
            findings += [
                replace(item, pointer=holder.place + item.pointer)
                for item in getattr(source.report, name)
            ]
    lists = {name: tuple(findings) for name, findings in found.items()}
    return SchemaReport(enforced=tuple(sorted(enforced)), **lists)


class Names:
    """The control tokens that tags may name.

    Args:
        ids: name -> id.
        ends: ids that may not be named.
    """

    def __init__(self, ids: Mapping[str, int], ends: Collection[int]) -> None:
        self._ids, self._ends = ids, ends
        longest_first = sorted(ids, key=lambda name: (-len(name), name))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if ids else None

    def split(self, text: str) -> Iterator[str | int]:
        """Cut a tag into texts and token ids.

        Raises:
            SchemaError: it names an end token.
        """
        place = 0
        for found in self._pattern.finditer(text) if self._pattern else ():
            if found.start() > place:
                yield text[place : found.start()]
            token = self._ids[found[0]]
            if token in self._ends:
                raise SchemaError(f"{found[0]} ends a reply; no structure can hold it", "")
            yield token
            place = found.end()
        if place < len(text):
            yield text[place:]


@dataclass(frozen=True, slots=True)
class _Lark:
    """The rules around the schemas, in llguidance's Lark dialect."""

    tag: Structures
    names: Names
    sources: list[SchemaSource]

    def text(self) -> str:
        tag = self.tag
        rules = [f"start: {self._start()}", *self._terminals()]
        if tag.text:
            rules += self._heads()
        else:
            bodies = range(len(tag.structures))
            rules.append("one: " + " | ".join(self._rule(index, 0) for index in bodies))
        return "\n".join(rules) + "\n"

    def _start(self) -> str:
        tag = self.tag
        if tag.text:
            if tag.stop_after_first:
                return "one" if tag.at_least_one else "one | TEXT"
            return "one+ TEXT" if tag.at_least_one else "one* TEXT"
        some = "one" if tag.stop_after_first else r'one ("\n"? one)*'
        if tag.document is not None:
            return f"@{self._name(-1)} | {some}"
        return some if tag.at_least_one else f"({some})?"

    def _name(self, index: int) -> str:
        """Return the name of a schema's grammar; equal schemas share the last one's."""
        text = self.sources[index].grammar
        return f"s{max(i for i, source in enumerate(self.sources) if source.grammar == text)}"

    def _terminals(self) -> list[str]:
        if not self.tag.text:
            return []
        barred = "|".join(map(_literal, self.tag.triggers))
        return [f"TEXT: /{ANY}/ & ~/{ANY}({barred}){ANY}/"]

    def _heads(self) -> list[str]:
        """Return a rule for each trigger: text up to it, and what it begins."""
        rules, heads = [], []
        spelled = [text for text in self.tag.triggers if self._token_of(text) is not None]
        for index, trigger in enumerate(self.tag.triggers):
            token, begun = self._token_of(trigger), self.tag.begun_by(trigger)
            if not begun:
                continue  # it is no part of any text, and TEXT knows
            skip = 0 if token is not None else len(trigger)
            bodies = " | ".join(self._rule(structure, skip) for structure in begun)
            if token is None:
                rules += [f"HEAD{index}: {_text_up_to(trigger, spelled)}"]
                rules += [f"head{index}[lazy]: HEAD{index}"]
            before = "TEXT" if token is not None else f"head{index}"
            rules.append(f"one{index}: {before} ({bodies})")
            heads.append(f"one{index}")
        return ["one: " + " | ".join(heads), *rules]

    def _token_of(self, trigger: str) -> int | None:
        """Return the token a trigger begins with; None when it is all text."""
        parts = list(self.names.split(trigger))
        if isinstance(parts[0], int):
            return parts[0]
        if len(parts) > 1:
            raise SchemaError(
                f"trigger {trigger!r} has text before a control token; let it begin with the token",
                f"/triggers/{self.tag.triggers.index(trigger)}",
            )
        return None

    def _rule(self, index: int, skip: int) -> str:
        """Return a structure without the first `skip` characters of its beginning."""
        structure = self.tag.structures[index]
        parts = [*self._terms(structure.begin[skip:]), f"@{self._name(index)}"]
        return " ".join([*parts, *self._terms(structure.end)])

    def _terms(self, text: str) -> list[str]:
        return [
            f"<[{part}]>" if isinstance(part, int) else f"/{_literal(part)}/"
            for part in self.names.split(text)
        ]


def _text_up_to(trigger: str, barred: Iterable[str]) -> str:
    """Return a terminal of text that ends with a trigger and holds no text of `barred`."""
    pattern = f"/{ANY}{_literal(trigger)}/"
    others = "|".join(map(_literal, barred))
    return f"{pattern} & ~/{ANY}({others}){ANY}/" if others else pattern


def _literal(text: str) -> str:
    """Return a regular expression of exactly this text, in characters safe in any grammar."""
    return "".join(
        char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text
    )
