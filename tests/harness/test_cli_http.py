"""`fm run --target http` as a person uses it: real processes, killed and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
FM = (sys.executable, "-m", "harness.cli")
RUN = (
    *("run", "--target", "http", "--models", "tiny-thinking", "--preset", "smoke"),
    *("--cells", "serial,grammar", "--workloads", "json-extract", "--blocks", "3"),
)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
TIMEOUT_S = 300


def fm(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FM, *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_a_killed_run_leaves_no_server_and_goes_on_with_the_same_target(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*FM, *RUN], cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("1/6 "):
            break
    children = psutil.Process(process.pid).children(recursive=True)
    assert any("serve" in child.cmdline() for child in children)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    deadline_s = time.monotonic() + 30
    while any(child.is_running() for child in children) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert not any(child.is_running() for child in children)

    other = fm(tmp_path, "run", "--resume", "latest", "--target", "in-process")
    assert other.returncode == 2
    assert "drop --target" in other.stderr

    resumed = fm(tmp_path, "run", "--resume", "latest", "--json", "out.json")
    assert resumed.returncode == 0, resumed.stderr
    assert "starting fm serve" in resumed.stderr
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
        "n": 6,
        "ok": 6,
    }
    (markdown,) = (tmp_path / "reports").glob("*.md")
    text = markdown.read_text()
    assert "--target http" in text
    assert "Client delay, at most" in text


def test_a_url_with_a_key_is_refused_without_showing_it(tmp_path: Path) -> None:
    key = fm(tmp_path, "plan", "--target", "http://me:secret@127.0.0.1/v1")
    assert key.returncode == 2
    assert "secret" not in key.stderr
