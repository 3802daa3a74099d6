"""Workloads: what is loaded, what is refused and how, which prompts a block gets."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import FmError, SettingError, UnknownNameError
from engine.request import ConstraintKind
from harness.workloads.strict import WorkloadError
from harness.workloads.workload import Workload, list_workloads, load_workload, read_workload

CORE = {
    "short-chat": 128,
    "json-extract": 256,
    "long-form": 512,
    "tool-call": 160,
    "agent-replay": 48,
}

HEADER = """kind = "json"
description = "Ages."
max_tokens = 16
must_compile = 1
allow_truncation = false
"""
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["age"],
    "additionalProperties": False,
}


def prompt(name: str, schema: str | None = "age", **more: Any) -> dict[str, Any]:
    line = {"id": name, "messages": [{"role": "user", "content": f"{name} is 4."}], **more}
    return line if schema is None else {**line, "schema": schema}


def write_lines(path: Path, *lines: Any) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small workload, right in every way."""
    folder = tmp_path / "ages"
    (folder / "schemas").mkdir(parents=True)
    (folder / "workload.toml").write_text(HEADER, encoding="utf-8")
    (folder / "schemas" / "age.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    write_lines(folder / "prompts.jsonl", prompt("ann", expected={"age": 4}), prompt("bob"))
    write_lines(folder / "warmup.jsonl", prompt("warm"))
    return folder


def test_the_core_workloads_are_there() -> None:
    assert set(CORE) <= set(list_workloads())


@pytest.mark.parametrize("name", CORE)
def test_a_core_workload_has_32_different_prompts_and_its_budget(name: str) -> None:
    workload = load_workload(name)
    texts = {json.dumps(item.messages) for item in workload.prompts}
    assert workload.name == name
    assert workload.max_tokens == CORE[name]
    assert len(texts) == len(workload.prompts) >= 32
    assert len(workload.warmup) >= 2


@pytest.mark.parametrize("name", CORE)
def test_warm_up_prompts_are_never_measured(name: str) -> None:
    workload = load_workload(name)
    measured = {item.messages[-1]["content"] for item in workload.prompts}
    assert measured.isdisjoint(item.messages[-1]["content"] for item in workload.warmup)


@pytest.mark.parametrize("name", CORE)
def test_no_two_prompts_of_a_core_workload_begin_alike_beyond_their_system_message(
    name: str,
) -> None:
    workload = load_workload(name)
    starts = [item.messages[-1]["content"][:25] for item in workload.prompts]
    assert len(set(starts)) == len(starts)


@pytest.mark.parametrize("name", ["short-chat", "long-form", "agent-replay"])
def test_text_workloads_have_no_constraint(name: str) -> None:
    assert not load_workload(name).is_constrained


@pytest.mark.parametrize("name", ["json-extract", "tool-call"])
def test_workloads_of_documents_always_have_a_constraint(name: str) -> None:
    workload = load_workload(name)
    assert workload.is_constrained
    for item in workload.prompts + workload.warmup:
        assert item.constraint is not None
        assert item.constraint.kind is ConstraintKind.JSON_SCHEMA
        assert item.constraint.value == workload.schemas[item.schema_name or ""]


def test_a_workload_is_read_as_it_is_written(folder: Path) -> None:
    workload = read_workload(folder)
    ann, bob = workload.prompts
    assert (workload.name, workload.kind, workload.max_tokens) == ("ages", "json", 16)
    assert (workload.must_compile, workload.allow_truncation) == (1, False)
    assert (ann.id, ann.schema_name, ann.schema, ann.expected) == ("ann", "age", SCHEMA, {"age": 4})
    assert ann.messages == ({"role": "user", "content": "ann is 4."},)
    assert bob.expected is None
    assert [item.id for item in workload.warmup] == ["warm"]


def test_the_page_on_workloads_tells_what_each_of_them_holds() -> None:
    page = (Path(__file__).parents[3] / "docs" / "workloads.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `([a-z-]+)` \| (\d+) \| (\d+) \|", page, re.MULTILINE)
    loaded = [load_workload(name) for name in list_workloads()]
    held = [(item.name, str(len(item.prompts)), str(item.max_tokens)) for item in loaded]
    assert sorted(told) == held


def goes_on(name: str, before: str, text: str) -> dict[str, Any]:
    more = [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": text}]
    return prompt(name, continues=before, messages=more)


def test_a_line_that_continues_another_begins_with_all_its_messages(folder: Path) -> None:
    lines = [prompt("ann"), goes_on("ann-2", "ann", "Sure?"), goes_on("ann-3", "ann-2", "Why?")]
    write_lines(folder / "prompts.jsonl", *lines, prompt("bob"))
    first, second, third, other = read_workload(folder).prompts
    assert [len(item.messages) for item in (first, second, third, other)] == [1, 3, 5, 1]
    assert second.messages == (*first.messages, *lines[1]["messages"])
    assert third.messages == (*second.messages, *lines[2]["messages"])
    assert [item.session for item in (first, second, third, other)] == ["", "ann", "ann", ""]


def test_a_session_stays_together_and_in_order_whatever_the_seed(folder: Path) -> None:
    names = [f"{name}-{turn}" for name in ("ann", "bob", "cy", "dee") for turn in range(3)]
    lines = [
        goes_on(name, names[place - 1], f"{name}?") if place % 3 else prompt(name)
        for place, name in enumerate(names)
    ]
    write_lines(folder / "prompts.jsonl", *lines)
    workload = read_workload(folder)
    firsts = set()
    for seed in range(20):
        chosen = [item.id for item in workload.select(12, seed=seed)]
        parts = [chosen[start : start + 3] for start in range(0, 12, 3)]
        assert sorted(parts) == [names[start : start + 3] for start in range(0, 12, 3)]
        firsts.add(chosen[0])
    assert len(firsts) > 1


def test_a_line_ends_at_a_newline_and_nowhere_else(folder: Path) -> None:
    line = json.dumps(prompt("ann"))[:-1] + ', "expected": {"age": "\u2028\x85"}}\n'
    (folder / "prompts.jsonl").write_text(line, encoding="utf-8")
    assert read_workload(folder).prompts[0].expected == {"age": "\u2028\x85"}


def test_an_unknown_name_lists_what_exists(folder: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown workload 'sonnets'; known: ages"):
        load_workload("sonnets", folder.parent)


@pytest.mark.parametrize("name", ["../ages", ".", "", "ages/", "/"])
def test_a_name_is_never_a_path(name: str, folder: Path) -> None:
    with pytest.raises(UnknownNameError):
        load_workload(name, folder.parent)


def _write(name: str, text: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_text(text, encoding="utf-8")

    return damage


def _lines(*lines: Any, name: str = "prompts.jsonl") -> Callable[[Path], None]:
    return lambda folder: write_lines(folder / name, *lines)


DAMAGE: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "no header": (lambda f: (f / "workload.toml").unlink(), "workload.toml", "needs this file"),
    "no prompts": (lambda f: (f / "prompts.jsonl").unlink(), "prompts.jsonl", "needs this file"),
    "no warm-up": (lambda f: (f / "warmup.jsonl").unlink(), "warmup.jsonl", "needs this file"),
    "no schemas": (lambda f: shutil.rmtree(f / "schemas"), "workload.toml", "must_compile is 1"),
    "no schema of that name": (
        lambda f: (f / "schemas" / "age.json").rename(f / "schemas" / "size.json"),
        "prompts.jsonl:1",
        "schema is 'age'; name one of schemas/: size",
    ),
    "bad TOML": (
        _write("workload.toml", HEADER.replace("tokens =", "tokens")),
        "workload.toml",
        "line 3",
    ),
    "a key unknown": (_write("workload.toml", HEADER + "seed = 1"), "workload.toml", "seed is 1"),
    "a key missing": (
        _write("workload.toml", HEADER[14:]),
        "workload.toml",
        "kind is missing; add",
    ),
    "a line without messages": (_lines({"id": "ann"}), "prompts.jsonl:1", "messages is missing"),
    "a kind unknown": (
        _write("workload.toml", HEADER.replace('"json"', '"yaml"')),
        "workload.toml",
        "kind is 'yaml'",
    ),
    "a budget of nothing": (
        _write("workload.toml", HEADER.replace("16", "0")),
        "workload.toml",
        "max_tokens is 0",
    ),
    "a budget in words": (
        _write("workload.toml", HEADER.replace("16", '"16"')),
        "workload.toml",
        "max_tokens is '16'",
    ),
    "more schemas pinned than there are": (
        _write("workload.toml", HEADER.replace("compile = 1", "compile = 2")),
        "workload.toml",
        "must_compile is 2",
    ),
    "an empty file": (_write("prompts.jsonl", ""), "prompts.jsonl", "holds no prompt"),
    "a line that is no JSON": (
        _write("prompts.jsonl", json.dumps(prompt("ann")) + "\n{'id': 1}\n"),
        "prompts.jsonl:2",
        "one JSON object a line",
    ),
    "a blank line": (
        _write("prompts.jsonl", "\n" + json.dumps(prompt("ann"))),
        "prompts.jsonl:1",
        "one JSON object a line",
    ),
    "a line that is a list": (_lines([1]), "prompts.jsonl:1", "[1]"),
    "a key twice": (_write("prompts.jsonl", '{"id":"a","id":"b"}'), "prompts.jsonl:1", "'id'"),
    "an id with blanks": (_lines(prompt("two words")), "prompts.jsonl:1", "id is 'two words'"),
    "an id twice": (_lines(prompt("ann"), prompt("ann")), "prompts.jsonl:2", "prompts.jsonl:1"),
    "an id of a warm-up prompt": (_lines(prompt("warm")), "warmup.jsonl:1", "prompts.jsonl:1"),
    "a line that continues none": (
        _lines(prompt("ann"), prompt("bob", continues="cy")),
        "prompts.jsonl:2",
        "continues is 'cy', and no line above has that id",
    ),
    "a line that continues a later one": (
        _lines(prompt("ann", continues="bob"), prompt("bob")),
        "prompts.jsonl:1",
        "continues is 'bob'",
    ),
    "a line that continues a line of another file": (
        _lines(prompt("warm", continues="ann"), name="warmup.jsonl"),
        "warmup.jsonl:1",
        "continues is 'ann'",
    ),
    "a schema unknown": (_lines(prompt("ann", "size")), "prompts.jsonl:1", "schema is 'size'"),
    "a schema not named": (_lines(prompt("ann", None)), "prompts.jsonl:1", "schema is None"),
    "a schema in a text workload": (
        _write("workload.toml", HEADER.replace('"json"', '"text"')),
        "prompts.jsonl:1",
        "kind 'text'",
    ),
    "no message": (_lines(prompt("ann", messages=[])), "prompts.jsonl:1", "messages is []"),
    "a role unknown": (
        _lines(prompt("ann", messages=[{"role": "boss", "content": "Now!"}])),
        "prompts.jsonl:1",
        "messages.0.role is 'boss'",
    ),
    "an empty message": (
        _lines(prompt("ann", messages=[{"role": "user", "content": ""}])),
        "prompts.jsonl:1",
        "messages.0.content is ''",
    ),
    "an answer at the end": (
        _lines(prompt("ann", messages=[{"role": "assistant", "content": "Hi."}])),
        "prompts.jsonl:1",
        "'assistant'",
    ),
    "a field unknown": (_lines(prompt("ann", topic="age")), "prompts.jsonl:1", "topic is 'age'"),
    "facts as a list": (_lines(prompt("ann", expected=[4])), "prompts.jsonl:1", "expected is [4]"),
    "a schema that is no JSON": (_write("schemas/age.json", "{"), "schemas/age.json", "one JSON"),
    "a schema that is a list": (_write("schemas/age.json", "[]"), "schemas/age.json", "[]"),
    "a schema that is none": (
        _write("schemas/age.json", '{"type":"objekt"}'),
        "schemas/age.json",
        "/type",
    ),
    "a file that is not UTF-8": (
        lambda f: (f / "prompts.jsonl").write_bytes(b'{"id":"\xe4"}'),
        "prompts.jsonl",
        "byte 7",
    ),
}


@pytest.mark.parametrize(("damage", "place", "says"), DAMAGE.values(), ids=list(DAMAGE))
def test_a_damaged_workload_is_refused_in_one_line_that_names_the_place(
    damage: Callable[[Path], None], place: str, says: str, folder: Path
) -> None:
    damage(folder)
    with pytest.raises(WorkloadError) as caught:
        read_workload(folder)
    assert isinstance(caught.value, FmError)
    assert str(folder / place) in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_digest_changes_with_every_file_that_is_loaded(folder: Path) -> None:
    digests = {read_workload(folder).digest}
    changes = {
        "workload.toml": HEADER.replace("16", "17"),
        "prompts.jsonl": json.dumps(prompt("cy")),
        "warmup.jsonl": json.dumps(prompt("warmer")),
        "schemas/age.json": json.dumps({**SCHEMA, "title": "Age"}),
        "schemas/more.json": "{}",
    }
    for name, text in changes.items():
        (folder / name).write_text(text, encoding="utf-8")
        digests.add(read_workload(folder).digest)
    assert len(digests) == 1 + len(changes)


def test_the_digest_ignores_line_ends_and_files_that_are_not_loaded(folder: Path) -> None:
    before = read_workload(folder).digest
    (folder / "notes.md").write_text("draft", encoding="utf-8")
    path = folder / "prompts.jsonl"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_workload(folder).digest == before


def test_the_digest_does_not_depend_on_where_the_workload_lies(folder: Path) -> None:
    moved = shutil.copytree(folder, folder.parent / "else" / "ages")
    assert read_workload(moved).digest == read_workload(folder).digest


@pytest.fixture(scope="module")
def extract() -> Workload:
    return load_workload("json-extract")


@given(seed=st.integers(0, 2**63 - 1), count=st.integers(1, 40), block=st.integers(0, 1000))
def test_a_block_gets_different_prompts_and_always_the_same(
    extract: Workload, seed: int, count: int, block: int
) -> None:
    chosen = extract.select(count, seed=seed, block=block)
    assert len({item.id for item in chosen}) == count
    assert chosen == extract.select(count, seed=seed, block=block)


@given(seed=st.integers(0, 2**63 - 1), count=st.integers(1, 13))
def test_blocks_share_no_prompt_until_all_were_used(
    extract: Workload, seed: int, count: int
) -> None:
    blocks = [extract.select(count, seed=seed, block=block) for block in range(3)]
    assert len({item.id for chosen in blocks for item in chosen}) == 3 * count


@given(seed=st.integers(0, 2**63 - 1), block=st.integers(0, 50), count=st.integers(2, 10))
def test_a_few_prompts_show_as_many_schemas_as_they_can(
    extract: Workload, seed: int, block: int, count: int
) -> None:
    chosen = extract.select(count, seed=seed, block=block)
    assert len({item.schema_name for item in chosen}) == count


def test_seeds_choose_differently(extract: Workload) -> None:
    chosen = {tuple(item.id for item in extract.select(3, seed=seed)) for seed in range(20)}
    assert len(chosen) > 15


def test_the_choice_is_pinned_for_all_platforms() -> None:
    chosen = load_workload("short-chat").select(3, seed=0)
    assert [item.id for item in chosen] == ["coffee-strength", "fridge-milk", "leap-year"]


@pytest.mark.parametrize("count", [0, -1, 41])
def test_more_prompts_than_there_are_cannot_be_asked(extract: Workload, count: int) -> None:
    with pytest.raises(SettingError, match=rf"{count} prompts .*'json-extract'.* 1 to 40"):
        extract.select(count, seed=0)
