"""The truth all lanes are compared with: an independent serial loop, kept apart on purpose.

It shares with the engine only the model's forward, the grammar's matcher and the definition of the
random noise; caches are mlx-lm's own, sampling is written again in numpy, and where reasoning ends
is found by searching all that was emitted. `follow` judges a
recorded row by teacher forcing: what would the oracle have chosen after each of its prefixes, and
how close was the call. `draws` says by the same means which law each token of a sampled row is due
to, whatever noise drew it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from engine.grammar.compile import GrammarCompiler
from engine.grammar.mask import MaskJob, fill_masks, words
from engine.grammar.state import GrammarState
from engine.models.load import LoadedModel
from engine.models.merge import merge_adapter
from engine.reasoning import ReasoningTags
from engine.request import Reasoning, Request, SamplingParams
from engine.sampler import draw_key
from engine.text import Said

Scores = NDArray[np.float32]

NEAR_TIE = 2e-4
"""Gap of the two best final scores under which float32 forwards of other widths may disagree;
measured differences reach 6e-5."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The oracle's token at one position.

    Args:
        gap: best final score minus the second best; infinite when only one token is possible.
        is_end: `token` is an end token and the row ends here.
    """

    token: int
    gap: float
    is_end: bool


@dataclass(frozen=True, slots=True)
class Divergence:
    """A position where a row's token is not the oracle's.

    Args:
        gap: how far the row's token stays behind the oracle's in final score.
    """

    position: int
    token: int
    expected: int
    gap: float

    @property
    def is_near_tie(self) -> bool:
        """True when rounding alone may explain it."""
        return self.gap < NEAR_TIE


@dataclass(frozen=True, slots=True)
class LawfulDraw:
    """What a sampled row drew at one position, and the law it is due to.

    Args:
        outcome: index of what was drawn.
        log_probs: log-probabilities of all outcomes after penalties, mask, temperature and
            truncation, [vocab] float64; -inf where impossible. All end tokens are one outcome,
            at the smallest of their ids: which of them ended a row is not told.
    """

    outcome: int
    log_probs: NDArray[np.float64]

    @property
    def is_possible(self) -> bool:
        """True when the law allows what was drawn."""
        return bool(np.isfinite(self.log_probs[self.outcome]))


class Oracle:
    """Serial decoding of one request at a time with a model's own cache.

    Args:
        adapters: name -> folder of the LoRA adapters a request may name; each is merged into a
            copy of the weights.
    """

    def __init__(
        self, model: LoadedModel, adapters: Mapping[str, str | Path] = MappingProxyType({})
    ) -> None:
        self._model = model
        merged = {name: merge_adapter(model, place) for name, place in adapters.items()}
        self._models = {"": model.model} | {name: each.model for name, each in merged.items()}
        self._grammars = GrammarCompiler.of(model)

    def generate(self, request: Request) -> list[int]:
        """Return the emitted ids, one token a forward; the request needs a seed to be sampled."""
        model = self._models[request.adapter]
        cache = make_prompt_cache(model)
        rule = self._rule(request)
        emitted: list[int] = []
        fed = list(request.prompt_ids)
        while len(emitted) < request.max_tokens:
            logits = model(mx.array([fed]), cache=cache)[0, -1]
            choice, _ = self._choose(_host(logits), request, emitted, rule)
            if choice.is_end:
                break
            emitted.append(choice.token)
            fed = [choice.token]
            if rule is not None:
                rule.advance(choice.token)
                if rule.is_finished:
                    break
        return emitted

    def read(self, request: Request, emitted: Sequence[int]) -> Said:
        """Return the text and the reasoning of a finished row; stop strings are not looked for."""
        tokenizer = self._model.tokenizer
        place = _behind_reasoning(request.reasoning, tokenizer.tags, emitted, ended=True)
        if place == 0:
            return Said(text=tokenizer.decode(emitted))
        inner = emitted[: None if place is None else place - len(tokenizer.tags.closing)]
        if request.reasoning is Reasoning.OPTIONAL:
            inner = inner[len(tokenizer.tags.opening) :]
        text = "" if place is None else tokenizer.decode(emitted[place:])
        return Said(text, tokenizer.decode(inner))

    def follow(self, request: Request, emitted: Sequence[int], ended: bool) -> list[Divergence]:
        """Return where a row departs from the oracle's choice after the row's own prefix.

        Args:
            emitted: the row's ids.
            ended: the row stopped by itself after them (finish reason "stop" without a stop
                string), so the oracle has to end there too.
        """
        found: list[Divergence] = []
        rule = self._rule(request)
        for position, scores in enumerate(self._forced_logits(request, emitted)):
            if rule is not None and rule.is_finished:
                break
            if position == len(emitted) and not ended:
                break
            choice, final = self._choose(scores, request, emitted[:position], rule)
            if position == len(emitted):
                if not choice.is_end:
                    end = max(self._model.eos_ids, key=lambda token: final[token])
                    gap = float(final[choice.token] - final[end])
                    found.append(Divergence(position, end, choice.token, gap))
                break
            token = emitted[position]
            if choice.is_end or token != choice.token:
                gap = float(final[choice.token] - final[token])
                found.append(Divergence(position, token, choice.token, gap))
                if not np.isfinite(gap):
                    break  # an illegal token: no prefix of the row goes on from here
            if rule is not None:
                rule.advance(token)
        return found

    def draws(self, request: Request, emitted: Sequence[int], ended: bool) -> Iterator[LawfulDraw]:
        """Yield every draw of a sampled row in its order, up to the first impossible one.

        Args:
            emitted, ended: as for `follow`; the end token is a draw, an end by the grammar is none.
        """
        assert request.sampling.temperature > 0, "a greedy row draws nothing"
        rule = self._rule(request)
        ends: list[int] = [] if request.ignore_eos else sorted(self._model.eos_ids)
        for position, logits in enumerate(self._forced_logits(request, emitted)):
            is_over = position == len(emitted) and not ended
            if is_over or (rule is not None and rule.is_finished):
                return
            scores = self._masked(logits, request, emitted[:position], rule)
            log_probs = _one_end(_log_softmax(_tempered(scores, request.sampling)), ends)
            token = ends[0] if position == len(emitted) else emitted[position]
            draw = LawfulDraw(token, log_probs)
            yield draw
            if not draw.is_possible or position == len(emitted):
                return
            if rule is not None:
                rule.advance(token)

    def _forced_logits(self, request: Request, emitted: Sequence[int]) -> Iterator[Scores]:
        """Yield the logits after the prompt and after each emitted token, from one forward."""
        ids = [*request.prompt_ids, *emitted]
        logits = self._models[request.adapter](mx.array([ids]))[0, len(request.prompt_ids) - 1 :]
        yield from _host(logits)

    def _rule(self, request: Request) -> _Rule | None:
        if request.constraint is None:
            return None
        state = self._grammars.compile(request.constraint).start()
        return _Rule(request.reasoning, self._model, state)

    def _masked(
        self, logits: Scores, request: Request, emitted: Sequence[int], rule: _Rule | None
    ) -> Scores:
        """Return the scores after penalties, bias and mask."""
        scores = _penalised(logits, request, emitted)
        if rule is not None:
            scores = np.where(rule.legal(len(scores)), scores, -np.inf).astype(np.float32)
        if len(emitted) < request.sampling.min_tokens and not request.ignore_eos:
            scores = _without(scores, self._model.eos_ids)
        return scores

    def _choose(
        self, logits: Scores, request: Request, emitted: Sequence[int], rule: _Rule | None
    ) -> tuple[Choice, Scores]:
        scores = self._masked(logits, request, emitted, rule)
        final = _final(scores, request.sampling, request.sampling.seed or 0, len(emitted))
        token = int(np.argmax(final))
        rest = np.delete(final, token).max()
        gap = float(final[token] - rest) if np.isfinite(rest) else float("inf")
        is_end = token in self._model.eos_ids and not request.ignore_eos
        return Choice(token, gap, is_end), final


class _Rule:
    """What a constrained row may emit next, read from all that it has emitted."""

    def __init__(self, reasoning: Reasoning, model: LoadedModel, state: GrammarState) -> None:
        self._reasoning, self._model, self._state = reasoning, model, state
        self._emitted: list[int] = []

    @property
    def is_finished(self) -> bool:
        """True when the grammar has begun and allows nothing more."""
        return self._place is not None and not self._may_open and self._state.is_finished

    def advance(self, token: int) -> None:
        """Take one more emitted token."""
        self._emitted.append(token)
        if self._place is not None:
            self._state.advance(self._emitted[self._place + self._state.num_tokens :])

    def legal(self, num_ids: int) -> NDArray[np.bool_]:
        """Return which of the ids 0 to `num_ids` - 1 may come next."""
        opening = list(self._model.tokenizer.tags.opening)
        allowed = np.zeros(num_ids, dtype=bool)
        if self._place is not None:
            bits = np.full((1, words(num_ids)), -1, dtype=np.int32)
            problems = fill_masks([MaskJob(self._state, 0, ())], bits)
            assert not problems, problems
            unpacked = np.unpackbits(bits.view(np.uint8), bitorder="little")
            allowed = unpacked[:num_ids].astype(bool)
        elif self._reasoning is Reasoning.OPTIONAL and len(self._emitted) < len(opening):
            allowed[opening[len(self._emitted)]] = True
        else:
            allowed[:] = True
            allowed[list(self._model.eos_ids)] = False
        if self._may_open:
            allowed[opening[0]] = True
        return allowed

    @property
    def _may_open(self) -> bool:
        return self._reasoning is Reasoning.OPTIONAL and not self._emitted

    @property
    def _place(self) -> int | None:
        tags = self._model.tokenizer.tags
        return _behind_reasoning(self._reasoning, tags, self._emitted, ended=False)


def _behind_reasoning(
    reasoning: Reasoning, tags: ReasoningTags, emitted: Sequence[int], ended: bool
) -> int | None:
    """Return where the text begins among the emitted ids, None while it has not.

    Args:
        ended: nothing follows, so that a tag that has only begun is none.
    """
    ids, opening, closing = list(emitted), list(tags.opening), list(tags.closing)
    if reasoning is Reasoning.NONE:
        return 0
    first = 0
    if reasoning is Reasoning.OPTIONAL:
        if ids[: len(opening)] != opening:
            is_begun = bool(ids) and ids == opening[: len(ids)]
            return None if is_begun and not ended else 0
        first = len(opening)
    ends = range(first + len(closing), len(ids) + 1)
    return next((end for end in ends if ids[end - len(closing) : end] == closing), None)


def _host(logits: mx.array) -> Scores:
    return np.array(logits.astype(mx.float32))


def _penalised(logits: Scores, request: Request, emitted: Sequence[int]) -> Scores:
    params = request.sampling
    scores = logits.copy()
    counts = Counter(emitted)
    if params.repetition_penalty != 1.0:
        for token in {*request.prompt_ids, *emitted}:
            factor = np.float32(params.repetition_penalty)
            scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    for token, count in counts.items():
        scores[token] -= np.float32(params.frequency_penalty * count + params.presence_penalty)
    for token, bias in params.logit_bias.items():
        scores[token] += np.float32(bias)
    return scores


def _without(scores: Scores, ends: Iterable[int]) -> Scores:
    """Return scores with the end tokens at -inf, unless the grammar allows nothing else."""
    rest = scores.copy()
    rest[list(ends)] = -np.inf
    return rest if np.isfinite(rest).any() else scores


def _final(scores: Scores, params: SamplingParams, seed: int, position: int) -> Scores:
    """Return temperature, truncation and noise applied: the token is its argmax."""
    if params.temperature == 0:
        return scores
    key = mx.array(np.array(draw_key(seed, position), dtype=np.uint32))
    noise: Scores = np.array(mx.random.gumbel(scores.shape, key=key))
    return _tempered(scores, params) + noise


def _tempered(scores: Scores, params: SamplingParams) -> Scores:
    """Return temperature and truncation applied."""
    scaled = scores / np.float32(params.divisor)
    order = np.argsort(-scaled, kind="stable")
    kept = order[: params.top_k or None]
    probs = np.exp(scaled[kept] - scaled[kept[0]])
    probs /= probs.sum()
    before = np.cumsum(probs) - probs
    count = max(1, int(np.sum(before < params.top_p))) if params.top_p < 1 else len(kept)
    count = min(count, max(1, int(np.sum(probs >= params.min_p * probs[0]))))
    truncated = np.full_like(scaled, -np.inf)
    truncated[kept[:count]] = scaled[kept[:count]]
    return truncated


def _log_softmax(scores: Scores) -> NDArray[np.float64]:
    wide = scores.astype(np.float64)
    peak = wide.max()
    normalised: NDArray[np.float64] = wide - (peak + np.log(np.exp(wide - peak).sum()))
    return normalised


def _one_end(log_probs: NDArray[np.float64], ends: Sequence[int]) -> NDArray[np.float64]:
    """Return a law in which the first end token stands for all of them."""
    joined = log_probs.copy()
    if ends:
        joined[list(ends)] = -np.inf
        joined[ends[0]] = np.logaddexp.reduce(log_probs[list(ends)])
    return joined
