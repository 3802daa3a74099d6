"""What a large run costs afterwards: seconds and memory of its reports, and of its database.

    uv run python benchmarks/archive.py [REQUESTS] [--keep FOLDER] [--parted]

Stores a run of so many requests (100,000) through EvalStore, with replies of 128 tokens that all
differ; concludes it, writes each report and judges it with `fm gate`, each in a process of its own.
Prints seconds and peak resident memory of each, and how long one trial took to be stored. Of
concluding, which a run does in its own process, only the work itself is timed, not the start. With
--parted no cell emits what its reference does and nobody judged it: the most there is to look at.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from harness import exit_codes
from harness.store import (
    AcceptRow,
    CellRow,
    EvalStore,
    ModelRow,
    RequestRow,
    RunPlan,
    RunRow,
    TrialRecord,
    TrialRow,
    WorkloadRow,
    content_hash,
    new_id,
    utc_now,
)

CELLS: dict[str, tuple[str | None, str | None]] = {
    "serial": (None, None),
    "serial@aa": ("serial", "serial"),
    "serial+spec": ("serial", "serial"),
    "serial+grammar": ("serial", None),
    "serial+spec+grammar": ("serial+grammar", "serial+grammar"),
    "batch4": ("serial", "serial"),
    "batch4+spec": ("batch4", "serial"),
    "batch4+grammar": ("batch4", "serial+grammar"),
    "batch8": ("serial", "serial"),
    "batch16": ("serial", "serial"),
}
"""Each cell with its baseline and its reference."""

PROMPTS = 100
REPLY_TOKENS = 128
FREE_CONFORMING = 0.3
JUDGED = (exit_codes.PASS, exit_codes.CORRECTNESS)
"""What fm exits with where the whole run was seen; with --parted it is the second."""
WORDS = "the of and to in is it that was for on as with his they be at one have this from".split()


def main() -> int:
    """Build the database, conclude the run, write the reports, print what each took."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("requests", type=int, nargs="?", default=100_000)
    parser.add_argument("--keep", type=Path, help="folder for the database, kept afterwards")
    parser.add_argument("--parted", action="store_true", help="no reply is its reference's")
    parser.add_argument("--conclude", type=Path, metavar="DB", help="only conclude its latest run")
    chosen = parser.parse_args()
    if chosen.conclude is not None:
        return concluded(chosen.conclude)
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "fm.db"
        if not path.exists():
            # In a process of its own: a child's peak memory begins at that of its parent.
            builder = get_context("spawn").Process(
                target=build, args=(path, chosen.requests, chosen.parted)
            )
            builder.start()
            builder.join()
            assert builder.exitcode == 0
        size = path.stat().st_size / 1e6
        print(f"{path.name}: {size:.0f} MB")
        subprocess.run([sys.executable, __file__, "--conclude", str(path)], check=True)
        fm = ["-m", "harness.cli"]
        for form in ("md", "html", "json"):
            output = folder / f"report.{form}"
            command = [*fm, "report", "latest", "--format", form, "--db", str(path)]
            told(f"fm report --format {form}", [*command, "-o", str(output)])
        told("fm gate", [*fm, "gate", "latest", "--db", str(path)])
    return 0


def concluded(path: Path) -> int:
    """Conclude the latest run of a database, with its reports beside it."""
    # Imported here alone: the peak memory of a child begins at that of its parent.
    from harness.running.conclusion import Places, conclude
    from harness.running.run import Outcome

    before, spent = time.perf_counter(), time.process_time()
    at_start = resource.getrusage(resource.RUSAGE_SELF)
    with EvalStore.open_existing(path) as store:
        places = Places(db=path, reports=path.parent / "reports")
        ended = conclude(store, store.find_run("latest").run_id, Outcome("finished"), places)
    assert ended.exit_code in JUDGED, ended.notes
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"concluding: {time.perf_counter() - before:.2f} s ({time.process_time() - spent:.2f} s of "
        f"processor), peak {megabytes(usage):.0f} MB, {megabytes(at_start):.0f} MB before it"
    )
    return 0


def build(path: Path, requests: int, is_parted: bool) -> None:
    """Store a run of so many requests."""
    blocks = max(1, round(requests / (len(CELLS) * PROMPTS)))
    plan = plan_of(blocks)
    rng = random.Random(0)
    spent = []
    with EvalStore.open(path) as store:
        store.begin_run(plan)
        names = {cell.content_hash: cell.name for cell in plan.cells}
        for trial in plan.trials:
            record = record_of(trial, names[trial.cell], rng, is_parted)
            start = time.perf_counter()
            outcome = store.record_trial(record)
            spent.append(time.perf_counter() - start)
            assert outcome.saved, outcome.reason
    spent.sort()
    print(
        f"{len(plan.trials)} trials of {PROMPTS} requests stored: median "
        f"{1000 * spent[len(spent) // 2]:.1f} ms, longest {1000 * spent[-1]:.1f} ms"
    )


def told(what: str, arguments: Sequence[str]) -> None:
    """Run Python with these arguments in a child process and print what that took."""
    before = time.perf_counter()
    child = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    usage = wait_for(child)
    seconds = time.perf_counter() - before
    assert child.returncode in JUDGED, f"{what} ended with {child.returncode}"
    print(
        f"{what}: {seconds:.2f} s ({usage.ru_utime + usage.ru_stime:.2f} s of "
        f"processor), peak {megabytes(usage):.0f} MB"
    )


def megabytes(usage: resource.struct_rusage) -> float:
    """Return the peak of resident memory."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def wait_for(child: subprocess.Popen[bytes]) -> resource.struct_rusage:
    """Wait for a child and return its own resource usage, which `resource` gives for all only."""
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage


def plan_of(blocks: int) -> RunPlan:
    """Return the plan of a run of all cells, this many times."""
    model = ModelRow(name="toy", dtype="float32")
    workload = WorkloadRow(content_hash="toy", name="toy", num_prompts=PROMPTS, is_constrained=True)
    cells = tuple(map(cell_of, CELLS))
    run = RunRow(
        run_id=new_id(),
        created_at=utc_now(),
        tag="feature-matrix[toy]",
        command="benchmarks/archive.py",
        preset="quote",
        seed=0,
        blocks=blocks,
        prompts=PROMPTS,
        max_tokens=REPLY_TOKENS,
        environment={"host": "toy"},
        status="running",
    )
    trials = tuple(
        TrialRow(
            trial_id=new_id(),
            run_id=run.run_id,
            block=block,
            order_in_block=order,
            model=model.key,
            workload=workload.content_hash,
            cell=cell.content_hash,
            lane_declared=cell.lane,
        )
        for block in range(blocks)
        for order, cell in enumerate(cells)
    )
    return RunPlan(run=run, models=(model,), workloads=(workload,), cells=cells, trials=trials)


def cell_of(name: str) -> CellRow:
    """Return the row of a cell, read from its name."""
    words = name.partition("@")[0].split("+")
    rows = next((int(word[5:]) for word in words if word.startswith("batch")), 1)
    baseline, reference = CELLS[name]
    return CellRow(
        content_hash=content_hash({"name": name}),
        name=name,
        lane="batch" if rows > 1 else "serial",
        max_rows=rows,
        features=tuple(word for word in ("spec", "fill", "grammar") if word in words),
        kind="aa" if name.endswith("@aa") else "perf",
        expected_lane="batch" if rows > 1 else "serial",
        baseline=baseline,
        reference=reference,
    )


def record_of(trial: TrialRow, cell: str, rng: random.Random, is_parted: bool) -> TrialRecord:
    """Return what a trial of this cell might have seen."""
    speed = 20.0 * (1.4 if "spec" in cell else 1.0) * (3.0 if "batch" in cell else 1.0)
    tokens = PROMPTS * REPLY_TOKENS
    done = replace(
        trial,
        status="done",
        started_at=utc_now(),
        finished_at=utc_now(),
        wall_s=tokens / speed * rng.uniform(1.0, 1.1),
        tokens=tokens,
        aggregate_tokens=tokens,
        aggregate_s=tokens / speed * rng.uniform(0.97, 1.03),
        decode_steps=tokens,
        peak_rss_bytes=1_200_000_000,
        lane_taken=trial.lane_declared,
    )
    accepts = [
        AcceptRow(trial_id=trial.trial_id, position=place, drafted=900 - place, accepted=500)
        for place in range(4 if "spec" in cell else 0)
    ]
    requests = tuple(requests_of(trial, cell, rng, is_parted))
    return TrialRecord(trial=done, requests=requests, accepts=tuple(accepts))


def requests_of(
    trial: TrialRow, cell: str, rng: random.Random, is_parted: bool
) -> Iterator[RequestRow]:
    """Yield one request for each prompt; replies of a block are the same unless they part."""
    has_spec, is_constrained = "spec" in cell, "grammar" in cell
    for position in range(PROMPTS):
        alike = cell if is_parted else is_constrained
        same = random.Random(f"{trial.block} {position} {alike}")
        first = rng.uniform(0.05, 0.3)
        conforms = is_constrained or same.random() < FREE_CONFORMING
        yield RequestRow(
            trial_id=trial.trial_id,
            position=position,
            prompt_id=f"p{position}",
            finish_reason="stop",
            prompt_tokens=40,
            completion_tokens=REPLY_TOKENS,
            cached_tokens=0,
            ttft_s=first,
            ttft_visible_s=first,
            last_token_s=first + REPLY_TOKENS / 20 * rng.uniform(0.97, 1.03),
            e2e_s=first + REPLY_TOKENS / 20 * 1.05,
            text=" ".join(same.choices(WORDS, k=REPLY_TOKENS)),
            token_ids=tuple(same.choices(range(49152), k=REPLY_TOKENS)),
            lane_taken=trial.lane_declared,
            sampling={"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0},
            drafted=120 if has_spec else None,
            accepted=70 if has_spec else None,
            target_calls=58 if has_spec else None,
            illegal_drafts=0 if has_spec else None,
            conformance="ok" if conforms else "not-json",
            conformance_detail="" if conforms else f"no document begins at {position}",
            field_accuracy=0.5,
        )


if __name__ == "__main__":
    sys.exit(main())
