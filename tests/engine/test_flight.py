"""What a row chooses depends on its own scores, wherever in a step its positions lie."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.flight import CHOICES, Draft, Flight, Selector
from engine.plan import Slot, StepKind, StepPlan
from engine.reasoning import ReplyText
from engine.request import FinishReason, Request, SamplingParams
from engine.routing import Lane, Route
from engine.sequence import Sequence
from engine.testing import tiny_model

WIDTH = 8
VOCAB = tiny_model().vocab_size

samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 0, 3]),
    top_p=st.sampled_from([1.0, 1.0, 0.8]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.4]),
    min_tokens=st.sampled_from([0, 3, 6]),
    logprobs=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
)
rows_of = st.tuples(
    samplings,
    st.lists(st.integers(0, VOCAB - 1), max_size=5),  # emitted
    st.integers(1, 3),  # tokens fed
    st.lists(st.integers(0, VOCAB - 1), max_size=WIDTH - 3),  # drafts
    st.booleans(),  # whether they come with a law
)


def sequence_of(sampling: SamplingParams, emitted: list[int]) -> Sequence:
    """A row in the middle of its reply."""
    sequence = Sequence(
        request=Request(prompt_ids=(65, 66, 67), sampling=sampling),
        route=Route(Lane.BATCH, "", 0),
        seed=sampling.seed or 0,
        text=ReplyText(tiny_model().tokenizer.token_bytes),
    )
    sequence.ids += emitted
    return sequence


def slot_of(index: int, sequence: Sequence, num_fed: int) -> Slot:
    """A slot that feeds the row's last tokens."""
    return Slot(sequence, index, len(sequence.ids) - num_fed, tuple(sequence.ids[-num_fed:]))


def draft_of(ids: list[int], has_law: bool) -> Draft:
    """Drafts, and a law that depends on nothing but how many they are."""
    laws = mx.random.normal((len(ids), VOCAB), key=mx.random.key(len(ids)))
    return Draft(tuple(ids), (), laws if has_law else None)


def select(
    selector: Selector, slots: list[Slot], drafts: list[Draft], logits: mx.array
) -> tuple[list[list[int]], Flight]:
    """The choices of a step and the flight, read."""
    num_rows = logits.shape[0] // WIDTH
    plan = StepPlan(StepKind.DECODE, tuple(slots), slots[0].index, (0,) * num_rows)
    flight = Flight(plan, tuple(drafts), (), logits, WIDTH, num_rows * WIDTH, 0.0)
    tokens = selector.select(flight)
    assert tokens is not None
    chosen = flight.read(tokens)
    flight.take_logprobs()
    return chosen, flight


@settings(max_examples=60)
@given(
    rows=st.lists(st.one_of(st.none(), rows_of), min_size=1, max_size=5).filter(any),
    seed=st.integers(0, 1000),
    acceptance=st.sampled_from([*CHOICES]),
)
def test_rows_among_idle_slots_and_known_tokens_choose_as_alone(
    rows: list[tuple[SamplingParams, list[int], int, list[int], bool] | None],
    seed: int,
    acceptance: str,
) -> None:
    first = next(index for index, row in enumerate(rows) if row is not None)
    rows = rows[first:]
    logits = mx.random.normal((len(rows), WIDTH, VOCAB), key=mx.random.key(seed)) * 4
    live = [(index, *row) for index, row in enumerate(rows) if row is not None]
    sequences = [sequence_of(sampling, emitted) for _, sampling, emitted, *_ in live]
    slots = [
        slot_of(2 + index, sequence, num_fed)
        for sequence, (index, _, _, num_fed, *_) in zip(sequences, live, strict=True)
    ]
    drafts = [draft_of(ids, has_law) for *_, ids, has_law in live]
    eos_ids = tiny_model().eos_ids
    together, flight = select(
        Selector(VOCAB, eos_ids, 4, acceptance), slots, drafts, logits.reshape(-1, VOCAB)
    )
    for sequence, draft, row in zip(sequences, drafts, live, strict=True):
        index, sampling, _, num_fed, *_ = row
        start, count = num_fed - 1, len(draft.ids) + 1
        alone = mx.concatenate(
            [logits[index, start : start + count], mx.zeros((WIDTH - count, VOCAB))]
        )
        chosen, by_itself = select(
            Selector(VOCAB, eos_ids, 1, acceptance), [slot_of(0, sequence, 1)], [draft], alone
        )
        assert together[index][start : start + count] == chosen[0][:count]
        assert flight.logprobs.get(index) == by_itself.logprobs.get(0)
        assert len(flight.logprobs.get(index, ())) == (count if sampling.logprobs else 0)


def test_a_finished_row_leaves_nothing_behind_and_asks_for_nothing() -> None:
    selector = Selector(VOCAB, tiny_model().eos_ids, 2)
    row = sequence_of(SamplingParams(temperature=1, logprobs=True), [70])
    selector.leave(row)
    row.finish_reason = FinishReason.CANCELLED
    logits = mx.random.normal((WIDTH, VOCAB), key=mx.random.key(0))
    chosen, flight = select(selector, [slot_of(0, row, 1)], [Draft()], logits)
    assert flight.logprobs == {}
    assert chosen[0] == np.argmax(np.array(logits), axis=1).tolist()
    assert selector._params._rows == [None, None]
