"""One entry of the zoo put to the test.

It compiles or is refused as pinned, its valid documents are legal, its invalid ones are not, and
what chance writes is valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from engine.errors import RowError, SchemaError
from engine.grammar.compile import CompiledGrammar, GrammarCompiler
from engine.models.tokenizer import Tokenizer
from engine.request import Constraint, ConstraintKind
from harness.workloads.zoo_entries import Entry, compact
from harness.zoo.judges import Judges
from harness.zoo.walks import Walker


@dataclass(slots=True)
class Visit:
    """What was seen of one entry.

    Attributes:
        failures: what does not hold, one line each.
        compile_s, cached_s: first and second compile; None for a schema that is refused.
        valid: valid documents asked for; `stricter` of them are refused, for a stated reason.
        invalid: invalid documents, all refused by mask or final check unless a failure says so.
        walks: complete walks that the final check passed, all valid unless a failure says so; `cut`
            were not complete, and `caught` did not pass: the engine ends such a row with an error.
        mask_s: host time of the masks of all walks.
    """

    name: str
    is_refused: bool = False
    failures: list[str] = field(default_factory=list)
    compile_s: float | None = None
    cached_s: float | None = None
    valid: int = 0
    stricter: int = 0
    invalid: int = 0
    walks: int = 0
    cut: int = 0
    caught: int = 0
    mask_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Visitor:
    """Visits entries with one compiler and one walker.

    Args:
        num_walks: walks of each schema that compiles.
    """

    compiler: GrammarCompiler
    tokenizer: Tokenizer
    walker: Walker
    num_walks: int

    def visit(self, entry: Entry) -> Visit:
        """Put one entry to the test."""
        visit = Visit(entry.name)
        grammar = self._compiled(entry, visit)
        if grammar is None:
            return visit
        if entry.refused is not None:
            visit.failures.append(f"compiles, though {entry.refused.keyword} cannot be enforced")
            return visit
        judges = Judges.of(entry.schema)
        self._instances(entry, grammar, judges, visit)
        for _ in range(self.num_walks):
            self._walk(grammar, judges, visit)
        return visit

    def _compiled(self, entry: Entry, visit: Visit) -> CompiledGrammar | None:
        constraint = Constraint(kind=ConstraintKind.JSON_SCHEMA, value=entry.schema)
        started_s = perf_counter()
        try:
            grammar = self.compiler.compile(constraint)
        except SchemaError as error:
            visit.is_refused = True
            visit.failures += _refusal_faults(entry, error)
            return None
        compiled_s = perf_counter()
        self.compiler.compile(constraint)
        visit.compile_s, visit.cached_s = compiled_s - started_s, perf_counter() - compiled_s
        return grammar

    def _instances(
        self, entry: Entry, grammar: CompiledGrammar, judges: Judges, visit: Visit
    ) -> None:
        visit.valid, visit.invalid = len(entry.valid), len(entry.invalid)
        for index, document in enumerate(entry.valid):
            fault = judges.fault(document)
            if fault is not None:
                visit.failures.append(f"valid[{index}] is not valid: {fault}")
            is_listed, legal = str(index) in entry.stricter, self._is_legal(grammar, document)
            visit.stricter += is_listed
            if legal == is_listed:
                verdict = "legal, though listed" if legal else "not legal, and not listed"
                visit.failures.append(f"valid[{index}] is {verdict} under stricter")
        for index, document in enumerate(entry.invalid):
            if judges.fault(document) is None:
                visit.failures.append(f"invalid[{index}] is valid for both validators")
            if self._is_legal(grammar, document):
                visit.failures.append(f"invalid[{index}] is legal: {compact(document)[:120]}")

    def _is_legal(self, grammar: CompiledGrammar, document: Any) -> bool:
        """Decide whether the grammar lets a document be written and its end be taken."""
        text = compact(document)
        ids = self.tokenizer.encode(text)
        state = grammar.start()
        if state.legal_prefix(ids) < len(ids):
            return False
        try:
            state.advance(ids)
        except RowError:
            return False
        return state.is_accepting and state.check_text(text) != "failed"

    def _walk(self, grammar: CompiledGrammar, judges: Judges, visit: Visit) -> None:
        walk = self.walker.walk(grammar)
        visit.mask_s += walk.mask_s
        if walk.error:
            visit.failures.append(f"a walk stops: {walk.error} behind {walk.text[-80:]!r}")
        elif not walk.is_complete:
            visit.cut += 1
        elif walk.conformance == "failed":
            visit.caught += 1
            if judges.fault_of_text(walk.text) is None:
                visit.failures.append(f"a valid walk fails the final check: {walk.text[:160]}")
        else:
            visit.walks += 1
            fault = judges.fault_of_text(walk.text)
            if fault is not None:
                visit.failures.append(f"a walk is not valid: {fault}: {walk.text[:160]}")


def _refusal_faults(entry: Entry, error: SchemaError) -> Sequence[str]:
    """Return what is wrong with a refusal; it must name what the entry pins."""
    if entry.refused is None:
        return [f"is refused: {error}"]
    named = (error.pointer, error.keyword)
    pinned = (entry.refused.pointer, entry.refused.keyword)
    if named == pinned:
        return []
    return [f"is refused for {named}, not for {pinned}: {error}"]
