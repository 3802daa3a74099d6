"""Constraints compiled for one model: cached by content, built once however many ask."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLTokenizer

from engine.errors import RowError, SchemaError
from engine.grammar.behind import BehindReasoning
from engine.grammar.build import SLICES, Builder, BuildError
from engine.grammar.counts import check_counts
from engine.grammar.deep_pool import DeepPool
from engine.grammar.document import check_depth, json_text
from engine.grammar.limits import GrammarLimits
from engine.grammar.report import SchemaReport
from engine.grammar.schema_source import compile_schema
from engine.grammar.state import GrammarState
from engine.grammar.structure_check import Spelling, StructureCheck
from engine.grammar.structure_source import Names, compile_structures
from engine.grammar.structures import read_structures
from engine.grammar.text_check import SchemaCheck, TextCheck
from engine.grammar.text_source import choice_grammar, choices_of, lark_grammar, regex_grammar
from engine.grammar.vocabulary import GrammarVocabulary
from engine.models.special_names import ControlTokens, shown_names
from engine.reasoning import ReasoningTags
from engine.request import Constraint, ConstraintKind, Reasoning

if TYPE_CHECKING:
    from engine.models.load import LoadedModel

JSON_KINDS = (ConstraintKind.JSON_SCHEMA, ConstraintKind.JSON_OBJECT)

DEPTH_OF_STRUCTURES = 3
"""Levels above a schema in structures: the object, the list and the structure."""

NO_CONTROLS = ControlTokens()

TEXT_GRAMMARS: dict[ConstraintKind, Callable[[object, GrammarLimits], str]] = {
    ConstraintKind.CHOICE: choice_grammar,
    ConstraintKind.REGEX: regex_grammar,
    ConstraintKind.LARK: lark_grammar,
}


Accepts = Callable[[str, Sequence[int]], bool]
"""Whether a text, of these tokens, conforms."""


@dataclass(frozen=True, slots=True)
class CompileStats:
    """What a compiler has done.

    Args:
        compiles: builds that ended well; `failures` those that did not.
        hits: requests served by a build that was there or under way.
        evictions: grammars dropped: out of room, or spoiled by an error.
        seconds: time spent in builds; no part of what makes two alike.
    """

    compiles: int = 0
    failures: int = 0
    hits: int = 0
    evictions: int = 0
    seconds: float = field(default=0.0, compare=False)


class CompiledGrammar:
    """One constraint, ready to start rows. Safe to share between threads."""

    def __init__(
        self,
        grammar: str,
        matcher: LLMatcher,
        report: SchemaReport,
        accepts: Accepts,
        rebuild: Callable[[str], LLMatcher],
        vocabulary: GrammarVocabulary,
    ) -> None:
        self.report = report
        self._grammar = grammar
        self._template: LLMatcher | None = matcher
        self._accepts = accepts
        self._rebuild = rebuild
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._num_discarded = 0

    @property
    def is_spoiled(self) -> bool:
        """True when a matcher of this grammar has failed; the cache then builds it anew."""
        return self._num_discarded > 0

    def start(self, tokens: Sequence[int] = ()) -> GrammarState:
        """Return the state of a new row, or of one that has emitted `tokens`."""
        return GrammarState(self, self._vocabulary, tokens)

    def start_behind(
        self, tags: ReasoningTags, reasoning: Reasoning, tokens: Sequence[int] = ()
    ) -> BehindReasoning:
        """Return the state of a row whose reasoning comes before what is constrained."""
        return BehindReasoning(self.start(), self._vocabulary, tags, reasoning, tokens)

    def template(self) -> LLMatcher:
        """Return a matcher at the start, to be copied.

        Raises:
            RowError: the grammar, discarded before, does not compile a second time.
        """
        with self._lock:
            if self._template is None:
                try:
                    self._template = self._rebuild(self._grammar)
                except (BuildError, SchemaError) as error:
                    raise RowError(
                        f"the grammar cannot be rebuilt after a failure: {error}"
                    ) from error
            return self._template

    def discard(self, template: LLMatcher) -> None:
        """Never return `template` again: a copy of it has failed, so all copies will."""
        with self._lock:
            self._num_discarded += 1
            if self._template is template:
                self._template = None

    def check_text(self, text: str, is_accepting: bool, tokens: Sequence[int]) -> str:
        """Judge the finished text of a row, of these tokens: "enforced", "checked" or "failed"."""
        if not (is_accepting and self._accepts(text, tokens)):
            return "failed"
        return "checked" if self.report.unenforced else "enforced"


class GrammarCompiler:
    """Compiles constraints for one tokenizer; equal constraints are compiled once.

    Args:
        tokenizer_ll: the tokenizer as llguidance knows it, its special tokens under their other
            names (engine.models.special_names).
        vocab_size: width of the logits.
        eos_ids: ids that end a row.
        controls: tokens that the tags of structures may name.
    """

    def __init__(
        self,
        tokenizer_ll: LLTokenizer,
        vocab_size: int,
        eos_ids: frozenset[int],
        limits: GrammarLimits | None = None,
        controls: ControlTokens = NO_CONTROLS,
    ) -> None:
        self._controls = controls
        self.limits = limits or GrammarLimits()
        self._tokenizer = tokenizer_ll
        self._pool = DeepPool(self.limits.compile_s)
        self._vocabulary = GrammarVocabulary(
            tokenizer_ll, vocab_size, eos_ids, self.limits.max_idle_bytes
        )
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[str, ...], Future[CompiledGrammar]] = OrderedDict()
        self._stats = CompileStats()

    @classmethod
    def of(cls, model: LoadedModel) -> GrammarCompiler:
        """Return a compiler for a model's tokenizer."""
        tokenizer = model.tokenizer
        controls = tokenizer.control_tokens
        return cls(tokenizer.ll, model.vocab_size, model.eos_ids, controls=controls)

    @cached_property
    def _builder(self) -> Builder:
        # Cutting the vocabulary into slices takes 0.1 s: only for engines that see a constraint.
        return Builder(self._tokenizer.with_slices(SLICES), self.limits)

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """Return the grammar of a constraint; blocks while it is built, by whichever thread.

        Raises:
            SchemaError: it is not valid, cannot be enforced, or passes a limit.
        """
        if constraint.kind is ConstraintKind.JSON_SCHEMA:
            # Before it is written as text: what is too large costs no more than counting.
            check_depth(constraint.value, self.limits.max_depth)
            check_counts(constraint.value, self.limits)
        if constraint.kind is ConstraintKind.STRUCTURAL_TAG:
            check_depth(constraint.value, self.limits.max_depth + DEPTH_OF_STRUCTURES)
        key = (constraint.kind, constraint.on_unsupported, json_text(constraint.value))
        with self._lock:
            future = self._usable(key)
            if future is None:
                future = self._cache[key] = self._pool.submit(self._build, constraint)
                self._evict()
            else:
                self._count(hits=1)
        return self._pool.wait(future)

    def stats(self) -> CompileStats:
        """Return counts and seconds since the compiler was made."""
        return self._stats

    def _usable(self, key: tuple[str, ...]) -> Future[CompiledGrammar] | None:
        future = self._cache.get(key)
        if future is None:
            return None
        if future.done() and (future.exception() is not None or future.result().is_spoiled):
            del self._cache[key]
            self._count(evictions=1)
            return None
        self._cache.move_to_end(key)
        return future

    def _evict(self) -> None:
        while len(self._cache) > self.limits.cache_entries:
            self._cache.popitem(last=False)
            self._count(evictions=1)

    def _build(self, constraint: Constraint) -> CompiledGrammar:
        started_s = time.perf_counter()
        is_compiled = False
        try:
            grammar = self._compile(constraint)
            is_compiled = True
        finally:
            seconds = time.perf_counter() - started_s
            with self._lock:
                self._count(compiles=is_compiled, failures=not is_compiled, seconds=seconds)
        return grammar

    def _compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind in JSON_KINDS:
            return self._compile_json(constraint)
        if constraint.kind is ConstraintKind.STRUCTURAL_TAG:
            return self._compile_structures(constraint)
        grammar = TEXT_GRAMMARS[constraint.kind](constraint.value, self.limits)
        try:
            matcher = self._builder.matcher(grammar)
        except BuildError as error:
            reason = shown_names(str(error))
            raise SchemaError(f"{constraint.kind} cannot be compiled: {reason}") from error
        texts = choices_of(constraint.value) if constraint.kind is ConstraintKind.CHOICE else None
        accepts = TextCheck(None if texts is None else frozenset(texts)).accepts
        report = SchemaReport(enforced=(str(constraint.kind),))
        return self._compiled(grammar, matcher, report, _of_text(accepts))

    def _compile_json(self, constraint: Constraint) -> CompiledGrammar:
        is_object = constraint.kind is ConstraintKind.JSON_OBJECT
        schema = {"type": "object"} if is_object else constraint.value
        may_drop = constraint.on_unsupported == "validate"
        source = compile_schema(schema, may_drop, self._builder)
        accepts = SchemaCheck.of(source.document).accepts
        return self._compiled(source.grammar, source.matcher, source.report, _of_text(accepts))

    def _compile_structures(self, constraint: Constraint) -> CompiledGrammar:
        tag = read_structures(constraint.value, self.limits)
        may_drop = constraint.on_unsupported == "validate"
        names = Names(self._controls.ids, self._vocabulary.ends)
        source = compile_structures(tag, may_drop, self._builder, names)
        accepts = StructureCheck.of(tag, source.documents).accepts
        spell = Spelling(self._tokenizer, self._controls)

        def accepts_spelled(text: str, tokens: Sequence[int]) -> bool:
            spelled = spell.text(tokens)
            if spell.visible(tokens) == text:
                return accepts(spelled)
            # a stop string has cut the text, and silent tags are not in it
            return spelled == spell.visible(tokens) and accepts(text)

        return self._compiled(source.grammar, source.matcher, source.report, accepts_spelled)

    def _compiled(
        self,
        grammar: str,
        matcher: LLMatcher,
        report: SchemaReport,
        accepts: Accepts,
    ) -> CompiledGrammar:
        return CompiledGrammar(grammar, matcher, report, accepts, self._rebuild, self._vocabulary)

    def _rebuild(self, grammar: str) -> LLMatcher:
        return self._pool.wait(self._pool.submit(self._builder.matcher, grammar))

    def _count(
        self,
        compiles: int = 0,
        failures: int = 0,
        hits: int = 0,
        evictions: int = 0,
        seconds: float = 0.0,
    ) -> None:
        """Add to the counts; the caller holds the lock."""
        old = self._stats
        self._stats = CompileStats(
            old.compiles + compiles,
            old.failures + failures,
            old.hits + hits,
            old.evictions + evictions,
            old.seconds + seconds,
        )


def _of_text(accepts: Callable[[str], bool]) -> Accepts:
    return lambda text, _tokens: accepts(text)
