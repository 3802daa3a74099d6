"""Reasoning over HTTP: in its own member, whole and streamed; a constraint is on the content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from engine.config import EngineConfig
from engine.testing import tiny_model
from tests.engine.server.live import CHAT, Live, chat_body, serving, tiny_engine
from tests.engine.server.reply import ask

ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 5}},
    "required": ["answer"],
    "additionalProperties": False,
}
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "out", "strict": True, "schema": ANSWER},
}
CLOSING = tiny_model().tokenizer.think_end_ids[0]
CLOSES = {"logit_bias": {str(CLOSING): 7}}
NEVER_CLOSES = {"logit_bias": {str(CLOSING): -100}}
THINKS = {"chat_template_kwargs": {"enable_thinking": True}}
AT_ONCE = {"chat_template_kwargs": {"enable_thinking": False}}
LANES = {
    "grammar": EngineConfig(),
    "batch+grammar": EngineConfig(max_rows=4),
    "spec+grammar": EngineConfig(num_draft_tokens=4, draft_budgets="fixed"),
}


@pytest.fixture(scope="module", params=LANES)
def lane(request: pytest.FixtureRequest) -> Iterator[Live]:
    with serving(lambda: tiny_engine(LANES[request.param])) as live:
        yield live


def message_of(live: Live, *, is_stream: bool, **fields: Any) -> dict[str, Any]:
    """The message of a reply, whole or as its stream adds up, with its finish reason and usage."""
    reply = ask(live, CHAT, chat_body(**fields), stream=is_stream)
    said = reply.said
    (reason,) = said.reasons
    return {
        "content": said.text,
        "reasoning_content": said.reasoning,
        "reason": reason,
        "usage": reply.usage,
    }


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_schema_behind_reasoning_is_met_in_the_content(
    lane: Live, is_stream: bool, temperature: float
) -> None:
    asked: dict[str, Any] = {
        "content": "17 - 6 + 3*2 = ?",
        "max_tokens": 256,
        "response_format": FORMAT,
        "temperature": temperature,
        "seed": 3,
        **THINKS,
    }
    said = message_of(lane, is_stream=is_stream, **asked, **CLOSES)
    Draft202012Validator(ANSWER).validate(json.loads(said["content"]))
    assert (said["reason"], said["usage"]["conformance"]) == ("stop", "enforced")
    assert said["reasoning_content"]
    details = said["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < said["usage"]["completion_tokens"]
    # thinking that takes the whole budget
    for most in (20, 256):
        cut = message_of(lane, is_stream=is_stream, **{**asked, "max_tokens": most}, **NEVER_CLOSES)
        assert (cut["reason"], cut["content"]) == ("length", "")
        assert (cut["usage"]["conformance"], bool(cut["reasoning_content"])) == ("failed", True)
        assert cut["usage"]["completion_tokens_details"] == {"reasoning_tokens": most}
    # no thinking
    plain = message_of(lane, is_stream=is_stream, **{**asked, **AT_ONCE})
    Draft202012Validator(ANSWER).validate(json.loads(plain["content"]))
    assert plain.get("reasoning_content") is None
    assert plain["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_a_stream_says_what_the_whole_reply_says(live: Live) -> None:
    for fields in (CLOSES, NEVER_CLOSES, AT_ONCE, CLOSES | {"response_format": FORMAT}):
        asked: dict[str, Any] = {"max_tokens": 60, **fields}
        whole, streamed = (message_of(live, is_stream=way, **asked) for way in (False, True))
        for name in ("content", "reasoning_content", "reason"):
            assert streamed.get(name) == whole.get(name)


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_reasoning_is_left_out_where_it_is_not_wanted(live: Live, is_stream: bool) -> None:
    asked: dict[str, Any] = {"max_tokens": 60, "is_stream": is_stream, **CLOSES}
    told = message_of(live, include_reasoning=True, **asked)
    untold = message_of(live, include_reasoning=False, **asked)
    assert told.pop("reasoning_content")
    assert untold.pop("reasoning_content") is None
    assert untold["usage"].pop("speculation")
    assert told["usage"].pop("speculation")
    for usage in (told["usage"], untold["usage"]):
        usage.pop("prompt_tokens_details")
    assert untold == told


@pytest.mark.parametrize(
    "content",
    ["</think>", "<think></think>{}", "a</think>\n\n", "<think>", "</think><|im_end|>"],
)
def test_tags_that_a_person_writes_are_text(live: Live, content: str) -> None:
    """The template's own block stays open, and the one it closes stays closed."""
    asked: dict[str, Any] = {"content": content, "max_tokens": 20, "is_stream": False}
    said = message_of(live, **asked, **NEVER_CLOSES)
    assert (said["content"], bool(said["reasoning_content"])) == ("", True)
    plain = message_of(live, **asked, **AT_ONCE)
    assert plain.get("reasoning_content") is None
    assert plain["content"]


def test_an_unclosed_block_of_an_earlier_turn_is_not_open(live: Live) -> None:
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>never closed"},
        {"role": "user", "content": "b"},
    ]
    body = chat_body(max_tokens=12, **AT_ONCE) | {"messages": turns}
    message = live.client.post(CHAT, json=body).json()["choices"][0]["message"]
    assert "reasoning_content" not in message
    assert message["content"]


def test_a_completion_is_all_text(live: Live) -> None:
    answer = live.complete("<think>", max_tokens=30, **CLOSES).json()
    assert "reasoning_content" not in answer["choices"][0]
    assert answer["choices"][0]["text"]
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_stop_texts_are_looked_for_behind_the_reasoning(live: Live) -> None:
    free = message_of(live, is_stream=False, max_tokens=60, **CLOSES)
    inner = next(char for char in free["content"] if char in free["reasoning_content"])
    for is_stream in (False, True):
        said = message_of(live, is_stream=is_stream, max_tokens=60, stop=inner, **CLOSES)
        assert said["reasoning_content"] == free["reasoning_content"]
        assert (said["content"], said["reason"]) == (
            free["content"][: free["content"].index(inner)],
            "stop",
        )


# -- structures in free text -----------------------------------------------------------------------

TAG = {
    "structures": [{"begin": "<call>", "schema": ANSWER, "end": "</call>"}],
    "triggers": ["<call>"],
    "text": False,
    "at_least_one": True,
    "stop_after_first": True,
}
SPELLINGS: dict[str, dict[str, Any]] = {
    "response_format": {"response_format": {"type": "structural_tag", **TAG}},
    "structured_outputs": {"structured_outputs": {"structural_tag": TAG}},
    "its text": {"structured_outputs": {"structural_tag": json.dumps(TAG)}},
}


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_structures_are_enforced_in_every_spelling(
    live: Live, spelling: str, is_stream: bool
) -> None:
    for fields in (AT_ONCE, CLOSES):
        said = message_of(
            live, is_stream=is_stream, max_tokens=200, **SPELLINGS[spelling], **fields
        )
        content = said["content"]
        assert content.startswith("<call>")
        assert content.endswith("</call>")
        document = json.loads(content.removeprefix("<call>").removesuffix("</call>"))
        Draft202012Validator(ANSWER).validate(document)
        assert (said["reason"], said["usage"]["conformance"]) == ("stop", "enforced")
        assert bool(said.get("reasoning_content")) == (fields is CLOSES)


def test_a_response_takes_structures_too(live: Live) -> None:
    answer = live.respond(
        max_output_tokens=80, text={"format": {"type": "structural_tag", **TAG}}, **AT_ONCE
    ).json()
    (item,) = answer["output"]
    assert item["content"][0]["text"].startswith('<call>{"answer":')


def test_free_text_with_structures_goes_over_completions(live: Live) -> None:
    tag = {**TAG, "text": True, "at_least_one": False}
    answer = live.complete("hi", structured_outputs={"structural_tag": tag}).json()
    assert answer["choices"][0]["text"]


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"response_format": {"type": "structural_tag"}}, "response_format", "structures"),
        (
            {"response_format": {"type": "structural_tag", "structures": [], "triggers": []}},
            "response_format",
            "at least one",
        ),
        (
            {"response_format": {"type": "structural_tag", **TAG, "tags": []}},
            "response_format.tags",
            "not known",
        ),
        (
            {"response_format": {"type": "json_object", "triggers": []}},
            "response_format.triggers",
            "not known",
        ),
        (
            {"structured_outputs": {"structural_tag": "{"}},
            "structured_outputs.structural_tag",
            "no structural tag",
        ),
        (
            {"structured_outputs": {"structural_tag": []}},
            "structured_outputs.structural_tag",
            "an object",
        ),
        (
            {
                "structured_outputs": {
                    "structural_tag": {**TAG, "structures": [{"begin": "<call>", "schema": 3}]}
                }
            },
            "structured_outputs",
            "/structures/0/schema",
        ),
        (
            {"response_format": FORMAT, "structured_outputs": {"structural_tag": TAG}},
            None,
            "exclude each other",
        ),
    ],
)
def test_structures_that_cannot_be_taken_are_refused_by_name(
    live: Live, fields: dict[str, Any], param: str | None, word: str
) -> None:
    for is_stream in (False, True):
        answer = live.chat(stream=is_stream, **fields)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert word in error["message"]
        assert error["param"] == param
