"""The command line as a person uses it: the tiny model, and a folder of its own."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import mlx.core as mx
import pytest

import engine.flight
import harness.cli
from engine.models.registry import pull
from harness.exit_codes import CORRECTNESS
from harness.judging.law import MAX_DRAWS
from tests.harness.command import FM, Done, Fm, environment, fm, held
from tests.waiting import WAIT_S

TINY = ("--models", "tiny-thinking", "--preset", "smoke")


def strict_json(text: str) -> Any:
    def refuse(word: str) -> None:
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


@dataclass
class Run:
    """A finished run in its folder."""

    folder: Path
    done: Done
    report: dict[str, Any]


DRAFTS = "serial+spec+grammar@draft_budgets=fixed"
"""A cell that drafts whatever a step costs on the machine of the test."""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The eight core cells, a routing check and a peer on two workloads."""
    folder = tmp_path_factory.mktemp("core")
    cells = (
        f"serial,batch4,grammar,batch4+grammar,spec,{DRAFTS},batch4+spec,batch4+spec+grammar,"
        "batch4+spec@routed,mlx-lm"
    )
    chosen = ("--cells", cells, "--workloads", "short-chat,json-extract", "--json", "out.json")
    done = fm(folder, "run", *TINY, *chosen)
    assert done.code == 0, done.err + done.out
    return Run(folder, done, strict_json((folder / "out.json").read_text()))


def test_a_run_says_where_everything_is_and_writes_it(core: Run) -> None:
    assert "database: results/fm.db" in core.done.out
    assert "json: out.json" in core.done.out
    (report,) = (core.folder / "reports").glob("*.md")
    assert f"report: reports/{report.name}" in core.done.out
    page = report.with_suffix(".html")
    assert f"report: reports/{page.name}" in core.done.out
    assert page.read_bytes().startswith(b"<!doctype html>")
    assert core.report["run_id"] in report.name
    assert (core.folder / "results" / "fm.db").is_file()


def test_progress_goes_to_standard_error_as_plain_lines(core: Run) -> None:
    lines = [line for line in core.done.err.splitlines() if not line.startswith(BEFORE_TRIALS)]
    assert lines[0].startswith("1/")
    assert "left" in lines[0]
    assert all("/" in line.split()[0] for line in lines), core.done.err
    assert "\x1b" not in core.done.err + core.done.out


def test_the_tables_hold_every_cell_with_its_canonical_name(core: Run) -> None:
    for name in ("serial+spec+grammar", "batch4+spec+grammar", "mlx-lm"):
        assert name in core.done.out
    assert "tiny-thinking on json-extract" in core.done.out


def test_every_gate_passes_and_says_what_it_saw(core: Run) -> None:
    gates = {gate["name"]: gate for gate in core.report["gates"]}
    assert set(gates) == {"conformance", "identity", "routing", "completeness"}
    assert {gate["status"] for gate in gates.values()} == {"pass"}
    assert all(gate["n"] > 0 for gate in gates.values())


def test_the_json_holds_each_cell_with_its_baseline_and_no_missing_conformance(core: Run) -> None:
    cells = {(cell["workload"], cell["cell"]): cell for cell in core.report["cells"]}
    both = cells["json-extract", DRAFTS]
    assert both["baseline"] == "serial+grammar"
    assert both["grammar_overhead_pct"] is not None
    assert both["mask_us_per_token"] > 0
    assert both["acceptance"]["drafted"] > 0
    for (_, name), cell in cells.items():
        assert cell["tok_s"] is not None or "@routed" in name
        has_grammar = "grammar" in name
        assert (cell["conformance"] is not None) >= has_grammar
        if has_grammar:
            assert cell["conformance"]["n"] == cell["conformance"]["ok"] >= 1
    assert cells["short-chat", "mlx-lm"]["lane_taken"] in {"serial", ""}
    assert cells["short-chat", "batch4+spec@routed"]["lane_taken"] == "serial"


def test_pairs_that_cannot_run_are_told_with_the_reason(core: Run) -> None:
    assert "skipped tiny-thinking short-chat serial+grammar" in core.done.out
    assert "has no constraint" in core.done.out


def test_a_report_is_written_again_byte_for_byte_under_any_locale(core: Run) -> None:
    ascii_only = {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for form in ("md", "html"):
        (first,) = (core.folder / "reports").glob(f"*.{form}")
        again = fm(core.folder, "report", "--format", form, "-o", "again", **ascii_only)
        assert again.code == 0, again.err
        assert (core.folder / "again").read_bytes() == first.read_bytes()
    shown = fm(core.folder, "report", core.report["run_id"][:20], **ascii_only)
    assert shown.code == 0, shown.err
    as_json = fm(core.folder, "report", "latest", "--format", "json")
    assert strict_json(as_json.out) == core.report


def test_stored_requests_hold_what_the_cells_said(core: Run) -> None:
    database = sqlite3.connect(core.folder / "results" / "fm.db")
    (unplanned,) = database.execute(
        "SELECT count(*) FROM trials WHERE status = 'pending'"
    ).fetchone()
    (warm,) = database.execute("SELECT count(*) FROM requests WHERE phase = 'warmup'").fetchone()
    (bad,) = database.execute(
        "SELECT count(*) FROM requests WHERE phase = 'measured' AND status <> 'ok'"
    ).fetchone()
    database.close()
    assert unplanned == bad == 0
    assert warm > 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "--cells", "warp"], "unknown cell 'warp'; known: batchN"),
        (["run", "--cells", "serial,,spec"], "empty part"),
        (["run", "--cells", ""], "empty part"),
        (["run", "--cells", "batch129"], "between 1 and 128"),
        (["run", "--cells", "serial@zz"], "unknown cell 'serial@zz'; known: batch4"),
        (["run", "--models", "nonesuch"], "unknown model 'nonesuch'; known: "),
        (["run", "--models", "no/such/folder"], "check the path"),
        (["run", "--workloads", "nonesuch"], "unknown workload 'nonesuch'; known: "),
        (["run", "--preset", "huge"], "known: gate, quick, quote, smoke"),
        (["run", "--blocks", "0"], "blocks is 0; it must be between 1 and 1000"),
        (["run", "--blocks", "many"], "'many' is not a valid integer"),
        (["run", "--temperature", "-1"], "temperature is -1.0; it must be between 0 and 100"),
        (["run", "--temperature", "nan"], "temperature is nan"),
        (["run", "--cells", "grammar@rejection"], "for cells of ours with spec"),
        (["run", "--prompts", "1000"], "give --prompts 1 to"),
        (["run", "--target", "htp"], "unknown target 'htp'; known: http, "),
        (
            ["run", "--target", "http://localhost:1/v1"],
            "http://localhost:1/v1/models: nothing answers there; start the server",
        ),
        (["run", "--resume", "latest", "--cells", "serial"], "drop --cells"),
        (["run", "--resume", "latest", "--force"], "drop --force"),
        (["run", "--resume", "latest"], "there is no database"),
        (["run", "--warp"], "No such option"),
        (["warp"], "No such command"),
        (["report"], "there is no database"),
        (["report", "--format", "pdf"], "unknown format 'pdf'; known: html, json, md"),
        (["plan", "--cells", "serial+batch2"], "names the lanes"),
        (["pull", "nonesuch"], "unknown model 'nonesuch'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_with_the_value_and_exit_2(
    tmp_path: Path, fm_here: Fm, arguments: list[str], expected: str
) -> None:
    done = fm_here(*arguments)
    assert done.code == 2
    assert expected in done.err
    assert done.err.startswith("fm: ")
    assert len(done.err.splitlines()) == 1
    assert not done.out
    assert not (tmp_path / "results").exists()


def test_a_damaged_model_is_one_line_and_exit_2(tmp_path: Path, fm_here: Fm) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03\x00")
    done = fm_here("run", "--models", "broken.gguf")
    assert done.code == 2
    assert "broken.gguf" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_json_file_that_is_a_folder_is_told_before_the_run(tmp_path: Path, fm_here: Fm) -> None:
    done = fm_here("run", *TINY, "--json", str(tmp_path))
    assert done.code == 2
    assert done.err == f"fm: --json names the folder {tmp_path}; name a file in it\n"


@pytest.mark.parametrize("flag", ["--db", "--out", "--json"])
def test_a_place_that_cannot_be_written_is_told_before_the_run(
    tmp_path: Path, fm_here: Fm, flag: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    done = fm_here("run", *TINY, flag, "file/below")
    assert done.code == 2
    assert "file" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_model_that_cannot_be_reached_is_skipped_with_the_reason(tmp_path: Path) -> None:
    done = fm(
        tmp_path,
        *("run", "--preset", "smoke", "--cells", "serial", "--workloads", "short-chat"),
        *("--models", "hf:nobody/nothing"),
        HF_HUB_OFFLINE="1",
        HF_HOME=str(tmp_path / "hub"),
    )
    assert done.code == 6, done.err
    assert "skipped hf:nobody/nothing short-chat serial" in done.out
    assert "INCOMPLETE" in done.out


def test_two_models_are_one_matrix(tmp_path: Path, fm_here: Fm) -> None:
    (tmp_path / "copy").symlink_to(pull("tiny-thinking"))
    done = fm_here(
        *("run", "--preset", "smoke", "--cells", "spec", "--workloads", "short-chat"),
        *("--models", "tiny-thinking,path:copy", "--json", "out.json", "--max-tokens", "8"),
    )
    assert done.code == 0, done.err
    cells = strict_json((tmp_path / "out.json").read_text())["cells"]
    assert {(cell["model"], cell["cell"]) for cell in cells} == {
        (model, cell)
        for model in ("tiny-thinking", "path:copy")
        for cell in ("serial", "serial+spec")
    }


LONG = (
    *("run", "--models", "tiny-thinking", "--cells", "spec", "--workloads", "short-chat,long-form"),
    *("--blocks", "5", "--prompts", "3", "--max-tokens", "100", "--db", "fm.db"),
)


AGAIN = ("run", "--resume", "latest", "--db", "fm.db")


def started(
    folder: Path, num_trials: int, arguments: tuple[str, ...] = LONG
) -> subprocess.Popen[str]:
    """Start or go on with a longer run that stands still in the trial behind so many."""
    command = [*held("tokens", num_trials), *arguments]
    child = subprocess.Popen(
        command, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True
    )
    for _ in range(num_trials):
        assert "tok/s" in next_trial(child.stderr)
    assert next_trial(child.stderr) == "held\n"
    return child


BEFORE_TRIALS = ("opening ", "machine: ")


def next_trial(stream: IO[str] | None) -> str:
    """Read the next line of progress; models are opened and the machine is told of before."""
    assert stream is not None
    line = stream.readline()
    return next_trial(stream) if line.startswith(BEFORE_TRIALS) else line


def done_trials(folder: Path) -> dict[str, str]:
    database = sqlite3.connect(folder / "fm.db")
    rows = database.execute(
        "SELECT trial_id, finished_at FROM trials WHERE status = 'done'"
    ).fetchall()
    database.close()
    return dict(rows)


def test_a_run_that_was_killed_and_killed_again_goes_on_where_it_was(
    tmp_path: Path, fm_here: Fm
) -> None:
    before: dict[str, str] = {}
    for arguments in (LONG, AGAIN):
        child = started(tmp_path, 3, arguments)
        child.kill()
        child.communicate(timeout=WAIT_S)
        now = done_trials(tmp_path)
        assert before.items() <= now.items()
        assert len(now) == len(before) + 3
        before = now
    resumed = fm_here(*AGAIN)
    assert resumed.code == 0, resumed.err
    after = done_trials(tmp_path)
    assert len(after) == 20
    assert before.items() <= after.items()
    assert f"{20 - len(before)}/{20 - len(before)} " in resumed.err


FIXED = "@rejection@draft_budgets=fixed"  # the same tokens are drawn on every machine
REJECTION = (
    *("run", *TINY, "--cells", f"spec+grammar{FIXED},batch2+spec{FIXED}"),
    *("--workloads", "json-extract", "--prompts", "3", "--db", "fm.db", "--json", "out.json"),
)


def gates_of(folder: Path) -> dict[str, tuple[str, int]]:
    report = strict_json((folder / "out.json").read_text())
    return {gate["name"]: (gate["status"], gate["n"]) for gate in report["gates"]}


def test_a_sampled_rejection_cell_is_judged_by_its_law(tmp_path: Path, fm_here: Fm) -> None:
    done = fm_here(*REJECTION, "--temperature", "0.5")
    assert done.code == 0, done.err + done.out
    gates = gates_of(tmp_path)
    status, num_draws = gates["law"]
    assert status == "pass"
    assert num_draws > 100
    assert gates["identity"][0] == "pass"
    (report,) = (tmp_path / "reports").glob("*.md")
    assert f"at most {MAX_DRAWS} are judged" in report.read_text()
    assert "--temperature 0.5" in report.read_text()


def test_a_greedy_rejection_cell_is_judged_by_ids(tmp_path: Path, fm_here: Fm) -> None:
    done = fm_here(*REJECTION)
    assert done.code == 0, done.err + done.out
    gates = gates_of(tmp_path)
    assert "law" not in gates
    assert gates["identity"] == ("pass", 4 * 3)


def test_an_engine_that_leaves_the_law_fails_the_run(
    tmp_path: Path, fm_here: Fm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.flight, "law", lambda scores, draws: scores.astype(mx.float32))
    done = fm_here(*REJECTION, "--temperature", "0.3")
    assert done.code == CORRECTNESS, done.out
    assert gates_of(tmp_path)["law"][0] == "fail"
    assert "the tokens do not come from the law" in done.out


def test_a_run_is_not_resumed_under_other_kill_switches(tmp_path: Path, fm_here: Fm) -> None:
    short = ("run", *TINY, "--cells", "serial", "--workloads", "short-chat", "--db", "fm.db")
    assert fm_here(*short, FM_REJECTION="0", FM_PIPELINE="0").code == 0
    with sqlite3.connect(tmp_path / "fm.db") as raw:
        raw.execute("UPDATE runs SET status = 'interrupted', exit_code = 130")
    raw.close()
    refused = fm_here(*AGAIN, FM_PIPELINE="0", FM_SPEC="0")
    assert refused.code == 2
    assert "began with FM_REJECTION=0 and without FM_SPEC=0" in refused.err
    assert "set FM_REJECTION=0 and unset FM_SPEC to go on" in refused.err
    assert len(refused.err.splitlines()) == 1
    assert fm_here(*AGAIN, FM_PIPELINE="0", FM_REJECTION="0").code == 0


def test_a_bug_of_ours_is_no_regression(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(harness.cli.cli, "main", broken)
    with pytest.raises(SystemExit) as end:
        harness.cli.main(["gate"])
    assert end.value.code == 6
    assert "RuntimeError: a bug" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda item: item.name)
def test_an_interrupted_run_says_so_and_then_how_to_go_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    child = subprocess.Popen(
        [*held("tokens", 1), *LONG, "--json", "out.json"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert "tok/s" in next_trial(child.stdout)
    assert next_trial(child.stdout) == "held\n"
    child.send_signal(number)
    out, _ = child.communicate(timeout=WAIT_S)
    assert child.returncode == 130
    told = json.loads((tmp_path / "out.json").read_text())
    assert (told["exit_code"], told["quotable"]) == (130, False)
    assert "serial+spec" in [cell["cell"] for cell in told["cells"]]
    assert 0 < out.index(" was interrupted") < out.index("go on with: fm run --resume ")
    assert "Traceback" not in out
    assert len(done_trials(tmp_path)) == 1


HELP = """
import sys
before = set(sys.modules)
from harness.cli import main
try:
    main(["--help"])
except SystemExit as ended:
    assert not ended.code

def tell():
    packages = {name.partition(".")[0] for name in set(sys.modules) - before}
    print(*sorted(packages - sys.stdlib_module_names), file=sys.stderr)

tell()
import harness.report, harness.store
tell()
"""


def into_full(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run a command whose standard output takes nothing; return its code and its errors."""
    if not Path("/dev/full").exists():
        pytest.skip("no device here is always full")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*FM, *arguments],
            cwd=folder,
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=3 * WAIT_S,
            check=False,
        )
    return done.returncode, done.stderr


def test_an_output_that_takes_no_more_is_one_line(core: Run) -> None:
    code, told = into_full(core.folder, "report")
    assert code == 6
    assert told.startswith("fm: the output cannot be written (")
    assert len(told.splitlines()) == 1


def test_a_verdict_does_not_depend_on_who_takes_the_output(core: Run) -> None:
    code, told = into_full(core.folder, "gate", "latest")
    assert code == fm(core.folder, "gate", "latest").code
    assert "the output cannot be written" in told


def test_the_json_of_a_plan_does_not_depend_on_who_takes_the_output(tmp_path: Path) -> None:
    code, _ = into_full(tmp_path, "plan", *TINY, "--cells", "serial", "--json", "plan.json")
    assert code == 6
    assert strict_json((tmp_path / "plan.json").read_text())["pairs"]


def test_the_help_says_of_every_command_in_one_whole_sentence_what_it_does(
    fm_here: Fm,
) -> None:
    done = fm_here("--help")

    lines = done.out.partition("Commands:\n")[2].splitlines()
    assert len(lines) == len(harness.cli.COMMANDS)
    assert [line for line in lines if not line.endswith(".") or line.endswith("..")] == []


def test_help_and_reports_load_little() -> None:
    """What they might load besides (mlx-lm, pandas, jsonschema) takes many times as long."""
    done = subprocess.run(
        [sys.executable, "-c", HELP],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=WAIT_S,
        check=True,
    )
    assert "run" in done.stdout
    of_help, of_reports = map(str.split, done.stderr.splitlines())
    assert of_help == ["click", "engine", "harness"]
    assert not {"jsonschema", "mlx_lm", "pandas", "transformers"} & set(of_reports)


def test_version_plan_models_and_doctor_answer(tmp_path: Path, fm_here: Fm) -> None:
    assert fm_here("--version").out.startswith("fm, version ")
    planned = fm_here("plan", "--cells", "grammar+spec", "--workloads", "short-chat")
    assert planned.code == 0
    assert "serial+spec+grammar" in planned.out
    assert "workload short-chat has no constraint" in planned.out
    listed = fm_here("models")
    assert "smollm2-135m" in listed.out
    assert "tiny-thinking" in listed.out
    examined = fm_here("doctor", "--json")
    assert {finding["label"] for finding in strict_json(examined.out)["findings"]} >= {"blas"}
    assert not list(tmp_path.iterdir())


def test_pull_makes_a_model_and_says_where(tmp_path: Path, fm_here: Fm) -> None:
    done = fm_here("pull", "tiny-thinking", FM_CACHE_DIR=str(tmp_path / "cache"))
    assert done.code == 0, done.err
    assert Path(done.out.strip()).joinpath("config.json").is_file()
