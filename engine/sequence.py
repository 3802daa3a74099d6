"""A request in flight: the only mutable per-request object of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.request import Completion, FinishReason, Provenance, Request, TokenLogprobs
from engine.routing import Route
from engine.text import Said

MAX_FAILURES = 3
"""A row ends with an error after so many failed steps in which it emitted no token."""


class TextSink(Protocol):
    """Turns emitted ids into text that can be shown (engine.reasoning.ReplyText)."""

    @property
    def stopped(self) -> bool:
        """True once a stop string was completed."""
        ...

    @property
    def reasoning_tokens(self) -> int:
        """Tokens that were reasoning."""
        ...

    def push(self, token_id: int) -> Said:
        """Take one token; return what has become certain."""
        ...

    def finish(self) -> Said:
        """Return what is still held back."""
        ...


class Matcher(Protocol):
    """A grammar's position in one row (engine.grammar.state.GrammarState)."""

    @property
    def is_accepting(self) -> bool:
        """True when the text so far is a complete document."""
        ...

    @property
    def is_finished(self) -> bool:
        """True when nothing but the end may follow."""
        ...

    def legal_prefix(self, tokens: Tokens[int]) -> int:
        """Return how many leading tokens the grammar allows."""
        ...

    def advance(self, tokens: Tokens[int]) -> None:
        """Take emitted tokens; raises RowError when the grammar refuses one."""
        ...

    def fill(self, draft: Tokens[int], rows: NDArray[np.int32]) -> str | None:
        """Write the mask before and after each drafted token; return why it cannot."""
        ...

    def check_text(self, text: str) -> str:
        """Return "enforced", "checked" or "failed" for a finished text."""
        ...

    @property
    def schema_report(self) -> Mapping[str, Any]:
        """What is enforced, rewritten, without assertion, and left to the check, as JSON."""
        ...


@dataclass(slots=True)
class DraftCounts:
    """Speculation telemetry of one row; position 0 is the first draft of a step."""

    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    illegal: int = 0

    def propose(self, proposed: int, illegal: int) -> None:
        """Count one step's drafts; the last `illegal` of them never reach the target."""
        for counts in (self.drafted, self.accepted):
            counts.extend([0] * (proposed - len(counts)))
        for position in range(proposed):
            self.drafted[position] += 1
        self.illegal += illegal

    def accept(self, accepted: int) -> None:
        """Count how many of the last step's drafts the target agreed with."""
        for position in range(accepted):
            self.accepted[position] += 1


@dataclass(slots=True, eq=False)
class Sequence:
    """One row from submission to its last token.

    Attributes:
        ids: prompt and emitted tokens.
        num_cached: leading ids whose keys and values are in the row's slot. While decoding it is
            `len(ids) - 1`: the last token is fed by the next step.
        forced_ids: tokens to emit whatever is sampled; used to replay a recorded text.
        siblings: all copies of one prompt in order of submission, this row among them: one computes
            it, the others copy its slot. Empty for a row that shares nothing.
        cached_tokens: prompt tokens that were copied from somewhere instead of computed.
        is_begun: whether a first chunk of the prompt was planned.
        num_fill: leading ids that are fed in chunks: the prompt, and what a row had emitted when it
            was restarted.
        is_restarted: whether a failed step made the row start over.
        num_failures: steps with this row that failed since its last token.
        adapter: index of the row's LoRA adapter in engine.models.lora.AdapterSet; 0 is none.
    """

    request: Request
    route: Route
    seed: int
    text: TextSink
    matcher: Matcher | None = None
    ids: list[int] = field(default_factory=list)
    num_cached: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)
    pieces: list[Said] = field(default_factory=list)
    provenance: list[Provenance] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    target_calls: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None
    forced_ids: tuple[int, ...] = ()
    siblings: tuple[Sequence, ...] = ()
    cached_tokens: int = 0
    is_begun: bool = False
    num_fill: int = 0
    is_restarted: bool = False
    num_failures: int = 0
    adapter: int = 0

    def __post_init__(self) -> None:
        self.ids = list(self.request.prompt_ids)
        self.num_fill = self.num_prompt

    @property
    def num_prompt(self) -> int:
        """Length of the prompt in tokens."""
        return len(self.request.prompt_ids)

    @property
    def num_emitted(self) -> int:
        """Tokens emitted so far."""
        return len(self.ids) - self.num_prompt

    @property
    def emitted(self) -> list[int]:
        """The emitted ids."""
        return self.ids[self.num_prompt :]

    @property
    def remaining(self) -> int:
        """Tokens the budget still allows."""
        return self.request.max_tokens - self.num_emitted

    @property
    def forced_next(self) -> int:
        """The recorded token of the next position, while replaying."""
        return self.forced_ids[self.num_emitted]

    @property
    def is_prefilling(self) -> bool:
        """True until every token that is fed in chunks is in the cache."""
        return self.num_cached < self.num_fill

    @property
    def is_suspect(self) -> bool:
        """True when one more failed step ends the row; it is not computed beside others then."""
        return self.num_failures >= MAX_FAILURES - 1

    @property
    def is_finished(self) -> bool:
        """True once a finish reason is set."""
        return self.finish_reason is not None

    def restart(self) -> None:
        """Hold nothing in any slot; what was emitted is fed again behind the prompt."""
        self.num_cached = self.cached_tokens = 0
        self.num_fill = len(self.ids)
        self.is_begun, self.is_restarted = False, True

    def completion(self) -> Completion:
        """Return the frozen record of a finished row."""
        assert self.finish_reason is not None
        text = "".join(piece.text for piece in self.pieces)
        return Completion(
            request_id=self.request.request_id,
            prompt_tokens=self.num_prompt,
            token_ids=tuple(self.emitted),
            text=text,
            finish_reason=self.finish_reason,
            error=self.error,
            provenance=tuple(self.provenance),
            logprobs=tuple(self.logprobs),
            lane=self.route.lane,
            lane_reason=self.route.reason,
            seed=self.seed,
            cached_tokens=self.cached_tokens,
            target_calls=self.target_calls,
            drafted_by_position=tuple(self.drafts.drafted),
            accepted_by_position=tuple(self.drafts.accepted),
            illegal_drafts=self.drafts.illegal,
            conformance=self._conformance(text),
            schema_report=None if self.matcher is None else self.matcher.schema_report,
            reasoning="".join(piece.reasoning for piece in self.pieces),
            reasoning_tokens=min(self.text.reasoning_tokens, self.num_emitted),
            met_stop_text=self.text.stopped,
        )

    def _conformance(self, text: str) -> str | None:
        """Return what the grammar says of a finished text; one that fails enforced nothing."""
        if self.matcher is None:
            return None
        if self.finish_reason is not FinishReason.STOP:
            return "failed"
        try:
            return self.matcher.check_text(text)
        except Exception:  # noqa: BLE001  # the text stands, and nothing vouches for it
            return "failed"
