"""From a request to the row that serves it: checked, routed, its constraint compiled.

Nothing here knows of live rows, so it runs in the caller's thread without the engine's lock.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence as Many
from dataclasses import replace

from engine.config import EngineConfig
from engine.errors import ContextLengthError, RequestError
from engine.grammar.compile import CompiledGrammar, CompileStats, GrammarCompiler
from engine.models.load import LoadedModel
from engine.models.lora import AdapterSet
from engine.reasoning import ReplyText
from engine.request import Reasoning, Request
from engine.routing import route
from engine.sequence import Matcher, Sequence
from engine.switches import check_adapter


class Intake:
    """Makes rows of requests.

    Args:
        adapters: LoRA adapters that requests may name.
        shares_prompts: whether a slot can be copied at any length (SlotCache.is_rewindable): the
            last prompt token of a copy is fed again, for its scores.
    """

    def __init__(
        self, model: LoadedModel, config: EngineConfig, adapters: AdapterSet, shares_prompts: bool
    ) -> None:
        self._model = model
        self._config = config
        self._adapters = adapters
        self._shares_prompts = shares_prompts
        self._grammars = GrammarCompiler.of(model)

    def row(self, request: Request, forced_ids: tuple[int, ...] = ()) -> Sequence:
        """Check a request and make its row.

        Args:
            forced_ids: tokens to emit whatever is sampled.

        Raises:
            RequestError: a value cannot be served, or the prompt fills the model's context;
                SchemaError when it is the constraint.
        """
        check_adapter(request.adapter)
        self.check_ids((*request.prompt_ids, *request.sampling.logit_bias))
        if request.reasoning is not Reasoning.NONE and not self._model.tokenizer.has_thinking:
            raise RequestError(
                f"reasoning is {request.reasoning} and the model has no tags around its reasoning; "
                "leave it out"
            )
        most = min(request.max_tokens, self._context_left(request))
        sampling = replace(
            request.sampling,
            min_tokens=min(request.sampling.min_tokens, most),
            logit_bias=dict(request.sampling.logit_bias),  # the caller may change its own
        )
        request_id = request.request_id or _new_id()
        request = replace(request, request_id=request_id, max_tokens=most, sampling=sampling)
        constraint = request.constraint
        grammar = self._grammars.compile(constraint) if constraint is not None else None
        seed = request.sampling.seed
        tokenizer = self._model.tokenizer
        return Sequence(
            request=request,
            route=route(self._config, request),
            seed=secrets.randbits(63) if seed is None else seed,
            text=ReplyText(tokenizer.token_bytes, request.stop, tokenizer.tags, request.reasoning),
            matcher=None if grammar is None else self._matcher(grammar, request),
            forced_ids=forced_ids,
            adapter=self._adapters.index(request.adapter),
        )

    def _matcher(self, grammar: CompiledGrammar, request: Request) -> Matcher:
        if request.reasoning is Reasoning.NONE:
            return grammar.start()
        return grammar.start_behind(self._model.tokenizer.tags, request.reasoning)

    def copies(self, request: Request, num_rows: int) -> list[Sequence]:
        """Make rows of one prompt that draw with consecutive seeds; raises as `row`."""
        if num_rows < 1:
            raise RequestError(f"n is {num_rows}; it must be at least 1")
        seed = request.sampling.seed
        seed = secrets.randbits(62) if seed is None else seed
        base = request.request_id or _new_id()
        rows = [
            self.row(
                replace(
                    request,
                    request_id=f"{base}/{index}",
                    sampling=replace(request.sampling, seed=(seed + index) % 2**64),
                )
            )
            for index in range(num_rows)
        ]
        if self._shares_prompts and num_rows > 1:
            for row in rows:
                row.siblings = tuple(rows)
        return rows

    @property
    def grammar_stats(self) -> CompileStats:
        """What compiling constraints has taken since the engine was opened."""
        return self._grammars.stats()

    def check_ids(self, ids: Many[int]) -> None:
        """Raise RequestError when one of `ids` is no token."""
        vocab_size = self._model.vocab_size
        for token in ids:
            is_whole = isinstance(token, int) and not isinstance(token, bool)
            if not is_whole or not 0 <= token < vocab_size:
                raise RequestError(
                    f"token id {token!r} is no whole number in the vocabulary 0..{vocab_size - 1}"
                )

    def _context_left(self, request: Request) -> int:
        """Return how many tokens the model's context leaves behind the prompt."""
        context = self._model.context_length
        if context is None:
            return request.max_tokens
        room = context - len(request.prompt_ids)
        if room < 1:
            raise ContextLengthError(
                f"the prompt has {len(request.prompt_ids)} tokens and the model's context is "
                f"{context}; shorten the prompt"
            )
        return room


def _new_id() -> str:
    return f"req-{secrets.token_hex(8)}"
