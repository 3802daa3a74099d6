"""The schema zoo: what is pinned holds on the tiny model, and what breaks it is seen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from engine.grammar.compile import GrammarCompiler
from engine.request import Constraint, ConstraintKind
from engine.testing import tiny_model
from harness.workloads.strict import WorkloadError
from harness.workloads.workload import load_workload
from harness.workloads.zoo_entries import ZOO, Entry, Refusal, read_zoo
from harness.zoo import audit
from harness.zoo.carried import read_carried
from harness.zoo.judges import Judges
from harness.zoo.prompts import prompt_lines
from harness.zoo.visits import Visitor
from harness.zoo.walks import Walk, Walker

MODEL = tiny_model()
ENTRIES = read_zoo()
FAMILIES = list(dict.fromkeys(entry.family for entry in ENTRIES))
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}


def visitor(num_walks: int = 1, max_tokens: int = 400) -> Visitor:
    rng = np.random.default_rng(0)
    walker = Walker(MODEL.tokenizer, MODEL.vocab_size, MODEL.eos_ids, rng, max_tokens)
    return Visitor(GrammarCompiler.of(MODEL), MODEL.tokenizer, walker, num_walks)


def entry(schema: Any = DIGIT, **changes: Any) -> Entry:
    known = Entry(family="f", name="n", about="a digit", schema=schema)
    return replace(known, **changes)


def constraint(schema: Any) -> Constraint:
    return Constraint(kind=ConstraintKind.JSON_SCHEMA, value=schema)


def failures(**changes: Any) -> str:
    return " ".join(visitor().visit(entry(**changes)).failures)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_pinned_of_every_schema_holds(family: str) -> None:
    visits = audit.visit_all(MODEL, [item for item in ENTRIES if item.family == family], 1, 0)
    assert {visit.name: visit.failures for visit in visits if visit.failures} == {}
    assert all(visit.is_refused or visit.mask_s for visit in visits)


def test_schemas_of_others_are_read_where_they_are_installed() -> None:
    visits = audit.visit_all(MODEL, read_carried(), 1, 0)
    assert len(visits) == 5
    assert [visit.failures for visit in visits] == [[]] * 5


def test_the_zoo_is_large_and_each_schema_comes_with_documents_of_both_kinds() -> None:
    compiled = [item for item in ENTRIES if item.refused is None]
    assert len(compiled) >= 300
    assert sum(item.refused is not None for item in ENTRIES) >= 30
    open_to_all = [item.name for item in compiled if not item.invalid]
    assert open_to_all == ["boolean-true", "empty-schema"]
    assert all(item.valid for item in compiled)


def test_prompts_are_those_of_the_entries_and_every_schema_has_one() -> None:
    workload = load_workload(ZOO)
    written = [json.loads(line)["id"] for line in prompt_lines(ENTRIES)]
    assert [prompt.id for prompt in workload.prompts] == written
    folder = Path(__file__).parents[3] / "workloads" / ZOO
    assert (folder / "prompts.jsonl").read_text("utf-8").splitlines() == list(prompt_lines(ENTRIES))
    assert workload.must_compile == len(workload.schemas) == len(written)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"valid": (12,)}, "is not valid"),
        ({"invalid": (3,)}, "valid for both"),
        ({"invalid": (3,)}, "is legal"),
        ({"valid": (3,), "stricter": {"0": "why"}}, "legal, though listed"),
        ({"schema": {"not": {}}}, "is refused"),
        ({"refused": Refusal(pointer="", keyword="not")}, "compiles, though"),
        (
            {"schema": {"not": {}}, "refused": Refusal(pointer="/x", keyword="not")},
            "is refused for ('', 'not'), not for ('/x', 'not')",
        ),
    ],
)
def test_what_is_pinned_wrong_is_told(changes: dict[str, Any], words: str) -> None:
    assert words in failures(**changes)


def test_a_document_the_grammar_does_not_allow_must_be_listed() -> None:
    blanks = entry({"type": "array", "items": DIGIT, "maxItems": 2}, valid=([1, 2],))
    assert visitor().visit(blanks).failures == []
    unordered = entry(
        {"type": "object", "properties": {"a": DIGIT, "b": DIGIT}, "additionalProperties": False},
        valid=({"b": 1, "a": 2},),
    )
    assert "not legal, and not listed" in " ".join(visitor().visit(unordered).failures)
    listed = replace(unordered, stricter={"0": "keys come in the order of the schema"})
    visit = visitor().visit(listed)
    assert (visit.failures, visit.stricter, visit.valid) == ([], 1, 1)


def test_a_walk_that_a_validator_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judges, "fault", lambda self, document: "no")
    assert "a walk is not valid: no" in failures()


def test_walks_depend_on_the_seed_and_end_at_their_budget() -> None:
    grown = entry({"type": "string", "minLength": 40})
    cut = visitor(3, max_tokens=5).visit(grown)
    assert (cut.walks, cut.cut, cut.failures) == (0, 3, [])
    free = {"type": "array", "items": DIGIT, "maxItems": 5}
    compiler = GrammarCompiler.of(MODEL)

    def texts(seed: int) -> list[str]:
        found = visitor().walker
        found.rng = np.random.default_rng(seed)
        return [found.walk(compiler.compile(constraint(free))).text for _ in range(5)]

    assert texts(1) == texts(1)
    assert texts(1) != texts(2)


def test_what_the_final_check_catches_is_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = entry({"type": "object", "additionalProperties": DIGIT, "maxProperties": 2})
    grammar = GrammarCompiler.of(MODEL).compile(constraint(twice.schema))
    state, text = grammar.start(), '{"a":1,"a":2}'
    state.advance(MODEL.tokenizer.encode(text))
    walk = Walk((), text, True, "", state.check_text(text), ())
    monkeypatch.setattr(Walker, "walk", lambda self, grammar: walk)
    visit = visitor(3).visit(twice)
    assert (visit.caught, visit.walks, visit.failures) == (3, 0, [])
    monkeypatch.setattr(Walker, "walk", lambda self, grammar: replace(walk, text='{"a":1}'))
    assert "a valid walk fails the final check" in visitor().visit(twice).failures[0]


def test_the_audit_exits_with_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "zoo.json"
    arguments = ["--model", "tiny-thinking", "--walks", "1", "--no-carried", "--json", str(path)]
    few = [item for item in ENTRIES if item.family in ("numbers", "refusals")]
    monkeypatch.setattr(audit, "read_zoo", lambda: few)
    done = CliRunner().invoke(audit.main, arguments)
    assert done.exit_code == 0, done.output
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["schemas"] == len(few)
    assert found["stricter_pct"] == 0
    assert found["mask_us"]["p50"] > 0
    monkeypatch.setattr(audit, "read_zoo", lambda: [entry(valid=(12,))])
    done = CliRunner().invoke(audit.main, arguments)
    assert (done.exit_code, "FAIL  n: valid[0] is not valid" in done.output) == (3, True)
    monkeypatch.setattr(audit, "read_zoo", list)
    assert CliRunner().invoke(audit.main, arguments).exit_code == 6


def test_a_line_that_is_no_entry_is_named(tmp_path: Path) -> None:
    (tmp_path / "zoo").mkdir()
    path = tmp_path / "zoo" / "f.jsonl"
    good = {"name": "a", "about": "b", "schema": {}}
    for line, words in (
        ("{", "f.jsonl:2"),
        ("[1]", r"f.jsonl:2: the whole is \[1\]"),
        (json.dumps({**good, "name": "c", "surplus": 1}), "surplus"),
        (json.dumps(good), "rename one"),
    ):
        path.write_text(f"{json.dumps(good)}\n{line}\n", encoding="utf-8")
        with pytest.raises(WorkloadError, match=words):
            read_zoo(tmp_path)
