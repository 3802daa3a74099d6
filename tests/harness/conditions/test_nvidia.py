"""What an NVIDIA GPU tells, from lines in the form in which nvidia-smi writes them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from harness.conditions.nvidia import Gpu, gpu_index, gpu_of, other_apps, read_gpu

APPS = """\
1234, /usr/bin/python3
2345, /opt/my server/bin/serve --token /secret/hunter2
99999, [Not Found]
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1980, 41, 97, 0x0000000000000000\n", (1980.0, 41.0, 97.0, ())),
        ("345, 30, 0, 0x0000000000000001", (345.0, 30.0, 0.0, ())),
        ("1500, 70, 100, 0x0000000000000004", (1500.0, 70.0, 100.0, ())),
        ("1200, 88, 100, 0x0000000000000060", (1200.0, 88.0, 100.0, ("heat",))),
        ("600, 60, 100, 0x0000000000000088", (600.0, 60.0, 100.0, ("hardware", "power"))),
        ("[N/A], 50, [N/A], [N/A]", (None, 50.0, None, ())),
    ],
    ids=["at work", "idle", "at its power cap", "hot", "braked", "told in part"],
)
def test_a_line_becomes_clock_heat_load_and_slowdowns(
    line: str, expected: tuple[float | None, float, float | None, tuple[str, ...]]
) -> None:
    gpu = gpu_of(line, ())

    assert gpu is not None
    assert (gpu.clock_mhz, gpu.temperature_c, gpu.busy_pct) == expected[:3]
    words = tuple(dict.fromkeys(word.split(" ")[0] for word in gpu.slowdowns))
    assert words == expected[3]


@pytest.mark.parametrize("line", ["No devices were found\n", "1, 2\n"])
def test_anything_else_is_no_gpu(line: str) -> None:
    assert gpu_of(line, ()) is None


def test_others_on_the_gpu_are_named_without_path_and_arguments() -> None:
    assert other_apps(APPS, ours={1234}, visible={1234, 2345}) == ("my, pid 2345",)
    assert other_apps(APPS, ours=set(), visible={1234}) == ("python3, pid 1234",)


def test_a_number_that_means_nothing_here_may_be_our_own() -> None:
    assert other_apps(APPS, ours=set(), visible=set()) == ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", "0"), ("3,1", "3"), ("GPU-1a2b-3c", "GPU-1a2b-3c"), ("-1", "0"), ("; rm", "0")],
)
def test_the_gpu_is_the_first_that_may_be_seen(value: str, expected: str) -> None:
    assert gpu_index(value) == expected


SMI = """\
#!/bin/sh
case "$3" in
  *clocks_event_reasons*) echo "Field is not valid"; exit 2;;
  *clocks_throttle_reasons*) echo "1000, 40, 5, 0x0000000000000008";;
  *compute-apps*) echo "1, /sbin/init";;
esac
"""


def test_an_older_driver_is_asked_by_the_older_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text(SMI)
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    assert read_gpu(ours={2}, visible={1, 2}) == Gpu(
        clock_mhz=1000.0,
        temperature_c=40.0,
        busy_pct=5.0,
        slowdowns=("hardware slowdown",),
        others=("init, pid 1",),
    )


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    assert read_gpu(ours=(), visible=()) is None
