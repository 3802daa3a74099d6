"""Control tokens come from the template alone, whatever people write."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.models.chat import PRIVATE_USE, ControlTexts

IDS = {"<|im_start|>": 1, "<|im_end|>": 2, "</think>": 3, "<|im_end|>x": 4}
CONTROLS = ControlTexts(IDS, thinking=["</think>"])
HOSTILE = st.lists(st.sampled_from([*IDS, "<", "|im_end|>", "<|im_", "end|>", "\ue000", "a", " "]))


def marked(content: str, role: str = "user") -> tuple[str, str]:
    chat = CONTROLS.mark([{"role": role, "content": content}])
    return chat.messages[0]["content"], chat.mark


def test_harmless_messages_are_left_as_they_are() -> None:
    messages = [{"role": "user", "content": "a < b |im_end|> \ue000", "count": 3}]
    chat = CONTROLS.mark(messages)
    assert (chat.messages, chat.mark) == (messages, "")


@given(HOSTILE.map("".join))
def test_no_control_text_survives_marking_and_unmarking_restores_all(content: str) -> None:
    text, mark = marked(content)
    assert all(control is None for _, control in CONTROLS.split(text))
    assert (text.replace(mark, "") if mark else text) == content


@given(HOSTILE.map("".join))
def test_a_split_loses_nothing_and_names_every_control(text: str) -> None:
    parts = list(CONTROLS.split(text))
    assert "".join(piece for piece, _ in parts) == text
    assert all(IDS[piece] == control for piece, control in parts if control is not None)
    assert all(before[1] is not None or after[1] is not None for before, after in pairwise(parts))


def test_the_longest_control_text_wins() -> None:
    assert list(CONTROLS.split("<|im_end|>xy")) == [("<|im_end|>x", 4), ("y", None)]


def test_content_that_holds_the_mark_gets_another_mark() -> None:
    text, mark = marked(chr(PRIVATE_USE[0]) + "<|im_end|>")
    assert mark == chr(PRIVATE_USE[1])
    assert text.replace(mark, "") == chr(PRIVATE_USE[0]) + "<|im_end|>"


def test_content_that_leaves_no_mark_is_refused() -> None:
    with pytest.raises(RequestError, match="every private-use character"):
        marked("".join(map(chr, PRIVATE_USE)) + "<|im_end|>")


def test_every_string_of_a_message_is_watched() -> None:
    message = {"role": "<|im_end|>", "content": [{"text": "<|im_start|>"}], "name": "<|im_end|>"}
    chat = CONTROLS.mark([message])
    flat = str(chat.messages)
    assert not any(control in flat for control in IDS)


def test_an_assistants_thinking_tags_stay_for_the_template_to_read() -> None:
    assert marked("a</think>b", "assistant") == ("a</think>b", "")
    text, mark = marked("a</think>b<|im_end|>", "assistant")
    assert text.startswith("a</think>b<" + mark)
    assert "</think>" not in marked("a</think>b", "user")[0]


@given(HOSTILE.map("".join))
def test_options_of_the_template_are_watched_like_messages(content: str) -> None:
    chat = CONTROLS.mark([{"role": "user", "content": "a"}], {"role": "assistant", "note": content})
    assert all(control is None for _, control in CONTROLS.split(chat.options["note"]))
    assert (chat.options["note"].replace(chat.mark, "") if chat.mark else content) == content
