"""Rows with adapters in every lane: as if each were in the weights, and others untouched."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.errors import ModelError, RequestError, SettingError
from engine.loop import Engine
from engine.models.merge import merge_adapter
from engine.oracle import Oracle
from engine.request import Constraint, ConstraintKind, Request, SamplingParams
from engine.testing import ScriptedDrafter, request_for, tiny_model, write_adapter

SCHEMA = Constraint(
    kind=ConstraintKind.JSON_SCHEMA,
    value={
        "type": "object",
        "properties": {"k": {"enum": ["aa", "ab", "b"]}, "n": {"type": "integer", "maximum": 99}},
        "required": ["k", "n"],
        "additionalProperties": False,
    },
)
LANES = {
    "serial": {},
    "serial, not pipelined": {"pipelined": False},
    "serial, tiny chunks": {"prefill_chunk": 3},
    "batch": {"max_rows": 4},
    "serial+spec": {"num_draft_tokens": 3, "draft_budgets": "fixed"},
    "batch+spec": {
        "max_rows": 4,
        "num_draft_tokens": 3,
        "draft_budgets": "fixed",
        "spec_batching": "batched",
    },
    "batch+spec two_model": {
        "max_rows": 4,
        "num_draft_tokens": 3,
        "draft_budgets": "fixed",
        "drafter": "two_model",
        "spec_batching": "batched",
    },
}
NAMES = ("", "one", "two", "one", "", "two")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        "one": write_adapter(folder / "one", tiny_model(), 1),
        "two": write_adapter(folder / "two", tiny_model(), 2, rank=9, layers=("o_proj", "lm_head")),
    }


def engine_with(places: dict[str, Path], lane: str) -> Engine:
    texts = tuple(f"{name}={place}" for name, place in places.items())
    config = EngineConfig(**LANES[lane], adapters=texts)
    return Engine(tiny_model(), config, build_drafter(config, tiny_model()))


def requests(
    temperature: float = 0.0, constraint: Constraint | None = None, names: tuple[str, ...] = NAMES
) -> list[Request]:
    return [
        request_for(
            tiny_model(),
            "abcabcab" * (1 + row % 3) + "xyz"[: row % 4],
            adapter=name,
            max_tokens=24,
            temperature=temperature,
            seed=row,
            constraint=constraint,
        )
        for row, name in enumerate(names)
    ]


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("constraint", [None, SCHEMA], ids=["free", "schema"])
def test_every_row_is_the_oracles_with_its_adapter_merged(
    places: dict[str, Path], lane: str, temperature: float, constraint: Constraint | None
) -> None:
    oracle = Oracle(tiny_model(), places)
    asked = requests(temperature, constraint)

    completions = engine_with(places, lane).generate(asked)

    assert [list(c.token_ids) for c in completions] == [oracle.generate(r) for r in asked]
    if constraint is not None:
        assert {c.conformance for c in completions if c.finish_reason == "stop"} == {"enforced"}


@pytest.mark.parametrize("lane", LANES)
def test_a_row_is_the_same_alone_and_beside_other_adapters(
    places: dict[str, Path], lane: str
) -> None:
    together = engine_with(places, lane).generate(requests())
    alone = [engine_with(places, "serial").generate([request])[0] for request in requests()]

    assert [c.token_ids for c in together] == [c.token_ids for c in alone]


@pytest.mark.parametrize("lane", LANES)
def test_rows_without_an_adapter_write_what_an_engine_without_adapters_writes(
    places: dict[str, Path], lane: str
) -> None:
    with_adapters, without = engine_with(places, lane), engine_with({}, lane)
    plain = requests(names=("",) * 6)

    mixed = with_adapters.generate(requests())
    base = without.generate(plain)
    again = with_adapters.generate(plain)

    assert [c.token_ids for c in again] == [c.token_ids for c in base]
    for row, name in enumerate(NAMES):
        assert (mixed[row].token_ids == base[row].token_ids) == (name == "")


def test_drafts_of_the_base_model_are_judged_by_the_rows_own_adapter(
    places: dict[str, Path],
) -> None:
    (base,) = engine_with({}, "serial").generate([requests(names=("",))[0]])
    (own,) = engine_with(places, "serial").generate([requests(names=("one",))[0]])

    def draft(ids: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        config = EngineConfig(
            num_draft_tokens=3, draft_budgets="fixed", adapters=(f"one={places['one']}",)
        )
        drafter = ScriptedDrafter(lambda sequence: list(ids[sequence.num_emitted :]))
        (done,) = Engine(tiny_model(), config, drafter).generate([requests(names=("one",))[0]])
        return done.token_ids, done.accepted

    assert draft(base.token_ids)[0] == own.token_ids
    wrong, right = draft(base.token_ids)[1], draft(own.token_ids)[1]
    assert right > wrong


def test_two_engines_on_one_model_take_steps_in_turn_and_do_not_meet(
    places: dict[str, Path],
) -> None:
    engines = [engine_with(places, "batch"), engine_with({}, "batch"), engine_with(places, "batch")]
    asked = [requests(names=("one", "two")), requests(names=("", "")), requests(names=("two", ""))]
    ids = [[engine.submit(r) for r in each] for engine, each in zip(engines, asked, strict=True)]
    while any(engine.has_work for engine in engines):
        for engine in engines:
            engine.step()

    oracle = Oracle(tiny_model(), places)
    for engine, each, given in zip(engines, asked, ids, strict=True):
        found = [list(engine.completion(request_id).token_ids) for request_id in given]
        assert found == [oracle.generate(request) for request in each]


def test_a_replay_runs_on_the_adapter_of_its_request(places: dict[str, Path]) -> None:
    engine = engine_with(places, "serial")
    (request,) = requests(names=("one",))
    (done,) = engine.generate([request])

    assert engine.replay(request, done.token_ids).step_s
    with pytest.raises(RequestError, match="unknown adapter 'three'"):
        engine.replay(requests(names=("three",))[0], done.token_ids)


def test_an_unknown_adapter_is_refused_at_submit_and_leaves_nothing_behind(
    places: dict[str, Path],
) -> None:
    engine = engine_with(places, "batch")
    with pytest.raises(RequestError, match="unknown adapter 'three'; known: one, two"):
        engine.submit(requests(names=("three",))[0])
    assert not engine.has_work
    assert engine.stats().submitted == 0


def test_an_engine_without_adapters_names_what_to_do(places: dict[str, Path]) -> None:
    with pytest.raises(RequestError, match="unknown adapter 'one'; known: none; start the engine"):
        engine_with({}, "serial").submit(requests(names=("one",))[0])


def test_an_adapter_that_cannot_be_read_is_refused_when_the_engine_opens(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="name a folder that MLX-LM or PEFT wrote"):
        engine_with({"one": tmp_path / "none"}, "serial")


def test_a_merged_model_answers_differently_from_its_base(places: dict[str, Path]) -> None:
    merged = merge_adapter(tiny_model(), places["one"])
    request = Request(prompt_ids=(40, 41), max_tokens=24, sampling=SamplingParams())

    assert Oracle(merged).generate(request) != Oracle(tiny_model()).generate(request)


@pytest.mark.parametrize(
    ("adapters", "message"),
    [
        (("a=x", "a=y"), "the name 'a' twice"),
        (("x/a", "y/a"), "the name 'a' twice"),
        (("x/a", "a=y"), "the name 'a' twice"),
        (("",), "give NAME=FOLDER or FOLDER"),
        (("=x",), "give NAME=FOLDER or FOLDER"),
        (("a=",), "give NAME=FOLDER or FOLDER"),
        (("/",), "give NAME=FOLDER or FOLDER"),
        ("a=x", "must be a tuple of texts"),
        ((1,), "must be a tuple of texts"),
        (None, "must be a tuple of texts"),
    ],
    ids=str,
)
def test_adapters_that_cannot_be_told_apart_are_refused(adapters: object, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        EngineConfig(adapters=adapters)


def test_a_list_from_a_toml_file_is_taken() -> None:
    config = EngineConfig.from_mapping({"adapters": ["a=x", "y/b", "./c=d"]})

    assert config.adapters == ("a=x", "y/b", "./c=d")
