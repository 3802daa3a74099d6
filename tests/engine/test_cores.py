"""Threads a matrix product may take, on machines of all sizes and loads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cores import (
    MOST_THREADS,
    blas_threads,
    cpu_quota,
    product_streams,
    threads_for,
    usable_cores,
)
from engine.errors import SettingError


@given(cores=st.integers(1, 256), load=st.floats(0, 500))
def test_there_is_always_a_thread_and_on_more_cores_a_free_core(cores: int, load: float) -> None:
    threads = threads_for(cores, load)

    assert 1 <= threads <= max(1, cores - 1)


@given(cores=st.integers(2, 256), load=st.floats(0, 500))
def test_threads_and_what_already_runs_fit_the_cores(cores: int, load: float) -> None:
    threads = threads_for(cores, load)

    assert threads == 1 or threads + load <= cores + 0.5


@given(cores=st.integers(1, 64), load=st.floats(0, 100), more=st.floats(0, 100))
def test_a_busier_machine_never_gets_more_threads(cores: int, load: float, more: float) -> None:
    assert threads_for(cores, load + more) <= threads_for(cores, load)


@pytest.mark.parametrize(
    ("cores", "load", "expected"),
    [(1, 0.0, 1), (2, 0.0, 1), (4, 0.2, 3), (4, 2.0, 2), (4, 9.0, 1), (8, 0.0, 7)],
)
def test_known_machines(cores: int, load: float, expected: int) -> None:
    assert threads_for(cores, load) == expected


@pytest.fixture
def free_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("FM_BLAS_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_the_rule_is_capped_and_bounded_by_what_the_user_gave_openmp(
    free_environment: pytest.MonkeyPatch,
) -> None:
    free_environment.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    free_environment.setattr("engine.cores.usable_cores", lambda: 64)
    assert blas_threads() == MOST_THREADS

    free_environment.setenv("OMP_NUM_THREADS", "2")
    assert blas_threads() == 2

    free_environment.setenv("FM_BLAS_THREADS", "5")
    assert blas_threads() == 5


@pytest.mark.parametrize(
    ("cores", "name", "value", "streams"),
    [
        (1, "", "", 1),
        (2, "", "", 2),
        (64, "", "", 2),
        (2, "FM_BLAS_THREADS", "1", 1),
        (2, "OMP_NUM_THREADS", "1", 1),
        (2, "FM_BLAS_THREADS", "4", 2),
    ],
)
def test_a_large_product_is_shared_where_there_is_a_second_core_and_nobody_forbids_it(
    free_environment: pytest.MonkeyPatch, cores: int, name: str, value: str, streams: int
) -> None:
    free_environment.setattr("engine.cores.usable_cores", lambda: cores)
    if name:
        free_environment.setenv(name, value)
    assert product_streams() == streams


@pytest.mark.parametrize("value", ["0", "65", "-1", "two", "1.5", "²"])
def test_a_wrong_number_of_threads_is_named(
    free_environment: pytest.MonkeyPatch, value: str
) -> None:
    free_environment.setenv("FM_BLAS_THREADS", value)

    with pytest.raises(SettingError, match=f"FM_BLAS_THREADS is '{value}'"):
        blas_threads()


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        ("max 100000\n", "max 100000\n", None),
        ("150000 100000\n", "max 100000\n", 1.5),
        ("800000 100000\n", "200000 100000\n", 2.0),
    ],
    ids=["no limit", "own limit", "limit of the group around it"],
)
def test_the_tightest_quota_of_the_unified_hierarchy_counts(
    tmp_path: Path, inner: str, outer: str, expected: float | None
) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/jobs/mine\n")
    write(tmp_path, "sys/fs/cgroup/jobs/mine/cpu.max", inner)
    write(tmp_path, "sys/fs/cgroup/jobs/cpu.max", outer)

    assert cpu_quota(tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", None), ("50000", 0.5), ("300000", 3.0)])
def test_the_quota_of_the_older_hierarchy_counts(
    tmp_path: Path, quota: str, expected: float | None
) -> None:
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", f"{quota}\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")

    assert cpu_quota(tmp_path) == expected


needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="this system has no scheduling mask"
)


@needs_affinity
def test_hardware_threads_of_one_core_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        path = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        write(tmp_path, path, siblings)

    assert usable_cores(tmp_path) == 2


@needs_affinity
@pytest.mark.parametrize(("quota", "expected"), [("50000", 1), ("250000", 2), ("900000", 4)])
def test_a_quota_below_the_mask_counts_in_whole_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, "sys/fs/cgroup/cpu.max", f"{quota} 100000")

    assert usable_cores(tmp_path) == expected
