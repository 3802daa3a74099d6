"""Elements: whatever text goes in, a parser gets that text out again and nothing else."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.report.html.element import ATTRIBUTES, Inline, el, render
from harness.report.visible import visible


class Seen(HTMLParser):
    """What a parser makes of a source: tags with their attributes, and the text between."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data}")


ANYTHING = st.text(st.characters(exclude_categories=()))
MARKUP = st.text(st.sampled_from("<>&\"'=/!-;#x3script \n\t\u202e\u2067é😀\x00\x1b"))


@given(st.one_of(ANYTHING, MARKUP))
def test_a_text_comes_out_as_it_went_in(text: str) -> None:
    seen = Seen(render(el("span", {"aria-label": text}, text)))
    assert seen.tags == [("span", {"aria-label": visible(text)})]
    assert seen.text == visible(text)


@given(st.one_of(ANYTHING, MARKUP))
def test_no_source_holds_a_direction_mark_or_a_control_character(text: str) -> None:
    source = render(el("p", {"class": text}, text))
    source.encode("utf-8")
    assert not set(source) & set(
        "\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u200f\u200e\x1b\x00\x7f\r"
    )


def test_children_may_be_nested_absent_and_lazy() -> None:
    made = el("ul", None, (el("li", None, str(at)) for at in range(2)), None, [["x"], []])
    assert render(made) == "<ul><li>0</li>\n<li>1</li>\nx</ul>\n"


@pytest.mark.parametrize("tag", ["script", "style", "iframe", "img", "object", "form", "x y", ""])
def test_an_element_that_could_do_harm_cannot_be_made(tag: str) -> None:
    with pytest.raises(ValueError, match="is not an element"):
        el(tag)


@pytest.mark.parametrize("name", ["onclick", "onload", "style", "src", "srcdoc", "action", "a b"])
def test_an_attribute_that_could_do_harm_cannot_be_made(name: str) -> None:
    assert name not in ATTRIBUTES
    with pytest.raises(ValueError, match="is not an attribute"):
        el("p", {name: "x"})


@pytest.mark.parametrize(
    "address", ["javascript:x", "http://x", "//x", "x.html", "", " #a", "data:text/html,x"]
)
def test_an_address_out_of_the_page_cannot_be_made(address: str) -> None:
    with pytest.raises(ValueError, match="lead only to places in themselves"):
        el("a", {"href": address})


@pytest.mark.parametrize("source", ["</style>", "a </script", "<!-- x"])
def test_a_source_that_would_end_its_element_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="would end it"):
        Inline("script", source)
    with pytest.raises(ValueError, match="holds no source"):
        Inline("p", "x")
