"""What goes into the engine and what comes out: frozen values, no behaviour beyond validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from engine.config import MAX_DRAFT_TOKENS, check_settings, setting
from engine.errors import RequestError

MAX_LOGIT_BIAS = 1e30
"""Largest bias either way: float32 holds it, and its sum with a score over any temperature."""

MAX_TOP_LOGPROBS = 20
"""Most alternatives reported for a token."""

MIN_DIVISOR = 1e-6
"""Sampled scores are divided by this at least; colder than that is greedy but for exact ties."""


class FinishReason(StrEnum):
    """Why a row ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Provenance(StrEnum):
    """How a token came to be emitted."""

    SAMPLED = "sampled"
    ACCEPTED = "accepted"
    FORCED = "forced"
    ECHO = "echo"
    CORRECTED = "corrected"


class ConstraintKind(StrEnum):
    """The languages in which a constraint can be written."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    CHOICE = "choice"
    REGEX = "regex"
    LARK = "lark"
    STRUCTURAL_TAG = "structural_tag"


class Reasoning(StrEnum):
    """Where a reply begins, seen from the model's reasoning blocks."""

    NONE = "none"
    """The whole reply is text."""

    OPEN = "open"
    """The prompt ends inside a block: the reply goes on in it."""

    OPTIONAL = "optional"
    """The reply may begin with a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What a row's text must match, from its first token to its last; reasoning is no part of it.

    Args:
        kind: how `value` is to be read.
        value: a JSON Schema (dict or bool) for JSON_SCHEMA, None for JSON_OBJECT, a sequence of
            strings for CHOICE, a regular expression for REGEX, a grammar text for LARK
            (llguidance's Lark dialect, EBNF), an object of structures in free text for
            STRUCTURAL_TAG (engine.grammar.structures).
        on_unsupported: "refuse" rejects a schema with an assertion the mask cannot enforce;
            "validate" masks what it can and checks the finished text.
    """

    kind: ConstraintKind
    value: Any = None
    on_unsupported: str = setting(
        "refuse", "what to do with unenforceable assertions", choices=("refuse", "validate")
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.kind not in list(ConstraintKind):
            kinds = ", ".join(ConstraintKind)
            raise RequestError(f"constraint is of kind {self.kind!r}; it must be one of {kinds}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen.

    The order is fixed: penalties and logit bias -> grammar mask -> temperature -> top-k,
    top-p, min-p -> draw. The draw at emitted position n depends on (seed, n) alone.

    Log-probabilities are the log-softmax of the target's raw logits, in float32: before penalties,
    bias, mask and temperature. They say what the model thinks, not what the sampler was allowed.

    `min_tokens` bars end tokens, not stop texts, and nothing where end tokens end nothing
    (`Request.ignore_eos`). A grammar that leaves nothing but the end has its way before that.
    """

    temperature: float = setting(0.0, "0 takes the most likely token", low=0, high=100)
    top_k: int = setting(0, "keep the k most likely tokens; 0 keeps all", low=0, high=2**31)
    top_p: float = setting(1.0, "keep the smallest set with this probability", low=0, high=1)
    min_p: float = setting(0.0, "drop tokens below this share of the best", low=0, high=1)
    repetition_penalty: float = setting(1.0, "divides scores of seen tokens", low=0.01, high=100)
    presence_penalty: float = setting(
        0.0, "subtracted once from emitted tokens", low=-100, high=100
    )
    frequency_penalty: float = setting(0.0, "subtracted per emission", low=-100, high=100)
    logit_bias: Mapping[int, float] = field(
        default_factory=dict, metadata={"help": "token id -> value added to its score"}
    )
    seed: int | None = setting(None, "None draws one at random", low=0, high=2**64 - 1)
    logprobs: bool = setting(False, "report the log-probability of every emitted token")
    top_logprobs: int = setting(
        0, "likeliest tokens reported beside each", low=0, high=MAX_TOP_LOGPROBS
    )
    min_tokens: int = setting(0, "tokens emitted before an end token is legal", low=0, high=2**31)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.top_logprobs and not self.logprobs:
            raise RequestError(
                f"top_logprobs is {self.top_logprobs} and logprobs is off; set logprobs too"
            )
        biases: object = self.logit_bias
        if not isinstance(biases, Mapping):
            raise RequestError(f"logit_bias is {biases!r}; give a mapping of token id to value")
        for token, bias in biases.items():
            is_token = isinstance(token, int) and not isinstance(token, bool) and token >= 0
            is_bias = isinstance(bias, int | float) and not isinstance(bias, bool)
            if not is_token or not is_bias or not abs(bias) <= MAX_LOGIT_BIAS:
                raise RequestError(
                    f"logit_bias {token!r}: {bias!r} is not a token id with a value within "
                    f"-{MAX_LOGIT_BIAS:g} and {MAX_LOGIT_BIAS:g}"
                )

    @property
    def divisor(self) -> float:
        """What the scores are divided by; 1 for a greedy row."""
        return max(self.temperature, MIN_DIVISOR) if self.temperature else 1.0

    @property
    def is_plain(self) -> bool:
        """True when scores depend on no token of the row: nothing but logits decides."""
        return not (
            self.logit_bias
            or self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One completion to be produced.

    Args:
        prompt_ids: at least one token id.
        max_tokens: most tokens emitted; the end token is neither emitted nor counted.
        stop: texts that end the row; matched on text, also across tokens, and never emitted.
        reasoning: whether the reply begins in a reasoning block, or may; what is in the block and
            its tags are no part of the text, and neither a constraint nor `stop` sees them.
        num_draft_tokens: overrides the engine's draft budget, 0 switches speculation off.
        lane: asks for a lane: "serial" decodes alone, "batch" beside others. None leaves it to the
            composition matrix (engine.routing).
        spec_batching: overrides the engine's setting of that name.
        adapter: name of one of the engine's LoRA adapters; empty decodes on the model itself.
        request_id: chosen by the engine when empty.
        cache_salt: requests of different salts never share cached prefixes.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int = setting(128, "most tokens emitted", low=1, high=2**31)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    constraint: Constraint | None = None
    stop: tuple[str, ...] = ()
    reasoning: Reasoning = Reasoning.NONE
    ignore_eos: bool = False
    num_draft_tokens: int | None = setting(
        None, "draft budget of this row", low=0, high=MAX_DRAFT_TOKENS
    )
    lane: str | None = setting(None, "lane this row must take", choices=("serial", "batch"))
    spec_batching: str | None = setting(
        None, "where this row runs when it drafts", choices=("serial", "batched")
    )
    adapter: str = ""
    request_id: str = ""
    cache_salt: str = ""

    def __post_init__(self) -> None:
        check_settings(self)
        prompt_ids: object = self.prompt_ids
        if not isinstance(prompt_ids, tuple | list):
            kind = type(prompt_ids).__name__
            raise RequestError(f"prompt_ids is a {kind}; give a tuple of token ids")
        object.__setattr__(self, "prompt_ids", tuple(prompt_ids))
        _check_type("sampling", self.sampling, SamplingParams)
        if self.constraint is not None:
            _check_type("constraint", self.constraint, Constraint)
        if self.reasoning not in list(Reasoning):
            words = ", ".join(Reasoning)
            raise RequestError(f"reasoning is {self.reasoning!r}; it must be one of {words}")
        if not self.prompt_ids:
            raise RequestError("prompt_ids is empty; give at least one token")
        stop: object = self.stop
        if isinstance(stop, str):
            raise RequestError(f"stop is the text {stop!r}; give a tuple of texts")
        if any(not text for text in self.stop):
            raise RequestError("stop holds an empty string; remove it")
        if self.constraint is not None and self.ignore_eos:
            raise RequestError("ignore_eos and a constraint exclude each other; drop one")
        if self.sampling.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.sampling.min_tokens} and max_tokens {self.max_tokens}; "
                "min_tokens can be as large, not larger"
            )


def _check_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise RequestError(f"{name} is a {type(value).__name__}; give a {kind.__name__}")


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely the target found a token, and which ones it found likeliest.

    Args:
        logprob: natural logarithm; see SamplingParams for what it is taken of.
        top: (token id, logprob) of the `top_logprobs` likeliest tokens, likeliest first, lower ids
            first among equals; then of `token_id` when it is none of them. Empty when 0 are asked.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One emitted token, or the end of a row.

    Args:
        token_id: None on an event that only ends the row.
        text: text that became certain with this token; may be empty, may hold several characters.
        reasoning: reasoning that did, which is no part of the text.
        reasoning_tokens: tokens of the row that are known by now to be reasoning, tags included;
            they are its first ones.
        position: 0-based index among the row's emitted tokens.
        finish_reason: set on the last event of a row, and only there.
        error: one line, set when finish_reason is ERROR.
        logprobs: set on every token of a row that asks for them.
    """

    request_id: str
    token_id: int | None
    text: str
    position: int
    provenance: Provenance = Provenance.SAMPLED
    finish_reason: FinishReason | None = None
    error: str | None = None
    logprobs: TokenLogprobs | None = None
    reasoning: str = ""
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A finished row with its bookkeeping.

    Args:
        token_ids: emitted ids, end token excluded.
        text: without the reasoning, which is `reasoning`; tags are in neither.
        met_stop_text: whether one of the request's `stop` texts ended it.
        reasoning_tokens: emitted tokens up to and with the tag that closes the reasoning.
        logprobs: one entry for each of `token_ids`; empty unless the row asked.
        lane: "serial" or "batch", the lane taken; `lane_reason` says why.
        cached_tokens: prompt tokens taken from the prefix cache instead of computed.
        target_calls: decode forwards of the target this row took part in (prefill excluded).
        drafted_by_position, accepted_by_position: counts per draft position, 0 = first draft.
        illegal_drafts: drafts cut because the grammar forbids them; part of `drafted`.
        conformance: "enforced" | "checked" | "failed", None without a constraint.
        schema_report: the account of the constraint (engine.grammar.report) as JSON, None without.
    """

    request_id: str
    prompt_tokens: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    error: str | None = None
    provenance: tuple[Provenance, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    lane: str = "serial"
    lane_reason: str = ""
    seed: int = 0
    cached_tokens: int = 0
    target_calls: int = 0
    drafted_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()
    illegal_drafts: int = 0
    conformance: str | None = None
    schema_report: Mapping[str, Any] | None = None
    reasoning: str = ""
    reasoning_tokens: int = 0
    met_stop_text: bool = False

    @property
    def drafted(self) -> int:
        """Tokens proposed, legal or not."""
        return sum(self.drafted_by_position)

    @property
    def accepted(self) -> int:
        """Drafts the target agreed with; the token after them is not one."""
        return sum(self.accepted_by_position)
