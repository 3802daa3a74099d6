"""What a row wrote arrives whole: in every lane, streamed or not, under a grammar or not."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from tests.engine.server.cases.echo import BEGIN, ENDS, SPLIT, pieces, prompt_ids
from tests.engine.server.live import CHAT, COMPLETIONS, Live, chat_body, held_after
from tests.engine.server.reply import (
    LANES,
    MODES,
    Said,
    ask_chat,
    ask_ids,
    schema_format,
)
from tests.waiting import WAIT_S, wait_for

in_every_lane = pytest.mark.parametrize("lane", LANES)
in_both_modes = pytest.mark.parametrize("mode", MODES)


def said(live: Live, content: str, lane: str, mode: str, **fields: Any) -> tuple[Said, int]:
    """The one choice, and how many tokens it is said to have taken."""
    reply = ask_chat(live, content, stream=MODES[mode], fm=LANES[lane], **fields)
    assert reply.usage["lane"] == lane.removesuffix("+spec")
    assert (reply.usage["speculation"]["drafted"] > 0) <= lane.endswith("+spec")
    return reply.said, reply.usage["completion_tokens"]


ANY_TEXT = {"guided_regex": "(.|\n|\r)*"}
"""A grammar that determines no text: where there is but one, it is written in the usual tokens."""

BOUNDARY: dict[str, tuple[dict[str, Any], str, str, int]] = {
    "before the end": ({"max_tokens": 4}, "ABCD", "length", 4),
    "on the last token": ({"max_tokens": 5}, "ABCDE", "length", 5),
    "on the end token": ({"max_tokens": 6}, "ABCDE", "stop", 5),
    "far behind": ({"max_tokens": 100}, "ABCDE", "stop", 5),
    "a stop text": ({"max_tokens": 100, "stop": ["C"]}, "AB", "stop", 3),
    "one token": ({"max_tokens": 1}, "A", "length", 1),
}
"""Where a row of A B C D E and an end token may be cut -> text, reason, tokens counted."""


@in_both_modes
@in_every_lane
@pytest.mark.parametrize("name", BOUNDARY)
@pytest.mark.parametrize("is_constrained", [False, True], ids=["plain", "grammar"])
def test_the_end_of_a_reply_is_the_same_in_every_lane(
    echo: Live, is_constrained: bool, name: str, lane: str, mode: str
) -> None:
    fields, text, reason, tokens = BOUNDARY[name]
    if is_constrained:
        fields = {**fields, "guided_regex": "ABCDE"}
        # The document is complete with its last token, whatever the budget still allows.
        reason = "stop" if text == "ABCDE" else reason
    choice, counted = said(echo, "ABCDE", lane, mode, **fields)
    assert choice.text == text
    assert choice.reasons == [reason]
    assert counted == len(choice.ids) == tokens


HELD: dict[str, tuple[str, dict[str, Any], str, int]] = {
    "an end behind text": (pieces("ple", "as"), {"stop": ["<|eot|>assistant"]}, "pleas", 2),
    "a budget inside a stop": (
        pieces("a", "\n", "U"),
        {"stop": ["\nUser:"], "max_tokens": 3},
        "a\nU",
        3,
    ),
    "an end inside a stop": (
        pieces("x<", "|im_", "end"),
        {"stop": ["<|im_end|>"]},
        "x<|im_end",
        3,
    ),
    "a budget inside a character": (
        pieces("a", bytes.fromhex("f09f"), bytes.fromhex("98")),
        {"max_tokens": 3},
        "a\ufffd",
        3,
    ),
}


@in_both_modes
@in_every_lane
@pytest.mark.parametrize("name", HELD)
def test_text_that_was_held_back_comes_out_at_the_end(
    echo: Live, name: str, lane: str, mode: str
) -> None:
    content, fields, text, tokens = HELD[name]
    choice, counted = said(echo, content, lane, mode, **fields)
    assert choice.text == text
    assert counted == len(choice.ids) == tokens


def test_only_what_may_begin_a_stop_text_is_held_back(echo: Live) -> None:
    content = pieces("ple", "as", "x<", "ab")
    choice, _ = said(echo, content, "serial", "stream", stop=["<|im_end|>"])
    assert [delta for delta in choice.deltas if delta] == ["ple", "as", "x", "<ab"]


def test_a_client_may_leave_while_text_is_held_back(echo: Live) -> None:
    cancelled = echo.worker.totals.rows["cancelled"]
    # Behind its text the row repeats its end token, which has no text: " c" stays held.
    body = chat_body(
        pieces("ab", " c"), stream=True, stop=[" cd"], ignore_eos=True, max_tokens=3000
    )
    with held_after(echo, num_steps=20):
        with (
            httpx2.Client(base_url=echo.url, timeout=WAIT_S) as leaver,
            leaver.stream("POST", CHAT, json=body) as answer,
        ):
            lines = answer.iter_lines()
            line = next(line for line in lines if '"content":"ab' in line)
        wait_for(lambda: echo.worker.num_rows == 0)
    assert json.loads(line.removeprefix("data: "))["choices"][0]["delta"]["content"] == "ab"
    echo.wait_until_idle()
    assert echo.worker.totals.rows["cancelled"] == cancelled + 1
    assert echo.chat("hi").json()["choices"][0]["message"]["content"] == "hi"


CUT = pieces(
    "Hi ",
    *(bytes.fromhex(part) for part in SPLIT[:6]),
    " ",
    *(bytes.fromhex(part) for part in SPLIT[6:]),
)
WHOLE = "Hi 😀 日本 ďáb👨\u200d👩"


@in_both_modes
@in_every_lane
@pytest.mark.parametrize("is_constrained", [False, True], ids=["plain", "grammar"])
def test_characters_cut_over_tokens_arrive_whole_alone_and_side_by_side(
    echo: Live, is_constrained: bool, lane: str, mode: str
) -> None:
    rows = range(1 if lane.startswith("serial") else 4)
    expected = ["x" * shift + WHOLE for shift in rows]
    fields = ANY_TEXT if is_constrained else {}
    prompts = [prompt_ids("x" * shift + CUT) for shift in rows]
    reply = ask_ids(echo, prompts, stream=MODES[mode], fm=LANES[lane], **fields)
    assert [choice.text for choice in reply.choices] == expected
    assert reply.usage["completion_tokens"] == sum(len(choice.ids) for choice in reply.choices)
    assert [len(choice.ids) for choice in reply.choices] == [len(p) - 2 for p in prompts]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_no_byte_of_a_stream_is_part_of_a_longer_character(echo: Live, path: str) -> None:
    body = chat_body(CUT, stream=True, max_tokens=64)
    if path == COMPLETIONS:
        body = {"model": "tiny", "prompt": prompt_ids(CUT), "stream": True, "max_tokens": 64}
    answer = echo.client.post(path, json=body)
    assert answer.content.isascii()
    assert "\\ufffd" not in answer.text


ODD: dict[str, tuple[str, ...]] = {
    "genuine replacement characters": ("a\ufffdb", "\ufffd"),
    "a combining mark": ("e", "\u0301", "x"),
    "a joined emoji": ("🏳", "\ufe0f", "\u200d", "🌈"),
    "an ideograph": ("A 世", "a", "b"),
    "blanks before punctuation": ("    ", ".", " ,", "'s"),
    "line ends": ("\r\n", "\r", "\n"),
}


@in_both_modes
@in_every_lane
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("is_constrained", [False, True], ids=["plain", "grammar"])
def test_odd_characters_are_sent_once_and_as_they_are(
    echo: Live, is_constrained: bool, name: str, lane: str, mode: str
) -> None:
    text = "".join(ODD[name])
    fields = ANY_TEXT if is_constrained else {}
    choice, counted = said(echo, pieces(*ODD[name]), lane, mode, **fields)
    assert choice.text == text
    assert counted == len(ODD[name])


@in_both_modes
@in_every_lane
@pytest.mark.parametrize("end", ENDS)
def test_every_end_token_ends_a_reply_and_is_neither_shown_nor_counted(
    echo: Live, end: str, lane: str, mode: str
) -> None:
    for text, fields in {
        "W": {},
        "": {},
        "WW": {"guided_regex": "W+"},
        '"W"': {"response_format": schema_format({"const": "W"})},
        "12": {"response_format": schema_format({"type": "integer"})},
    }.items():
        choice, counted = said(echo, text + pieces(end, "X"), lane, mode, **fields)
        assert (choice.text, choice.reasons) == (text, ["stop"])
        assert counted == len(choice.ids) == len(text)


@in_both_modes
@in_every_lane
@pytest.mark.parametrize("end", ENDS)
def test_an_end_token_that_is_ignored_is_counted_and_has_no_text(
    echo: Live, end: str, lane: str, mode: str
) -> None:
    content = pieces("W", end, "X")
    choice, counted = said(echo, content, lane, mode, ignore_eos=True, max_tokens=3)
    assert (choice.text, choice.reasons) == ("WX", ["length"])
    assert counted == len(choice.ids) == 3


@in_both_modes
@in_every_lane
def test_a_control_token_that_is_written_is_not_its_name(echo: Live, lane: str, mode: str) -> None:
    choice, counted = said(echo, pieces("W", BEGIN, "X"), lane, mode, stop=[BEGIN])
    assert (choice.text, choice.reasons, counted) == ("WX", ["stop"], 3)


@in_both_modes
@in_every_lane
@pytest.mark.parametrize("marker", ENDS)
def test_the_name_of_a_control_token_is_text_that_ends_nothing(
    echo: Live, marker: str, lane: str, mode: str
) -> None:
    value = f"{marker} is text, {BEGIN} too"
    text = json.dumps(value)
    fields: dict[str, Any] = {"response_format": schema_format({"const": value})}
    choice, counted = said(echo, text, lane, mode, max_tokens=100, **fields)
    assert json.loads(choice.text) == value
    assert (choice.reasons, counted) == (["stop"], len(text))
    plain, _ = said(echo, text, lane, mode, max_tokens=100)
    assert plain.text == text
    ended, _ = said(echo, f"a{marker}b", lane, mode, stop=[marker], max_tokens=100)
    assert ended.text == "a"
