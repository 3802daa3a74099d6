"""Peers: mlx-lm in a child that answers with ids and times, and that always ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from mlx_lm import load, stream_generate

from engine.backend import backend_info
from engine.models.registry import pull
from harness.cells.cell import load_cells
from harness.peers.children import PeerError, PeerModel, PeerProcess, Peers, PeerWork
from harness.store import TrialRow
from harness.trials.target import TrialJob
from harness.workloads.workload import Prompt, Workload
from tests.waiting import WAIT_S, is_gone, wait_for

ROOT = Path(__file__).parents[3]
CATALOGUE = load_cells(ROOT / "cells")
PROMPTS = ((10, 20, 30), (40, 50), (60, 61, 62, 63), (70,), (80, 81))


@pytest.fixture(scope="module")
def model() -> PeerModel:
    folder = str(pull("tiny-thinking"))
    return PeerModel(folder=folder, dtype="float32", draft_folder=folder, with_blas=False)


@pytest.fixture(scope="module")
def process(model: PeerModel) -> Iterator[PeerProcess]:
    child = PeerProcess(model)
    yield child
    child.close()


def work(mode: str, rows: int = 1, max_tokens: int = 12) -> dict[str, object]:
    prompts = [list(ids) for ids in PROMPTS]
    return {
        "work": {
            "mode": mode,
            "prompts": prompts,
            "max_tokens": max_tokens,
            "rows": rows,
            "num_draft_tokens": 3,
            "is_first": True,
        }
    }


@pytest.fixture(scope="module")
def expected(model: PeerModel) -> list[list[int]]:
    """What mlx-lm says in this process."""
    loaded, tokenizer = load(model.folder)[:2]
    replies = []
    for prompt in PROMPTS:
        answers = list(stream_generate(loaded, tokenizer, list(prompt), max_tokens=12))
        replies.append([a.token for a in answers if a.finish_reason != "stop"])
    return replies


@pytest.mark.parametrize(("mode", "rows"), [("serial", 1), ("batch", 2), ("batch", 4), ("spec", 1)])
def test_every_mode_gives_the_ids_of_mlx_lm(
    process: PeerProcess, expected: list[list[int]], mode: str, rows: int
) -> None:
    answer = process.ask(work(mode, rows), WAIT_S)
    assert [reply["ids"] for reply in answer["replies"]] == expected
    assert answer["mlx_bytes"] > 0
    assert answer["rss_bytes"] > 0


def test_every_token_has_a_time_and_times_do_not_run_backwards(process: PeerProcess) -> None:
    for mode, rows in (("serial", 1), ("batch", 4), ("spec", 1)):
        for reply in process.ask(work(mode, rows), WAIT_S)["replies"]:
            times = [reply["submitted_s"], *reply["tokens_s"], reply["ended_s"]]
            assert len(reply["tokens_s"]) == len(reply["ids"])
            assert times == sorted(times)


def test_an_error_in_a_trial_is_one_line_and_the_child_goes_on(process: PeerProcess) -> None:
    with pytest.raises(PeerError, match="KeyError") as caught:
        process.ask(work("warp"), WAIT_S)
    assert "\n" not in str(caught.value)
    assert process.ask(work("serial"), WAIT_S)["replies"]


def test_a_folder_that_is_no_model_is_one_line(tmp_path: Path) -> None:
    broken = PeerModel(folder=str(tmp_path), dtype="float32", draft_folder=None, with_blas=False)
    with pytest.raises(PeerError, match="mlx-lm failed") as caught:
        PeerProcess(broken)
    assert "\n" not in str(caught.value)


def test_a_silent_child_is_stopped_when_its_time_is_over(tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(
        "import sys, time\n"
        "sys.stdin.readline(); print('{}', flush=True)\n"
        "sys.stdin.readline(); time.sleep(600)\n"
    )
    model = PeerModel(folder="", dtype="float32", draft_folder=None, with_blas=False)
    child = PeerProcess(model, command=(sys.executable, str(script)))
    with pytest.raises(PeerError, match="no answer in 0 s"):
        child.ask({}, 0.2)
    assert not psutil.pid_exists(child.pid)
    with pytest.raises(PeerError, match="mlx-lm ended"):
        child.ask({}, WAIT_S)


def test_a_child_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text("import sys\nsys.exit('out of memory')\n")
    model = PeerModel(folder="", dtype="float32", draft_folder=None, with_blas=False)
    with pytest.raises(PeerError, match="out of memory"):
        PeerProcess(model, command=(sys.executable, str(script)))


def test_the_child_dies_with_a_parent_that_is_killed(model: PeerModel) -> None:
    script = textwrap.dedent(
        """
        import sys, time
        from harness.peers.children import PeerModel, PeerProcess

        child = PeerProcess(PeerModel(
            folder=sys.argv[1], dtype="float32", draft_folder=None, with_blas=False
        ))
        print(child.pid, flush=True)
        time.sleep(600)
        """
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, model.folder], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: is_gone(pid))


@pytest.mark.parametrize("with_blas", [False, True])
def test_only_the_blas_variant_loads_our_blas(model: PeerModel, with_blas: bool) -> None:
    ours = backend_info().blas_path
    child = PeerProcess(replace(model, with_blas=with_blas))
    maps = Path(f"/proc/{child.pid}/maps")
    loaded = maps.read_text() if maps.exists() else ""
    child.close()
    if not ours or not loaded:
        pytest.skip("no BLAS of ours, or no /proc to look at")
    assert (str(Path(ours).resolve()) in loaded) == with_blas


def workload() -> Workload:
    prompts = tuple(
        Prompt(id=f"p{place}", messages=({"role": "user", "content": "?"},))
        for place in range(len(PROMPTS) + 1)
    )
    return Workload(
        name="chat",
        kind="text",
        description="questions",
        max_tokens=12,
        prompts=prompts[1:],
        warmup=prompts[:1],
        schemas={},
        must_compile=0,
        allow_truncation=True,
        digest="d",
    )


def job(cell: str, num_prompts: int) -> TrialJob:
    chat = workload()
    return TrialJob(
        trial=TrialRow(
            trial_id="t", run_id="r", block=0, order_in_block=0, model="m", workload="w", cell="c"
        ),
        cell=CATALOGUE.get(cell),
        workload=chat,
        prompts=chat.prompts[:num_prompts],
        max_tokens=12,
    )


def test_a_trial_becomes_rows_like_those_of_our_own_lanes(
    model: PeerModel, expected: list[list[int]]
) -> None:
    peers, counted = Peers(), []
    try:
        record = peers.run(
            job("mlx-lm+batch4", 4),
            PeerWork(model=model, prompts=PROMPTS[:4], warm_up=(PROMPTS[4],)),
            counted.append,
        )
        again = peers.run(
            job("mlx-lm+spec", 4),
            PeerWork(model=model, prompts=PROMPTS[:4], warm_up=(PROMPTS[4],)),
            counted.append,
        )
    finally:
        pids = [child.pid for child in peers.processes.values()]
        peers.close()
    assert [list(row.token_ids or ()) for row in record.requests] == expected[:4]
    assert record.trial.status == "done"
    assert record.trial.lane_taken == "batch"
    assert record.trial.tokens == sum(map(len, expected[:4])) == counted[0]
    assert 0 < (record.trial.aggregate_tokens or 0) <= sum(map(len, expected[:4])) - 4
    assert record.trial.peak_rss_bytes
    for row in record.requests:
        assert 0 < (row.ttft_s or 0) <= (row.last_token_s or 0) <= (row.e2e_s or 0)
        assert row.drafted is None
        assert row.count_source == "engine"
    assert all(row.accepted for row in again.requests)
    assert len(pids) == 1
    assert not any(map(psutil.pid_exists, pids))


def test_answers_are_plain_json(process: PeerProcess) -> None:
    text = json.dumps(process.ask(work("serial"), WAIT_S))
    assert "NaN" not in text
    assert "Infinity" not in text
