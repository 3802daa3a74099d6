"""A side is a child process that runs a checkout's own engine: the tiny model in this one's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import DownloadError, FmError
from engine.models.load import load_model
from harness.base.child import PROTOCOL
from harness.base.side import Side, SideError
from harness.sampling import Sampling
from harness.targets.in_process import InProcess
from harness.trials.target import CannotRunError
from tests.harness import jobs
from tests.harness.jobs import PEOPLE, cell_of, ids, job_of, measured

ROOT = Path(__file__).parents[3]
CHAT = replace(jobs.CHAT, digest="of the chat")
"""A side knows workloads by their digests."""


@pytest.fixture(scope="module")
def side() -> Iterator[Side]:
    opened = Side("base", ROOT, "in-process", lambda line: None)
    opened.open("tiny-thinking")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def here() -> Iterator[InProcess]:
    opened = InProcess(load=load_model, folder_of=lambda name: Path())
    opened.open("tiny-thinking")
    yield opened
    opened.close()


def test_it_says_of_the_model_what_this_process_says(side: Side, here: InProcess) -> None:
    assert side.open("tiny-thinking") == here.open("tiny-thinking")


@pytest.mark.parametrize(
    ("cell", "workload"),
    [("serial+spec+grammar@draft_budgets=fixed", PEOPLE), ("batch4", CHAT)],
    ids=["document", "batch"],
)
def test_a_trial_on_a_side_is_the_trial_of_its_code(
    side: Side, here: InProcess, cell: str, workload: object
) -> None:
    job = job_of(cell_of(cell), workload, count=4, max_tokens=12)
    side.check(job.cell, job.workload)
    there, own = side.run(job, lambda count: None), here.run(job, lambda count: None)
    assert ids(there) == ids(own)
    assert there.accepts == own.accepts
    assert [row.conformance for row in measured(there)] == [
        row.conformance for row in measured(own)
    ]
    exact = ("steps", "positions", "mask_calls", "host_syncs")
    assert {name: there.trial.counters[name] for name in exact} == {
        name: own.trial.counters[name] for name in exact
    }
    assert there.trial.peak_rss_bytes
    assert there.trial.trial_id == job.trial.trial_id


def test_its_errors_are_told_as_one_line_and_it_goes_on(side: Side) -> None:
    cell = cell_of("serial")
    with pytest.raises(FmError, match="warp") as error:
        side.open("warp")
    assert len(str(error.value).splitlines()) == 1
    side.open("tiny-thinking")
    job = job_of(cell, CHAT, count=1, max_tokens=4)
    with pytest.raises(SideError, match="base: temperature is 'hot'"):
        side.run(replace(job, sampling=Sampling(temperature="hot")), lambda count: None)
    assert measured(side.run(job, lambda count: None))


def test_a_child_that_was_killed_costs_one_trial(side: Side) -> None:
    assert side.pid is not None
    before = side.pid
    os.kill(before, signal.SIGKILL)
    job = job_of(cell_of("serial"), CHAT, count=1, max_tokens=4)
    runs = []
    for _ in range(2):
        try:
            runs.append(side.run(job, lambda count: None))
        except SideError as error:
            assert "base side ended" in str(error)  # noqa: PT017  # it may be noticed or not
    assert runs
    assert side.pid != before


SCRIPT = """
import json, sys
answers = iter({answers})
for line in sys.stdin:
    for answer in answers:
        print(json.dumps(answer), flush=True)
        if "note" not in answer:
            break
"""


def stub(root: Path, code: str) -> Side:
    """Return a side whose checkout holds nothing but this child."""
    package = root / "harness" / "base"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "child.py").write_text(code)
    return Side("base", root, "in-process", lambda line: None)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param({"root": "/elsewhere"}, "runs the fm of /elsewhere", id="root"),
        pytest.param({"protocol": 0}, "speaks version 0 of the trial protocol", id="protocol"),
    ],
)
def test_a_child_of_other_code_or_another_protocol_is_refused(
    tmp_path: Path, answer: dict[str, object], message: str
) -> None:
    told = {"done": {"root": str(tmp_path.resolve()), "protocol": PROTOCOL, **answer}}
    other = stub(tmp_path, SCRIPT.format(answers=[told]))
    with pytest.raises(SideError, match=message):
        other.open("tiny-thinking")
    assert other.pid is None


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("cannot-run", CannotRunError), ("download", DownloadError), ("bug", SideError)],
)
def test_errors_of_a_side_keep_what_a_run_treats_them_as(
    tmp_path: Path, kind: str, expected: type[FmError]
) -> None:
    begun = {"done": {"root": str(tmp_path.resolve()), "protocol": PROTOCOL}}
    failed = {"error": "not here", "kind": kind}
    other = stub(tmp_path, SCRIPT.format(answers=[begun, {"note": "wait"}, failed]))
    with pytest.raises(expected, match="not here") as error:
        other.open("tiny-thinking")
    assert type(error.value) is expected
    other.close()


@pytest.mark.parametrize(("told", "expected"), [({}, False), ({"takes_turns": True}, True)])
def test_a_child_that_says_nothing_of_turns_knows_none(
    tmp_path: Path, told: dict[str, object], expected: bool
) -> None:
    begun = {"done": {"root": str(tmp_path.resolve()), "protocol": PROTOCOL, **told}}
    opened = {"done": {"model": {"name": "m"}}}
    other = stub(tmp_path, SCRIPT.format(answers=[begun, opened]))
    other.open("m")
    assert other.takes_turns is expected
    other.close()


def test_a_child_that_writes_no_text_is_ended(tmp_path: Path) -> None:
    """A reader that gave up would leave everyone waiting for an answer."""
    code = "import os, time; os.write(1, bytes([255, 10])); time.sleep(600)"
    other = stub(tmp_path, code)
    with pytest.raises(SideError, match="base side ended"):
        other.open("tiny-thinking")


def test_what_is_importable_here_is_importable_on_a_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages may come from PYTHONPATH; the checkout goes before them."""
    extra = tmp_path / "extra"
    (extra / "harness").mkdir(parents=True)
    (extra / "harness" / "__init__.py").write_text("raise RuntimeError('the wrong one')")
    (extra / "only_here.py").write_text("WORD = 'found'")
    monkeypatch.setenv("PYTHONPATH", str(extra))
    other = stub(tmp_path / "checkout", "import only_here; raise RuntimeError(only_here.WORD)")
    with pytest.raises(SideError, match="RuntimeError: found"):
        other.open("tiny-thinking")


def test_a_child_that_cannot_start_says_why(tmp_path: Path) -> None:
    other = stub(tmp_path, "raise RuntimeError('no luck')")
    with pytest.raises(SideError, match="base side ended: RuntimeError: no luck"):
        other.open("tiny-thinking")


def test_a_side_that_closes_leaves_no_process(side: Side) -> None:
    """The last test of the module: the side is closed behind it."""
    pid = side.pid
    assert pid is not None
    side.close()
    side.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
