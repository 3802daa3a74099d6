"""Equal constraints are compiled once, by content, and what failed is not kept."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.errors import SchemaError
from engine.grammar.build import Builder
from engine.grammar.limits import GrammarLimits
from tests.waiting import WAIT_S

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def counts(bench):
    stats = bench.compiler.stats()
    return stats.compiles, stats.failures, stats.hits, stats.evictions


def test_an_equal_constraint_is_compiled_once(make_bench):
    bench = make_bench()

    first = bench.compile(dict(SCHEMA))
    second = bench.compile(dict(SCHEMA))

    assert first is second
    assert counts(bench) == (1, 0, 1, 0)
    assert bench.compiler.stats().seconds > 0


def test_what_makes_a_difference_is_compiled_again(make_bench):
    bench = make_bench()
    bench.compile({"properties": {"a": {"const": 1}, "b": {"const": 2}}})

    bench.compile({"properties": {"b": {"const": 2}, "a": {"const": 1}}})
    bench.compile({"properties": {"a": {"const": 1}, "b": {"const": 2}}}, on_unsupported="validate")
    bench.compile("a", kind="regex")
    bench.compile(["a"], kind="choice")

    assert counts(bench) == (5, 0, 0, 0)


def test_sixteen_threads_at_once_build_once(make_bench):
    bench = make_bench()
    barrier = threading.Barrier(16)

    def compile_together(_):
        barrier.wait()
        return bench.compile({"enum": [f"value {index}" for index in range(2000)]})

    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(compile_together, range(16)))

    assert len(set(map(id, found))) == 1
    assert counts(bench) == (1, 0, 15, 0)


def test_threads_that_wait_for_a_failing_build_all_hear_of_it(make_bench):
    bench = make_bench()
    barrier = threading.Barrier(8)

    def compile_together(_):
        barrier.wait()
        with pytest.raises(SchemaError, match="uniqueItems"):
            bench.compile({"enum": [*range(500)], "uniqueItems": True})
        return True

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(compile_together, range(8)))


def test_a_failed_compile_is_not_kept(make_bench):
    bench = make_bench()
    for _ in range(2):
        with pytest.raises(SchemaError):
            bench.compile({"type": "array", "uniqueItems": True})

    assert counts(bench)[:3] == (0, 2, 0)


def test_the_cache_keeps_the_latest_used(make_bench):
    bench = make_bench(GrammarLimits(cache_entries=2))
    first, second, third = ({"const": number} for number in (1, 2, 3))
    for schema in (first, second, first, third, first):
        bench.compile(schema)

    assert counts(bench) == (3, 0, 2, 1)
    bench.compile(second)
    assert counts(bench)[0] == 4


def test_a_grammar_in_use_outlives_its_place_in_the_cache(make_bench):
    bench = make_bench(GrammarLimits(cache_entries=1))
    grammar = bench.compile({"const": 1})
    bench.compile({"const": 2})

    assert bench.accepts(grammar, "1")


def test_a_compile_beyond_the_time_limit_ends_in_an_error_for_that_request(make_bench, monkeypatch):
    bench = make_bench(GrammarLimits(compile_s=0.05))
    matcher, may_end = Builder.matcher, threading.Event()

    def held_matcher(self, grammar):
        assert may_end.wait(WAIT_S)
        return matcher(self, grammar)

    monkeypatch.setattr(Builder, "matcher", held_matcher)
    with pytest.raises(SchemaError, match=r"limit of 0\.05 s"):
        bench.compile("a+", kind="regex")
    (build,) = bench.compiler._cache.values()
    assert not build.done()

    monkeypatch.setattr(Builder, "matcher", matcher)  # what is held goes on being held
    assert compiled_at_last(bench, {"const": 1}) is not None
    assert not build.done()
    may_end.set()
    build.result(WAIT_S)


def compiled_at_last(bench, schema):
    """Compile, however often the limit is passed because the machine is busy."""
    for _ in range(200):
        with contextlib.suppress(SchemaError):
            return bench.compile(schema)
    return None


@pytest.mark.parametrize(
    ("kind", "value", "accepted", "rejected"),
    [
        ("choice", ("red", "redder", "a/b\n\"c\"\\d", "x&y~z#$^"), None, ["re", "blue", "reddest"]),
        ("choice", ["é", "日本"], None, ["e", "日"]),
        ("choice", ["", "a"], None, ["b"]),
        ("regex", "[a-c]{3,6}x?", ["abc", "abcabcx"], ["ab", "abcx1", "xabc"]),
        ("regex", "^(yes|no)$", ["yes", "no"], ["yesno", "maybe"]),
        ("lark", 'start: "a" ("b" | "cd")* "."', ["a.", "abcdb."], ["ab", "b."]),
        ("lark", 'start: greeting " " NAME\ngreeting: "hi" | "ho"\nNAME: /[A-Z][a-z]+/',
         ["hi Ada"], ["hi ada", "hey Ada"]),
        ("lark", 'start: %json {"type":"integer","minimum":0,"maximum":9}', ["7"], ["70"]),
        ("lark", 'start: "x" rest "z"\nrest[suffix="y"]: /[a-w]*/', ["xabyz"], ["xabz"]),
    ],
)  # fmt: skip
def test_other_languages_than_schemas(bench, kind, value, accepted, rejected):
    grammar = bench.compile(value, kind=kind)

    for text in value if accepted is None else accepted:
        assert bench.accepts(grammar, text), text
        assert grammar.start(bench.encode(text)).check_text(text) == "enforced"
    for text in rejected:
        assert not bench.accepts(grammar, text), text


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("choice", [], "at least one"),
        ("choice", "abc", "give a list"),
        ("choice", ["a", 5], "5 is not a text"),
        ("choice", None, "give a list"),
        ("regex", "foo**[", "unclosed character class"),
        ("regex", "(?!a)b", "look-around"),
        ("regex", "", "not empty"),
        ("regex", 5, "give a text"),
        ("regex", "a" * 5000, "the limit is 4096"),
        ("regex", "a&&[^a]" if False else "[a&&b]", "no document|empty"),
        ("lark", "start: nope", "unknown name"),
        ("lark", "", "not empty"),
        ("lark", "start: a\na: a", "no document"),
        ("lark", "start: " + "(" * 500 + '"a"' + ")" * 500, "nested"),
        ("lark", 'start: "x" rest\nrest[max_tokens=3]: /[a-z]*/', "rollback"),
        ("lark", 'start: "x" rest\nrest[stop="z"]: /[a-y]*/', "rollback"),
        ("lark", "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(5000)), "rules"),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_one_line(bench, kind, value, words):
    with pytest.raises(SchemaError, match=words) as caught:
        bench.compile(value, kind=kind)

    assert "\n" not in str(caught.value)


def test_rows_of_one_grammar_do_not_see_each_other(bench):
    grammar = bench.compile(SCHEMA)
    first, second = grammar.start(), grammar.start()
    first.advance(bench.encode('{"a":1'))

    assert second.legal_prefix(bench.encode('{"a":2}')) == len(bench.encode('{"a":2}'))
    assert second.num_tokens == 0
    assert first.is_accepting is False
