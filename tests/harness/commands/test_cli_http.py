"""`fm run --target http` as a person uses it: real processes, killed and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil

from tests.harness.command import Fm, environment, held
from tests.waiting import is_gone, wait_for

RUN = (
    *("run", "--target", "http", "--models", "tiny-thinking", "--preset", "smoke"),
    *(
        "--cells",
        "serial,grammar",
        "--workloads",
        "json-extract",
        "--blocks",
        "3",
        "--prompts",
        "1",
    ),
)


def test_a_killed_run_leaves_no_server_and_goes_on_with_the_same_target(
    tmp_path: Path, fm_here: Fm
) -> None:
    process = subprocess.Popen(
        [*held("tokens", 1), *RUN],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while (line := process.stderr.readline()) != "held\n":
        assert line, "it ended before its second trial"
    children = psutil.Process(process.pid).children(recursive=True)
    assert any("serve" in child.cmdline() for child in children)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    wait_for(lambda: all(is_gone(child.pid) for child in children))

    other = fm_here("run", "--resume", "latest", "--target", "in-process")
    assert other.code == 2
    assert "drop --target" in other.err

    resumed = fm_here("run", "--resume", "latest", "--json", "out.json")
    assert resumed.code == 0, resumed.err
    assert "starting fm serve" in resumed.err
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["environment"]["target"] == "http"
    assert report["environment"]["client"]["retries"] == 0
    cells = {cell["cell"]: cell for cell in report["cells"]}
    assert {name: cell["n_blocks"] for name, cell in cells.items()} == {
        "serial": 3,
        "serial+grammar": 3,
    }
    assert cells["serial+grammar"]["conformance"] == {
        **cells["serial+grammar"]["conformance"],
        "n": 3,
        "ok": 3,
    }
    (markdown,) = (tmp_path / "reports").glob("*.md")
    text = markdown.read_text()
    assert "--target http" in text
    assert "Client delay, at most" in text


def test_a_url_with_a_key_is_refused_without_showing_it(fm_here: Fm) -> None:
    key = fm_here("plan", "--target", "http://me:secret@127.0.0.1/v1")
    assert key.code == 2
    assert "secret" not in key.err
