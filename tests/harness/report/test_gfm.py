"""Whatever text comes in, a GFM parser finds the table as it was meant, and no markup in it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from harness.report.gfm import bullets, code_block, escape, shorten, table
from harness.report.visible import one_line, visible

HOSTILE = {
    "pipes": "a|b|c",
    "pipe in code": "`x|y`",
    "two lines": "line1\nline2",
    "tab": "tab\there",
    "wide": "日本語モデル",
    "joined emoji": "😀👨‍👩‍👧",
    "combining": "\u0435\u0301 combining",
    "html": "<script>alert(1)</script>",
    "link": "[link](x)",
    "image": "![image](x)",
    "emphasis": "*bold* _it_ ~~no~~",
    "trailing backslash": "trailing \\",
    "escaped pipe": "\\|",
    "pipe": "|",
    "empty": "",
    "blanks": "   ",
    "right to left": "\u202eRTL",
    "slash": "model/name-4bit",
    "minus zero": "-0.0",
    "exponent": "1e-9",
    "long": "very long " + "x" * 300,
    "entity": "&amp; &#124; &lt;",
    "address": "http://x.example www.x.example a@x.example",
    "heading": "# not a heading",
    "quote": "> not a quote",
    "item": "1. not an item",
    "rule": "---",
    "task": "[ ] not a task",
    "carriage return": "a\r\nb\rc",
    "separators": "a\u2028b\x85c",
    "fence": "```\nx\n```",
}
PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def shown(text: str) -> str:
    """Return what a reader should see: control characters as pictures, line ends as blanks."""
    line = text.replace("\r\n", " ")
    for end in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029":
        line = line.replace(end, " ")
    return visible(line)


def cells(markdown: str) -> list[list[str]]:
    """Return the text of every cell of the one table in a document, header first."""
    tokens = PARSER.parse(markdown)
    kinds = [token.type for token in tokens]
    assert kinds.count("table_open") == 1, markdown
    assert kinds[0] == "table_open", markdown
    assert kinds[-1] == "table_close", markdown
    found: list[list[str]] = []
    for place, token in enumerate(tokens):
        if token.type == "tr_open":
            found.append([])
        if token.type in ("th_open", "td_open"):
            found[-1].append(plain_text(tokens[place + 1]))
    return found


def plain_text(inline: Token) -> str:
    children = inline.children or []
    assert {child.type for child in children} <= {"text", "text_special"}, children
    return "".join(child.content for child in children)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("position", ["header", "body", "first column", "last column"])
def test_a_hostile_text_stays_in_its_cell(text: str, position: str) -> None:
    grid = [["a", "b", "c"], ["d", "e", "f"], ["g", "h", "i"]]
    row, column = {
        "header": (0, 1),
        "body": (1, 1),
        "first column": (2, 0),
        "last column": (2, 2),
    }[position]
    grid[row][column] = text
    expected = [[shown(cell) for cell in line] for line in grid]
    columns = [(heading, place == 1) for place, heading in enumerate(grid[0])]
    assert cells(table(columns, grid[1:])) == expected


@given(st.lists(st.lists(ANY_TEXT, min_size=3, max_size=3), min_size=1, max_size=4))
def test_any_table_comes_back_from_a_parser(grid: list[list[str]]) -> None:
    found = cells(table([(heading, False) for heading in grid[0]], grid[1:]))
    assert found == [[shown(cell) for cell in line] for line in grid]


@given(st.lists(ANY_TEXT.filter(str.strip), min_size=1, max_size=4))
def test_any_list_has_one_paragraph_an_item(texts: list[str]) -> None:
    tokens = PARSER.parse(bullets(texts))
    assert {token.type for token in tokens} == {
        "bullet_list_open",
        "list_item_open",
        "paragraph_open",
        "inline",
        "paragraph_close",
        "list_item_close",
        "bullet_list_close",
    }
    assert [plain_text(token) for token in tokens if token.type == "inline"] == list(
        map(shown, texts)
    )


@given(st.text(st.sampled_from("`~ab \n"), max_size=30))
def test_no_text_leaves_its_code_block(text: str) -> None:
    tokens = PARSER.parse(code_block(text))
    assert [token.type for token in tokens] == ["fence"]
    assert tokens[0].content == text + "\n"


def test_the_source_holds_no_mark_that_turns_its_direction() -> None:
    marks = [chr(code) for code in range(0x110000) if unicodedata.bidirectional(chr(code)) in MARKS]
    assert len(marks) >= 9
    for mark in marks:
        if unicodedata.category(mark) == "Cf":
            assert mark not in escape(f"a{mark}b")
            assert mark not in one_line(f"a{mark}b")


MARKS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def test_a_terminal_gets_no_control_character() -> None:
    text = "".join(map(chr, range(0xA0)))
    assert all(character.isprintable() for character in one_line(text))


def test_a_shortened_text_says_how_much_is_missing() -> None:
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 3) == "abc... (4 more characters)"


def everything() -> Iterator[str]:
    yield from HOSTILE.values()
    yield "\ud800 lone surrogate"


def test_escaped_text_is_utf_8() -> None:
    for text in everything():
        escape(text).encode("utf-8")
