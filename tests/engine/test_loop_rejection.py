"""The engine under `rejection` keeps the law of not speculating, in every lane, masked or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, product

import mlx.core as mx
import numpy as np
import pytest
from scipy.stats import chi2

import engine.propose
from engine import arrays, rejection
from engine.config import EngineConfig
from engine.costs import StepCosts, step_costs
from engine.draft.registry import build_drafter
from engine.draft.source import DraftSource, Proposal
from engine.draft.two_model import TwoModelDrafter
from engine.flight import Draft
from engine.loop import Engine
from engine.models.load import LoadedModel
from engine.propose import Offer, Proposer
from engine.rejection import Stream, stream_seeds
from engine.request import Constraint, ConstraintKind, FinishReason, Request, SamplingParams
from engine.sampler import draw_key
from engine.sequence import Sequence
from engine.testing import ScriptedDrafter, request_for, start_id, table_model, tiny_model

A, B, C, D = tiny_model().tokenizer.encode("abcd")
LETTERS = (A, B, C, D)
END = min(tiny_model().eos_ids)
START = start_id(tiny_model())
NEVER = -1e4
"""Score of a token that is never drawn."""

SERIAL = EngineConfig(num_draft_tokens=3, draft_budgets="fixed", acceptance="rejection")
BATCH = EngineConfig(
    max_rows=8,
    num_draft_tokens=3,
    draft_budgets="fixed",
    spec_batching="batched",
    acceptance="rejection",
)


def table(seed: int, *allowed: int, vocab_size: int = tiny_model().vocab_size) -> np.ndarray:
    """Random logits of the allowed tokens after each token."""
    rng = np.random.default_rng(seed)
    scores = np.full((vocab_size, vocab_size), NEVER, dtype=np.float32)
    scores[:, list(allowed)] = rng.normal(size=(vocab_size, len(allowed)))
    return scores


TARGET = table(1, *LETTERS)
FAR = table(2, *LETTERS)
ENDING = table(3, *LETTERS, END)
ENDING_FAR = table(4, *LETTERS, END)


def softmax(scores: np.ndarray) -> np.ndarray:
    """Probabilities along the last axis."""
    probs = np.exp(scores.astype(np.float64) - scores.max(-1, keepdims=True))
    return probs / probs.sum(-1, keepdims=True)


def table_drafter(scores: np.ndarray, count: int = 3) -> ScriptedDrafter:
    """Drafts `count` tokens from the law of a table with noise of its own, and tells the law."""

    def propose(row: Sequence) -> Proposal:
        (seed,) = stream_seeds(np.array([row.seed], dtype=np.uint64), Stream.DRAFT).tolist()
        ids = [row.ids[-1]]
        for offset in range(count):
            high, low = draw_key(seed, row.num_emitted + offset)
            uniform = ((high << 32 | low) >> 11) * 2.0**-53
            ids.append(int(np.searchsorted(np.cumsum(softmax(scores[ids[-1]])), uniform)))
        return Proposal(ids[1:], mx.array(scores[ids[:-1]]))

    return ScriptedDrafter(propose)


def model_drafter(scores: np.ndarray) -> TwoModelDrafter:
    """The real drafter on a table, which a request's temperature shapes like the target."""
    return TwoModelDrafter(table_model(scores), 512, "rejection")


def certain_drafter() -> ScriptedDrafter:
    """Drafts the same letters whatever came before."""
    return ScriptedDrafter(lambda row: [A, C, A])


DRAFTERS: dict[str, Callable[[], DraftSource]] = {
    "a law far away": lambda: table_drafter(FAR),
    "the target's law": lambda: table_drafter(TARGET),
    "one-hot": certain_drafter,
    "two_model": lambda: model_drafter(FAR),
    "two_model, padded": lambda: model_drafter(table(2, *LETTERS, vocab_size=300)),
    "two_model, short": lambda: model_drafter(table(2, *LETTERS, vocab_size=258)),
}


def p_value(observed: list[float], expected: list[float]) -> float:
    """Chi-square of cells, small ones taken together; 0 when an impossible one was seen."""
    seen, wanted = np.array(observed), np.array(expected)
    if seen[wanted == 0].any():
        return 0.0
    common = wanted >= 5
    seen = np.append(seen[common], seen[~common].sum())
    wanted = np.append(wanted[common], wanted[~common].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    return float(chi2.sf(((seen - wanted) ** 2 / wanted).sum(), len(seen) - 1))


def pair_p_value(rows: list[tuple[int, ...]], probs: np.ndarray) -> float:
    """Fit of two tokens after a third; no token takes part in two pairs."""
    triples = Counter(
        tuple(row[index : index + 3]) for row in rows for index in range(0, len(row) - 2, 2)
    )
    found = []
    for first in LETTERS:
        total = sum(count for triple, count in triples.items() if triple[0] == first)
        pairs = list(product(LETTERS, LETTERS))
        expected = [total * probs[first, x] * probs[x, y] for x, y in pairs]
        found.append(p_value([triples[first, x, y] for x, y in pairs], expected))
    return min(found)


def long_rows(
    config: EngineConfig,
    drafter: DraftSource,
    temperature: float,
    tokens: int,
    costs: StepCosts | None = None,
) -> list:
    """Rows that emit `tokens` together, nothing but letters."""
    engine = Engine(table_model(TARGET), config, drafter, costs=costs)
    count = config.max_rows
    requests = [
        request_for(
            engine.model, seed=40 + row, temperature=temperature, max_tokens=tokens // count
        )
        for row in range(count)
    ]
    return [completion.token_ids for completion in engine.generate(requests)]


@pytest.mark.parametrize("config", [SERIAL, BATCH], ids=["serial", "batch"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_pairs_of_emitted_tokens_have_the_targets_law(drafter: str, config: EngineConfig) -> None:
    rows = long_rows(config, DRAFTERS[drafter](), 1.0, 2_400)
    assert pair_p_value(rows, softmax(TARGET)) > 1e-4


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_the_law_is_the_tempered_one(temperature: float) -> None:
    rows = long_rows(BATCH, model_drafter(FAR), temperature, 2_400)
    assert pair_p_value(rows, softmax(TARGET / temperature)) > 1e-4


def accept_all(p: mx.array, q: mx.array, ids: mx.array, uniforms: mx.array) -> mx.array:
    """A broken rule."""
    return mx.ones(ids.shape) > 0


@pytest.mark.parametrize(
    ("name", "mutant"),
    [("accepts", accept_all), ("residual", lambda p, q: p)],
    ids=["always accepts", "replaces by the target's law"],
)
def test_a_broken_rule_fails_the_same_test(
    name: str, mutant: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejection, name, mutant)
    rows = long_rows(BATCH, table_drafter(FAR), 1.0, 2_400)
    assert pair_p_value(rows, softmax(TARGET)) < 1e-9


def texts(
    scores: np.ndarray, law_of: Callable[[tuple[int, ...]], np.ndarray], longest: int
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every row of at most `longest` tokens that ends by itself or there, and its probability."""
    open_rows: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    for _ in range(longest):
        longer = []
        for row, share in open_rows:
            probs = law_of(row)
            yield row, share * sum(probs[end] for end in tiny_model().eos_ids)
            longer += [((*row, token), share * probs[token]) for token in LETTERS]
        open_rows = longer
    yield from open_rows


def short_p_value(
    drafter: DraftSource, count: int, law_of: Callable[[tuple[int, ...]], np.ndarray], **settings
) -> float:
    """Fit of whole rows of at most three tokens to the law that `law_of` gives after a prefix."""
    engine = Engine(table_model(ENDING), BATCH, drafter)
    requests = [
        Request(
            prompt_ids=(START,),
            max_tokens=3,
            sampling=SamplingParams(temperature=1, seed=seed, **settings.get("sampling", {})),
            constraint=settings.get("constraint"),
        )
        for seed in range(count)
    ]
    seen = Counter(completion.token_ids for completion in engine.generate(requests))
    law = dict(texts(ENDING, law_of, 3))
    return p_value([seen[row] for row in law], [count * share for share in law.values()])


UP_TO_THREE = Constraint(kind=ConstraintKind.REGEX, value="[ab]{1,3}")


def masked_law(row: tuple[int, ...]) -> np.ndarray:
    """The law under UP_TO_THREE: a and b, and the end behind the first of them."""
    scores = ENDING[row[-1] if row else START].copy()
    legal = [A, B, *(tiny_model().eos_ids if row else ())]
    scores[[token for token in range(len(scores)) if token not in legal]] = -np.inf
    return softmax(scores)


@pytest.mark.parametrize("drafter", [table_drafter, model_drafter])
def test_short_masked_rows_have_the_masked_law_whatever_illegal_or_end_token_is_drafted(
    drafter: Callable[[np.ndarray], DraftSource],
) -> None:
    settings = {"constraint": UP_TO_THREE}
    assert short_p_value(drafter(ENDING_FAR), 1_000, masked_law, **settings) > 1e-4


def test_forgetting_the_draft_a_proposal_was_cut_at_fails_the_same_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut_short(ids: tuple[int, ...] = (), tail: object = (), scores: object = None) -> Draft:
        return Draft(ids, (), None if scores is None or not ids else scores[: len(ids)])

    monkeypatch.setattr(engine.propose, "Draft", cut_short)
    settings = {"constraint": UP_TO_THREE}
    assert short_p_value(table_drafter(ENDING_FAR), 1_000, masked_law, **settings) < 1e-4


def cut_before_an_a(self: Proposer, slots: object, offers: list[Offer]) -> int:
    """The worst way to cut a step: by looking at what would be cut."""
    return 0 if offers[0].tokens[:1] == (A,) else 3


def test_a_step_may_be_cut_by_looking_at_the_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Proposer, "_most", cut_before_an_a)
    rows = long_rows(SERIAL, table_drafter(FAR), 1.0, 2_400)
    assert pair_p_value(rows, softmax(TARGET)) > 1e-4
    take = Offer.take
    monkeypatch.setattr(Offer, "take", lambda *args: Draft(take(*args).ids, (), None))
    rows = long_rows(SERIAL, certain_drafter(), 1.0, 2_400)
    assert pair_p_value(rows, softmax(TARGET)) > 1e-4, "certain drafts may be forgotten"


def test_forgetting_the_draft_behind_such_a_cut_changes_the_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_tail(*args: object) -> Draft:
        draft = take(*args)
        return replace(draft, tail=(), scores=draft.scores[: len(draft.ids)])

    take = Offer.take
    monkeypatch.setattr(Proposer, "_most", cut_before_an_a)
    monkeypatch.setattr(Offer, "take", without_tail)
    rows = long_rows(SERIAL, table_drafter(FAR), 1.0, 2_400)
    assert pair_p_value(rows, softmax(TARGET)) < 1e-4


def test_adaptive_budgets_keep_the_law() -> None:
    costs = step_costs({(1, 1): 1.0, (1, 2): 1.1, (1, 4): 1.6, (8, 1): 2.0, (8, 4): 5.0})
    config = replace(BATCH, draft_budgets="adaptive")
    rows = long_rows(config, table_drafter(FAR), 1.0, 2_400, costs)
    assert pair_p_value(rows, softmax(TARGET)) > 1e-4


def test_penalties_count_the_drafts_before_a_position() -> None:
    def law_of(row: tuple[int, ...]) -> np.ndarray:
        scores = ENDING[row[-1] if row else START].copy()
        for token, count in Counter(row).items():
            scores[token] -= 1.5 + count
        return softmax(scores)

    settings = {"sampling": {"presence_penalty": 1.5, "frequency_penalty": 1.0}}
    assert short_p_value(table_drafter(ENDING_FAR), 1_000, law_of, **settings) > 1e-4


def test_drafted_end_tokens_are_judged_where_min_tokens_bars_them() -> None:
    def law_of(row: tuple[int, ...]) -> np.ndarray:
        scores = ENDING[row[-1] if row else START].copy()
        if len(row) < 2:
            scores[list(tiny_model().eos_ids)] = -np.inf
        return softmax(scores)

    settings = {"sampling": {"min_tokens": 2}}
    assert short_p_value(table_drafter(ENDING_FAR), 1_000, law_of, **settings) > 1e-4


def test_every_emitted_token_has_its_log_probability() -> None:
    engine = Engine(table_model(TARGET), BATCH, table_drafter(FAR))
    sampling = SamplingParams(temperature=1, seed=1, logprobs=True)
    completion = engine.generate([Request(prompt_ids=(START,), max_tokens=40, sampling=sampling)])[
        0
    ]
    path = [START, *completion.token_ids]
    expected = [np.log(softmax(TARGET[a])[b]) for a, b in pairwise(path)]
    found = [entry.logprob for entry in completion.logprobs]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_draft_that_leads_into_a_dead_end_is_as_likely_as_without_drafts() -> None:
    """Nothing can follow "ca": the grammar asks for an end token by name."""
    grammar = Constraint(kind=ConstraintKind.LARK, value='start: "c" ("b" | "a" <|im_end|> "b")')
    drafter = ScriptedDrafter(lambda row: table_drafter(ENDING_FAR, 1)._propose(row))
    engine = Engine(table_model(ENDING), BATCH, drafter)
    requests = [
        request_for(engine.model, constraint=grammar, temperature=1.0, seed=seed, max_tokens=4)
        for seed in range(300)
    ]
    completions = engine.generate(requests)
    dead = sum(completion.finish_reason is FinishReason.ERROR for completion in completions)
    assert {completion.token_ids for completion in completions} == {(C, A), (C, B)}
    share = softmax(ENDING[C, [A, B]])[0]
    assert p_value([dead, 300 - dead], [300 * share, 300 * (1 - share)]) > 1e-4
    assert all(c.token_ids == (C, A) for c in completions if c.error is not None)


def test_a_law_of_the_wrong_shape_ends_its_row_alone() -> None:
    def propose(row: Sequence) -> Proposal:
        is_wrong = row.request.sampling.seed == 1
        return Proposal([A, B], mx.zeros((2, 7 if is_wrong else tiny_model().vocab_size)))

    engine = Engine(table_model(TARGET), BATCH, ScriptedDrafter(propose))
    requests = [request_for(engine.model, temperature=1.0, seed=n, max_tokens=9) for n in range(3)]
    first, wrong, last = engine.generate(requests)
    assert wrong.finish_reason is FinishReason.ERROR
    assert "laws of shape (2, 7)" in (wrong.error or "")
    assert first.finish_reason is last.finish_reason is FinishReason.LENGTH


# -- identity ------------------------------------------------------------------------------------

SCHEMA = Constraint(
    kind=ConstraintKind.JSON_SCHEMA,
    value={"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 5},
)


def mixed_requests(model: LoadedModel, temperatures: tuple[float, ...]) -> list[Request]:
    """Six rows, every other one under a grammar."""
    return [
        request_for(
            model,
            f"row {index} of several",
            max_tokens=24,
            temperature=temperatures[index % len(temperatures)],
            seed=index,
            constraint=SCHEMA if index % 2 else None,
        )
        for index in range(6)
    ]


def engine_of(config: EngineConfig, **settings: object) -> Engine:
    """An engine on the tiny model with the drafter of its settings."""
    values = {name: getattr(config, name) for name in config.__dataclass_fields__}
    config = EngineConfig.from_mapping({**values, **settings})
    return Engine(tiny_model(), config, build_drafter(config, tiny_model()))


@pytest.mark.parametrize("config", [SERIAL, BATCH], ids=["serial", "batch"])
@pytest.mark.parametrize("drafter", ["ngram", "two_model"])
@pytest.mark.parametrize("budget", [1, 3, 15])
def test_greedy_rows_are_those_of_not_speculating(
    drafter: str, budget: int, config: EngineConfig
) -> None:
    requests = mixed_requests(tiny_model(), (0.0, 0.0, 1.1))
    plain = Engine(tiny_model(), EngineConfig()).generate(requests)
    ours = engine_of(
        config, drafter=drafter, num_draft_tokens=budget, draft_budgets="fixed"
    ).generate(requests)
    for request, left, right in zip(requests, plain, ours, strict=True):
        if request.sampling.temperature == 0:
            assert left.token_ids == right.token_ids
        if request.constraint is not None and right.finish_reason is FinishReason.STOP:
            assert right.conformance == "enforced"


@pytest.mark.parametrize("drafter", ["ngram", "two_model"])
def test_the_same_seed_and_the_same_drafts_give_the_same_ids_in_every_lane(drafter: str) -> None:
    requests = mixed_requests(tiny_model(), (0.9, 1.3))
    runs = [
        [c.token_ids for c in engine_of(config, drafter=drafter).generate(requests)]
        for config in (SERIAL, SERIAL, BATCH)
    ]
    assert runs[0] == runs[1] == runs[2]


def test_rows_without_drafts_are_those_of_not_speculating() -> None:
    requests = mixed_requests(tiny_model(), (0.9, 1.3))
    plain = Engine(tiny_model(), EngineConfig()).generate(requests)
    silent = ScriptedDrafter(lambda row: [])
    ours = Engine(tiny_model(), BATCH, silent).generate(requests)
    assert [c.token_ids for c in plain] == [c.token_ids for c in ours]


def test_a_drafter_equal_to_its_target_is_accepted_entirely() -> None:
    requests = [
        request_for(tiny_model(), temperature=temperature, seed=3, max_tokens=200, ignore_eos=True)
        for temperature in (0.0, 0.8, 1.2)
    ]
    for completion in engine_of(SERIAL, drafter="two_model").generate(requests):
        assert completion.accepted == completion.drafted


def test_a_law_equal_to_the_targets_is_accepted_with_noise_of_its_own_and_not_by_match() -> None:
    """The reason for the mode: a drafter that cannot share the target's noise."""

    def share(acceptance: str) -> float:
        config = EngineConfig(num_draft_tokens=3, draft_budgets="fixed", acceptance=acceptance)
        engine = Engine(table_model(TARGET), config, table_drafter(TARGET))
        request = request_for(engine.model, temperature=1.0, seed=5, max_tokens=300)
        completion = engine.generate([request])[0]
        return completion.accepted / completion.drafted

    assert share("rejection") == 1
    assert share("match") < 0.6


@pytest.mark.parametrize(("drafter", "waits"), [("ngram", 1), ("two_model", 2)])
def test_the_host_waits_no_more_often_than_under_match(drafter: str, waits: int) -> None:
    engine = engine_of(BATCH, drafter=drafter)
    for request in mixed_requests(tiny_model(), (0.9,)):
        engine.submit(request)
    while engine.has_work:
        before = arrays.SYNCS.count
        engine.step()
        assert arrays.SYNCS.count - before <= waits
