"""However a reply is cut into steps, what is said of it is the same, token for token."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.models.tool_template import CallFormat
from engine.request import Completion, FinishReason, Request, TokenEvent, TokenLogprobs
from engine.server.calls import CallSyntax
from engine.server.forms import Piece
from engine.server.output_items import OutputItems
from engine.server.protocol import Call
from engine.server.standing import Endpoint
from engine.server.token_texts import TokenTexts
from engine.server.voices import Voice
from engine.testing import tiny_model

FORM = CallFormat()
SYNTAX = CallSyntax(trigger=FORM.trigger, names={FORM.begin("f"): "f"}, end=FORM.end)
CALL = Call(
    endpoint=Endpoint.RESPONSES,
    model="tiny",
    requests=(Request(prompt_ids=(1,)),),
    num_choices=1,
    is_stream=True,
    include_usage=False,
    return_token_ids=True,
    include_reasoning=True,
    top_logprobs=0,
    constraint_field=None,
    tool_use=None,
    call_syntax=SYNTAX,
    asked={},
)
RECORD = Completion(
    request_id="r", prompt_tokens=1, token_ids=(), text="", finish_reason=FinishReason.STOP
)
ATOMS = ["a", "bc", " ", "\n", "<", "<tool", "é", FORM.written("f", '{"a": "}"}'), ""]


@st.composite
def replies(draw: Any) -> list[TokenEvent]:
    """Events of one reply: reasoning, the tag, and text in tokens of any length."""
    thoughts = draw(st.lists(st.sampled_from(["hm", "", "é"]), max_size=4))
    text = "".join(draw(st.lists(st.sampled_from(ATOMS), max_size=6)))
    places = draw(st.lists(st.integers(0, len(text)), max_size=8))
    bounds = [0, *sorted(places), len(text)]
    texts = [text[start:end] for start, end in pairwise(bounds)]
    said = [(thought, "") for thought in [*thoughts, ""]] if thoughts else []
    tag = len(said)
    said += [("", part) for part in texts]
    return [
        TokenEvent(
            "r",
            position,
            part,
            position,
            logprobs=TokenLogprobs(position, -1.0),
            reasoning=thought,
            reasoning_tokens=min(position + 1, tag),
        )
        for position, (thought, part) in enumerate(said)
    ]


def heard(steps: list[list[TokenEvent]]) -> list[Piece]:
    voice = Voice(0, CALL)
    pieces: list[Piece] = []
    for index, step in enumerate(steps):
        pieces += voice.hear(step, RECORD if index == len(steps) - 1 else None)
    return pieces


def items_of(pieces: list[Piece]) -> tuple[list[Any], list[int]]:
    """The output, without what no two replies share, and the ids of its deltas."""
    output = OutputItems("r", TokenTexts(tiny_model().tokenizer, 0))
    told = [event for piece in pieces for event in output.said(piece)]
    told += output.ending(is_cut=False)
    documents = [{**item, "call_id": None} for item in output.documents()]
    return documents, [token for event in told for token in event.get("token_ids", [])]


@given(replies(), st.data())
def test_the_cut_into_steps_changes_nothing(events: list[TokenEvent], data: Any) -> None:
    marks = data.draw(st.lists(st.booleans(), min_size=len(events), max_size=len(events)))
    steps: list[list[TokenEvent]] = [[]]
    for event, is_next in zip(events, marks, strict=True):
        if is_next:
            steps.append([])
        steps[-1].append(event)
    whole, parts = items_of(heard([events])), items_of(heard(steps))
    assert parts == whole
    documents, ids = whole
    assert ids == [event.token_id for event in events]
    thought = "".join(event.reasoning for event in events)
    kinds = [item["type"] for item in documents]
    assert kinds.count("reasoning") == bool(thought)
    assert not thought or documents[0]["content"][0]["text"] == thought
    text = "".join(event.text for event in events)
    assert kinds.count("function_call") == text.count(FORM.begin("f"))


@given(replies())
def test_every_token_of_the_text_is_told_once_where_nothing_is_called(
    events: list[TokenEvent],
) -> None:
    events = [replace(event, text=event.text.replace("<", "")) for event in events]
    documents, _ = items_of(heard([[event] for event in events]))
    (message,) = [item for item in documents if item["type"] == "message"]
    (part,) = message["content"]
    assert part["text"] == "".join(event.text for event in events)
    num_reasoning = events[-1].reasoning_tokens
    assert len(part["logprobs"]) == len(events) - num_reasoning


@given(replies())
def test_a_piece_says_one_thing(events: list[TokenEvent]) -> None:
    for piece in heard([events]):
        assert bool(piece.text) + bool(piece.calls) + piece.is_reasoning <= 1
