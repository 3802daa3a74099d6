"""The target `http`: `fm serve` children of the tiny model, and the rows of the local target."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import psutil
import pytest

from engine.config import EngineConfig
from engine.errors import FmError
from engine.models.load import load_model
from engine.models.registry import pull
from harness.cells.cell import CellKind
from harness.cells.name import CellName
from harness.report.attribution import step_time
from harness.running.run import interruptible
from harness.sampling import Sampling
from harness.serve_flags import ENGINE_FLAGS, engine_flags
from harness.store import ModelRow, RequestRow
from harness.targets.http import FmServer, HttpTarget
from harness.targets.in_process import InProcess
from harness.trials.target import Parting
from harness.workloads.workload import Workload
from tests.harness.jobs import (
    CATALOGUE,
    CHAT,
    PEOPLE,
    cell_of,
    ids,
    job_of,
    measured,
    run,
)
from tests.waiting import WAIT_S

CELLS = (
    ("serial", CHAT),
    ("batch4", CHAT),
    ("spec", CHAT),
    ("batch4+spec", CHAT),
    ("batch4+spec@routed", CHAT),
    ("grammar", PEOPLE),
    ("batch4+grammar", PEOPLE),
    ("batch4+spec+grammar", PEOPLE),
)

LONG = 600
"""Most tokens of replies that have to last."""


@pytest.fixture(scope="module")
def local() -> Iterator[InProcess]:
    opened = InProcess(load=load_model, folder_of=pull)
    opened.open("tiny-thinking")
    yield opened
    opened.close()


def open_again(target: HttpTarget) -> None:
    target.open("tiny-thinking")
    for name, chosen in CELLS:
        target.check(cell_of(name), chosen)


@pytest.fixture(scope="module")
def target() -> Iterator[HttpTarget]:
    opened = HttpTarget(lambda line: None)
    open_again(opened)
    yield opened
    opened.close()


def server_of(target: HttpTarget) -> FmServer:
    (server,) = target.servers.values()
    return server


def test_a_model_is_looked_at_without_its_weights_and_is_the_same_row(
    target: HttpTarget, local: InProcess
) -> None:
    assert target.open("tiny-thinking") == local.open("tiny-thinking")
    assert isinstance(target.open("tiny-thinking"), ModelRow)


@pytest.mark.parametrize(("cell", "chosen"), CELLS, ids=[name for name, _ in CELLS])
def test_rows_are_those_of_the_local_target(
    target: HttpTarget, local: InProcess, cell: str, chosen: object
) -> None:
    """Ids, text, counts, lanes and drafts at temperature 0; times and the reason differ."""
    workload = PEOPLE if chosen is PEOPLE else CHAT
    ours, theirs = (run(item, cell, workload, max_tokens=40) for item in (target, local))
    assert ids(ours) == ids(theirs)
    kept = ("prompt_id", "phase", "status", "finish_reason", "prompt_tokens", "text")
    kept += ("completion_tokens", "count_source", "cached_tokens", "lane_taken", "sampling")
    kept += ("conformance", "conformance_detail", "field_accuracy", "error")
    for one, other in zip(measured(ours), measured(theirs), strict=True):
        assert [getattr(one, name) for name in kept] == [getattr(other, name) for name in kept]
        assert one.lane_reason
        assert (one.drafted is None) == (other.drafted is None)
        if one.completion_tokens:
            assert 0 < (one.ttft_s or 0) <= (one.last_token_s or 0) <= (one.e2e_s or 0)
    assert ours.trial.status == "done"
    assert ours.trial.lane_taken == cell_of(cell).lane_taken
    assert ours.trial.tokens == theirs.trial.tokens
    assert len(target.servers) == 1


def talkative(local: InProcess) -> Workload:
    """The two prompts with the longest replies: one is still answered when the other one comes."""
    record = run(local, "serial", count=len(CHAT.prompts), max_tokens=LONG)
    lengths = {row.prompt_id: row.completion_tokens or 0 for row in measured(record)}
    prompts = sorted(CHAT.prompts, key=lambda prompt: -lengths[prompt.id])
    return replace(CHAT, prompts=tuple(prompts[:2]))


def test_sums_of_decode_steps_come_from_the_server(target: HttpTarget, local: InProcess) -> None:
    record = run(target, "serial")
    decoded = sum(max(0, (row.completion_tokens or 0) - 1) for row in measured(record))
    assert record.trial.aggregate_tokens == decoded
    assert record.trial.aggregate_s == pytest.approx(record.trial.step_s)
    assert 0 < (record.trial.aggregate_s or 0) < (record.trial.wall_s or 0)
    assert record.trial.peak_mlx_bytes
    assert record.trial.peak_rss_bytes
    assert record.trial.peak_rss_bytes > 2**25

    full = run(target, "batch2", talkative(local), count=2, max_tokens=LONG).trial
    assert 0 < (full.aggregate_tokens or 0) <= (full.tokens or 0)
    assert 0 < (full.aggregate_s or 0) <= (full.step_s or 0)

    masked = run(target, "grammar", PEOPLE).trial
    assert masked.mask_tokens
    assert 0 < (masked.mask_s or 0) < (masked.step_s or 0)
    told = step_time([masked])
    assert told is not None
    assert all(told.parts_s[part] > 0 for part in told.parts_s if part != "draft")
    assert masked.weight_bytes == record.trial.weight_bytes
    assert record.trial.weight_bytes
    assert record.trial.kv_token_bytes


def test_what_nobody_tells_is_absent_and_never_nought(target: HttpTarget) -> None:
    record = run(target, "batch4+spec+grammar", PEOPLE)
    assert record.trial.replay_tokens is None
    assert all(row.illegal_drafts is None for row in measured(record))
    assert all(row.drafted is None for row in measured(run(target, "serial")))


def test_drafts_are_told_by_position() -> None:
    """By a cell that drafts whatever a step costs on the machine of the test."""
    with closing(HttpTarget(lambda line: None)) as target:
        target.open("tiny-thinking")
        record = run(target, "batch4+spec@draft_budgets=fixed", max_tokens=40)
    assert record.accepts
    drafted = sum(row.drafted or 0 for row in measured(record))
    assert drafted == sum(point.drafted for point in record.accepts) > 0


def test_the_client_tells_of_itself(target: HttpTarget) -> None:
    trial = run(target, "serial").trial
    assert trial.retries == 0
    assert (trial.client_delay_s or 0) > 0
    assert 0 < (trial.client_stream_s or 0) <= (trial.wall_s or 0) * 1.01


def test_warm_up_is_stored_once_for_a_cell_on_a_workload(target: HttpTarget) -> None:
    records = [run(target, "batch3", count=3) for _ in range(2)]
    phases = [[row.phase for row in record.requests] for record in records]
    assert phases == [["warmup"] * 3 + ["measured"] * 3, ["measured"] * 3]


def test_sampled_replies_draw_with_the_seeds_of_the_local_target(
    target: HttpTarget, local: InProcess
) -> None:
    sampling = Sampling(temperature=0.9, seed=5)
    ours, theirs = (run(item, "batch4", sampling=sampling) for item in (target, local))
    assert ids(ours) == ids(theirs)
    assert [row.seed for row in measured(ours)] == [row.seed for row in measured(theirs)]
    assert measured(ours)[0].sampling == {"temperature": 0.9}


def test_a_parting_is_judged_by_a_model_that_is_loaded_only_then(target: HttpTarget) -> None:
    row = measured(run(target, "serial"))[0]
    assert target.judge_model is None
    true = row.token_ids or ()
    parting = Parting(
        trial_id="t",
        reference="serial",
        cell=cell_of("spec"),
        workload=CHAT,
        prompt=CHAT.prompts[0],
        max_tokens=24,
        reply=(*true[:2], (true[2] + 1) % 256, *true[3:]),
        expected=true,
        reply_ended=row.finish_reason == "stop",
        expected_ended=row.finish_reason == "stop",
    )
    assert target.judge(parting)[0].position == 2
    assert target.judge_model is not None


def test_a_server_that_dies_in_a_trial_fails_it_with_its_rows_and_the_next_one_has_another(
    target: HttpTarget,
) -> None:
    before = ids(run(target, "serial"))
    first = server_of(target).process
    (pid,) = first.pids

    def kill(_tokens: int) -> None:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)

    record = target.run(job_of(cell_of("serial"), max_tokens=2000), kill)
    assert record.trial.status == "failed"
    assert record.trial.reason.startswith("fm serve --model tiny-thinking ended")
    rows = measured(record)
    assert len(rows) == 4
    # So quick a model may have answered the first one before it died.
    assert all(row.status == "error" and row.error for row in rows[1:])
    assert ids(run(target, "serial")) == before
    assert server_of(target).process is not first


def test_a_server_that_is_too_small_for_a_cell_makes_way_for_a_larger_one(
    target: HttpTarget,
) -> None:
    run(target, "serial", count=1, max_tokens=4)
    small = server_of(target)
    assert (small.config.max_rows, small.config.num_draft_tokens) == (4, 7)
    record = run(target, "batch5", count=5, max_tokens=8)
    assert record.trial.lane_taken == "batch"
    assert server_of(target).config == replace(small.config, max_rows=5)
    assert not small.process.is_alive


def test_an_interrupted_trial_leaves_no_server_behind(target: HttpTarget) -> None:
    run(target, "serial", count=1, max_tokens=4)
    pids = server_of(target).process.pids
    job = job_of(cell_of("serial"), max_tokens=2000)
    with interruptible(), pytest.raises(KeyboardInterrupt):
        target.run(job, lambda _tokens: os.kill(os.getpid(), signal.SIGINT))
    target.close()
    target.close()
    assert not any(map(psutil.pid_exists, pids))
    open_again(target)


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"max_rows": 4}, ("--batch", "4")),
        (
            {"drafter": "two_model", "draft_model": "x", "num_draft_tokens": 3},
            ("--draft-kind", "two_model", "--draft-model", "x", "--num-draft-tokens", "3"),
        ),
        (
            {"kv_bits": 8, "acceptance": "rejection"},
            ("--kv-bits", "8", "--acceptance", "rejection"),
        ),
        ({"pipelined": False}, ("--no-pipelined",)),
        ({"adapters": ("a=b", "c")}, ("--adapter", "a=b", "--adapter", "c")),
        ({"drafter": "two_model", "draft_model": "x"}, ()),
    ],
    ids=str,
)
def test_settings_travel_as_flags(changes: dict[str, object], flags: tuple[str, ...]) -> None:
    """Those that draft nothing name no drafter, which `fm serve` would refuse."""
    config = EngineConfig.from_mapping(changes)
    written = engine_flags(config)
    pairs = " ".join(written)
    assert all(f in written for f in flags)
    assert len(written) == len(flags) + (0 if "max_rows" in changes else 2), pairs


def test_every_setting_has_a_flag() -> None:
    assert set(ENGINE_FLAGS.values()) == {item.name for item in fields(EngineConfig)}


def test_cells_of_other_settings_get_a_server_of_their_own(target: HttpTarget) -> None:
    first = ids(run(target, "serial", count=2))
    assert ids(run(target, "spec@two-model", count=2)) == first
    assert len(target.servers) == 2
    target.check(cell_of("spec@rejection"), CHAT)
    assert len(target.wanted) == 3, target.wanted
    target.servers.popitem()[1].close()


def test_what_the_cells_of_a_model_ask_for_is_known_when_it_is_opened_again() -> None:
    target = HttpTarget(lambda line: None)
    other = str(pull("tiny-thinking"))
    for model in ("tiny-thinking", other, "tiny-thinking"):
        target.open(model)
        if model == "tiny-thinking":
            target.check(cell_of("batch4+spec"), CHAT)
        target.check(cell_of("serial"), CHAT)
    most = {name: config.max_rows for (name, _), config in target.wanted.items()}
    assert most == {"tiny-thinking": 4, other: 1}
    target.close()
    assert not target.wanted


def test_a_model_that_cannot_be_opened_is_told_before_anything_runs() -> None:
    target = HttpTarget(lambda line: None)
    with pytest.raises(FmError):
        target.open("nonesuch")
    target.close()


def test_a_server_that_does_not_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    with pytest.raises(FmError, match="fm serve --model broken ended: fm: ") as caught:
        FmServer.start(str(tmp_path / "broken"), EngineConfig(), lambda line: None)
    assert "\n" not in str(caught.value)
    assert str(tmp_path.parent) not in str(caught.value).partition("ended")[0]


def test_the_server_of_a_peer_cell_runs_beside_ours(target: HttpTarget, local: InProcess) -> None:
    """It tells reasoning apart from text, and counts the end token, which the cell's file says."""
    expected = [row.completion_tokens for row in measured(run(local, "mlx-lm"))]
    for peer in ("mlx-lm@server", "mlx-lm+batch4@server"):
        record = run(target, peer)
        rows: list[RequestRow] = measured(record)
        assert [row.completion_tokens for row in rows] == expected
        assert all(row.status == "ok" and row.count_source == "usage" for row in rows)
        assert all(row.token_ids is None and row.cached_tokens == 0 for row in rows)
        assert record.trial.aggregate_s is None
        assert record.trial.peak_rss_bytes
    assert len(target.peers.servers.processes) == 1


def test_a_cell_that_names_a_running_server_is_asked_of_it(target: HttpTarget) -> None:
    run(target, "serial", count=1)
    url = f"{server_of(target).process.url}/v1"
    cell = CATALOGUE.get(f"{url}+batch2")
    assert cell.key == CellName(rows=2, is_peer=True, url=url)
    assert cell.kind is CellKind.PEER
    target.check(cell, PEOPLE)
    record = target.run(job_of(cell, PEOPLE, count=2), lambda tokens: None)
    texts = [row.text for row in measured(record)]
    assert texts == [row.text for row in measured(run(target, "serial", PEOPLE, count=2))]
    assert all(texts), "this workload's replies do not reason"


def test_threads_are_left_behind_by_nobody(target: HttpTarget) -> None:
    run(target, "serial", count=1)
    samplers = [item for item in threading.enumerate() if item.name == "rss-sampler"]
    for sampler in samplers:
        sampler.join(WAIT_S)
    assert not any(sampler.is_alive() for sampler in samplers)
