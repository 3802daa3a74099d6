"""agent-replay: sessions that grow, what they cost without a prefix cache, and what one saves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from engine.models.load import LoadedModel, load_model, outline_model
from engine.models.registry import pull
from harness.planning.choices import DEFAULT_MODELS
from harness.store import TrialRecord
from harness.targets.http import HttpTarget
from harness.targets.in_process import InProcess
from harness.trials.prompting import prompt_ids, warm_up_prompts
from harness.trials.target import Target
from harness.workloads.workload import Prompt, load_workload
from tests.harness.jobs import cell_of, ids, job_of, measured, run

WORKLOAD = load_workload("agent-replay")
KEPT = "@prefix_cache_bytes=100000000"
BLOCK_TOKENS = 64
TURNS = 8
CONTEXT = 2048
"""What small models have; the default one has more."""


def sessions() -> list[list[Prompt]]:
    found: dict[str, list[Prompt]] = {}
    for item in WORKLOAD.prompts:
        found.setdefault(item.session or item.id, []).append(item)
    return list(found.values())


def test_four_sessions_of_eight_turns_grow_by_a_step_and_what_came_of_it() -> None:
    assert [len(turns) for turns in sessions()] == [TURNS] * 4
    for turns in sessions():
        assert [message["role"] for message in turns[0].messages] == ["system", "user"]
        for before, item in pairwise(turns):
            assert item.messages[: len(before.messages)] == before.messages
            added = item.messages[len(before.messages) :]
            assert [message["role"] for message in added] == ["assistant", "user"]


def test_sessions_share_nothing_with_each_other_or_with_the_warm_up() -> None:
    begins = [turns[0].messages[0]["content"] for turns in sessions()]
    begins += [item.messages[0]["content"] for item in WORKLOAD.warmup if not item.session]
    assert len({text[:40] for text in begins}) == len(begins) == 6


@pytest.fixture(scope="module")
def default_model() -> LoadedModel:
    return outline_model(DEFAULT_MODELS[0])


def test_every_prompt_and_warm_up_leaves_the_default_model_room_for_its_budget(
    default_model: LoadedModel,
) -> None:
    job = job_of(cell_of("batch4"), WORKLOAD)
    prompts = WORKLOAD.prompts + warm_up_prompts(job)
    lengths = [len(prompt_ids(default_model, WORKLOAD, item)) for item in prompts]
    assert max(lengths) + WORKLOAD.max_tokens <= CONTEXT <= (default_model.context_length or 0)


def test_a_prompt_begins_with_the_token_ids_of_the_one_before(default_model: LoadedModel) -> None:
    for turns in sessions():
        for before, item in pairwise(prompt_ids(default_model, WORKLOAD, turn) for turn in turns):
            assert item[: len(before)] == before
            assert len(item) < 2 * len(before)


@pytest.fixture(scope="module")
def local() -> Iterator[InProcess]:
    opened = InProcess(load=load_model, folder_of=pull)
    opened.open("tiny-thinking")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def http() -> Iterator[HttpTarget]:
    opened = HttpTarget(lambda line: None)
    opened.open("tiny-thinking")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def plain(local: InProcess) -> TrialRecord:
    return run(local, "serial", WORKLOAD, 3, 4)


def check_trials(target: Target, cell: str, plain: TrialRecord) -> None:
    """See what two trials of the same prompts take from the cache, and that no token changes."""
    target.check(cell_of(cell), WORKLOAD)
    for _ in range(2):
        record = run(target, cell, WORKLOAD, 3, 4)
        rows = measured(record)
        lengths = [row.prompt_tokens or 0 for row in rows]
        held = [length // BLOCK_TOKENS * BLOCK_TOKENS for length in lengths]
        assert [row.cached_tokens for row in rows] == [0, *held[:-1]]
        assert ids(record) == ids(plain)


def test_without_a_prefix_cache_every_prompt_is_computed_whole(plain: TrialRecord) -> None:
    assert [row.cached_tokens for row in measured(plain)] == [0, 0, 0]


@pytest.mark.parametrize("lane", ["serial", "batch4", "serial+spec"])
def test_a_cell_with_a_prefix_cache_computes_what_it_knows_once_a_trial(
    lane: str, local: InProcess, plain: TrialRecord
) -> None:
    check_trials(local, lane + KEPT, plain)


def test_a_server_with_a_prefix_cache_computes_what_it_knows_once_a_trial(
    http: HttpTarget, plain: TrialRecord
) -> None:
    check_trials(http, "serial" + KEPT, plain)
