"""Names of special tokens: hidden from texts, and found where a grammar means the token."""

from __future__ import annotations

import pytest

from engine.models.special_names import HIDDEN, hidden_name, hide_in_lark, hide_names, shown_names

TOKEN = hidden_name("<|im_end|>")


@pytest.mark.parametrize(
    ("grammar", "hidden"),
    [
        ("start: <|im_end|>", f"start: {TOKEN}"),
        ('start: "<|im_end|>" <|im_end|>', f'start: "<|im_end|>" {TOKEN}'),
        (r'start: "\"<|im_end|>"', r'start: "\"<|im_end|>"'),
        ("start: /<|im_end|>/ <think>", f"start: /<|im_end|>/ {hidden_name('<think>')}"),
        ("start: <[258]> // <|im_end|>", "start: <[258]> // <|im_end|>"),
        ("# <|im_end|>\nstart: /a/", "# <|im_end|>\nstart: /a/"),
    ],
    ids=["bare", "literal", "escaped quote", "pattern", "number and comment", "comment"],
)
def test_a_grammars_own_tokens_are_renamed_and_its_texts_are_not(grammar: str, hidden: str) -> None:
    assert hide_in_lark(grammar) == hidden
    assert shown_names(hidden) == grammar


def test_a_special_token_is_renamed_wherever_its_name_stands_alone() -> None:
    settings = {
        "added_tokens": [
            {"id": 0, "content": "<s>", "special": True},
            {"id": 1, "content": "<tool>", "special": False},
            {"id": 2, "content": "  ", "special": False},
        ],
        "model": {"vocab": {"<s>": 0, "<tool>": 1, "  ": 2, "a<s>": 3}, "unk_token": "<s>"},
    }
    found = hide_names(settings)
    assert list(found["model"]["vocab"]) == [f"<{HIDDEN}s>", f"<{HIDDEN}tool>", "  ", "a<s>"]
    assert found["model"]["unk_token"] == f"<{HIDDEN}s>"
    assert [item["special"] for item in found["added_tokens"]] == [True, True, False]
