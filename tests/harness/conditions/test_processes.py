"""Who used the processor: families, names without arguments, and shares between two tables."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.conditions.processes import (
    ProcessTime,
    Table,
    family,
    from_proc,
    from_ps,
    from_stat,
    heaviest,
    measured_roots,
    process_table,
    table_of,
    total_s,
)

STAT = (
    "{pid} ({name}) S {parent} 1 1 0 -1 4194560 100 0 0 0 {user} {system} {ended} 0 20 0 4 0 "
    "{start} 1000000 500 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 3 0 0 0 0 0\n"
)

MAC_PS = """\
    1     0   1:02.50 launchd
  412     1 123:45.67 WindowServer
  733   412   0:00.04 Google Chrome Helper (Renderer)
  900     1   2:03:04.5 backupd
  901   900 1-02:03:04 mds_stores
"""


def stat(**values: object) -> str:
    defaults = {"pid": 7, "name": "x", "parent": 1, "user": 0, "system": 0, "ended": 0, "start": 5}
    return STAT.format(**(defaults | values))


def process(pid: int, parent: int, used_s: float, **values: object) -> ProcessTime:
    return ProcessTime(pid=pid, parent=parent, name=f"p{pid}", used_s=used_s, **values)  # type: ignore[arg-type]  # values of any field


@pytest.mark.parametrize("name", ["python3", "a b", "(sd-pam)", "x) S 1 (y", "日本"])
def test_a_name_may_hold_blanks_and_parentheses(name: str) -> None:
    read = from_stat(stat(name=name, parent=3, user=150, system=50, ended=25), ticks=100)

    assert read == ProcessTime(pid=7, parent=3, name=name, used_s=2.0, start="5", reaped_s=0.25)


@pytest.mark.parametrize("text", ["", "nonsense", "7 (x) S 1", ") ( 1 2 3"])
def test_anything_else_is_no_process(text: str) -> None:
    assert from_stat(text, ticks=100) is None


def test_what_would_move_a_cursor_is_no_part_of_a_name() -> None:
    read = from_stat(stat(name="a\x1b[2Jb\n"), ticks=100)

    assert read is not None
    assert read.name.isprintable()


def test_the_processes_of_a_folder_are_its_numbers(tmp_path: Path) -> None:
    for pid in (1, 22):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(stat(pid=pid))
    (tmp_path / "33").mkdir()
    (tmp_path / "self").mkdir()

    assert {item.pid for item in from_proc(tmp_path, ticks=100)} == {1, 22}
    assert list(from_proc(tmp_path / "none", ticks=100)) == []


def test_a_mac_tells_times_in_days_hours_minutes_and_hundredths() -> None:
    read = {item.pid: item for item in from_ps(MAC_PS, own=412, ended_s=3.0)}

    assert {pid: item.used_s for pid, item in read.items()} == {
        1: 62.5,
        412: 7425.67,
        733: 0.04,
        900: 7384.5,
        901: 93784.0,
    }
    assert read[733].name == "Google Chrome Helper (Renderer)"
    assert [item.pid for item in read.values() if item.reaped_s] == [412]
    assert list(from_ps("PID TIME\nerror", own=1, ended_s=0.0)) == []


def test_a_family_is_its_roots_and_all_below_them() -> None:
    table = table_of(process(pid, parent, 1.0) for pid, parent in ((1, 0), (2, 1), (3, 2), (4, 1)))

    assert family(table, [2]) == {2, 3}
    assert family(table, [2, 4]) == {2, 3, 4}
    assert family(table, [99]) == {99}
    assert total_s(table, frozenset({2, 3})) == 2.0


def test_a_family_with_a_ring_comes_to_an_end() -> None:
    table = table_of([process(1, 2, 1.0), process(2, 1, 1.0)])

    assert family(table, [1]) == {1, 2}


def test_the_heaviest_others_come_first_and_ours_are_not_among_them() -> None:
    first = table_of([process(1, 0, 10.0), process(2, 0, 5.0), process(3, 0, 1.0)])
    second = table_of([process(1, 0, 11.0), process(2, 0, 9.0), process(3, 0, 1.0)])

    shares = heaviest(first, second, frozenset(), window_s=2.0)
    assert [(share.pid, share.cores) for share in shares] == [(2, 2.0), (1, 0.5)]
    assert [share.pid for share in heaviest(first, second, frozenset({2}), 2.0)] == [1]


def test_a_new_process_counts_from_its_start_and_a_reused_number_is_a_new_process() -> None:
    first = table_of([process(5, 0, 100.0, start="1")])
    second = table_of([process(5, 0, 3.0, start="2"), process(6, 0, 1.0)])

    shares = heaviest(first, second, frozenset(), window_s=1.0)
    assert [(share.pid, share.cores) for share in shares] == [(5, 3.0), (6, 1.0)]


def test_children_that_end_are_their_parents_time_once() -> None:
    """A build is one process that starts many short ones."""
    first = table_of([process(1, 0, 1.0, reaped_s=50.0), process(2, 1, 7.0)])
    second = table_of([process(1, 0, 1.0, reaped_s=50.0 + 7.0 + 1.5)])

    (share,) = heaviest(first, second, frozenset(), window_s=1.0)
    assert (share.pid, share.cores) == (1, 1.5)


@pytest.mark.parametrize("reaper", [2, 1], ids=["its shell", "init"])
def test_what_a_grandchild_used_before_is_nobodys_now_whoever_reaps_it(reaper: int) -> None:
    """A shell waits for `timeout`, which waits for a program, and both end."""
    first = table_of(
        [process(1, 0, 1.0), process(2, 1, 1.0), process(3, 2, 0.5), process(4, 3, 90.0)]
    )
    reaped = {pid: 91.0 if pid == reaper else 0.0 for pid in (1, 2)}
    second = table_of(process(pid, pid - 1, 1.0, reaped_s=reaped[pid]) for pid in (1, 2))

    (share,) = heaviest(first, second, frozenset(), window_s=1.0)
    assert (share.pid, share.cores) == (reaper, 0.5)


BUSY = "while True: pass"
SECRET = "--password=hunter2"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A child of this process that computes without end."""
    command = [sys.executable, "-c", BUSY, SECRET]
    with subprocess.Popen(command, text=True) as started:
        yield started
        started.kill()


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that computes without end and does not descend from this one."""
    quiet = "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    script = (
        "import subprocess, sys;"
        f"print(subprocess.Popen([sys.executable, '-c', {BUSY!r}, {SECRET!r}], {quiet}).pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    pid = int(done.stdout)
    yield pid
    os.kill(pid, 9)


def until_used(first: Table, pid: int) -> Table:
    """Read until a process has used some processor time since the first table."""
    before = {item.pid: item.used_s for item in first.values()}
    while True:
        second = process_table()
        now = {item.pid: item.used_s for item in second.values()}
        if now[pid] > before.get(pid, 0.0) + 0.1:
            return second


def test_a_child_is_ours_and_a_stranger_is_named_without_its_arguments(
    child: subprocess.Popen[str], stranger: int
) -> None:
    first = process_table()
    until_used(first, child.pid)
    second = until_used(first, stranger)

    ours = family(second, [os.getpid()])
    assert {os.getpid(), child.pid} <= ours
    assert stranger not in ours
    shares = {share.pid: share for share in heaviest(first, second, ours, window_s=1.0)}
    assert shares[stranger].cores > 0
    assert child.pid not in shares
    assert "python" in shares[stranger].name.lower()
    told = "".join(item.name for item in second.values())
    assert SECRET not in told
    assert "/" not in shares[stranger].name


def test_a_server_on_this_machine_is_measured_and_no_other_process() -> None:
    with socket.socket() as server:
        # Nobody else gets a port that is bound, and who does not listen is no server.
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert measured_roots(f"http://127.0.0.1:{port}/v1") is None
        server.listen()
        assert measured_roots(f"http://127.0.0.1:{port}/v1") == (os.getpid(),)
        assert measured_roots(f"http://localhost:{port}/v1") == (os.getpid(),)


@pytest.mark.parametrize("target", ["in-process", "http", "http://elsewhere.example:8000/v1"])
def test_what_is_not_a_server_here_adds_no_process(target: str) -> None:
    assert measured_roots(target) == ()
