"""What Linux tells, from folders laid out as /proc and /sys are."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.conditions import linux
from harness.conditions.linux import CpuSeconds, Periods

PROC_STAT = """\
cpu  1000 100 500 9000 300 50 50 200 70 0
cpu0 600 60 300 4000 100 30 30 150 40 0
cpu1 400 40 200 5000 200 20 20 50 30 0
cpu10 999 999 999 999 999 999 999 999 0 0
intr 5 1 2
ctxt 12
"""

OLD_PROC_STAT = "cpu0 600 60 300 4000\n"

VMSTAT = """\
nr_free_pages 12
pgpgin 999
pswpin 3
pswpout 5
pswpout_zero 100
"""

PRESSURE = """\
some avg10=1.50 avg60=0.20 avg300=0.00 total=2500000
full avg10=0.00 avg60=0.00 avg300=0.00 total=900
"""

CPU_STAT_V2 = """\
usage_usec 5
nr_periods 200
nr_throttled 30
throttled_usec 1234
"""

CPU_STAT_V1 = "nr_periods 200\nnr_throttled 30\nthrottled_time 12345678\n"


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_only_the_cpus_that_may_be_used_count_and_waiting_is_idleness() -> None:
    assert linux.cpu_seconds(PROC_STAT, {0}, ticks=100) == CpuSeconds(busy_s=10.2, stolen_s=1.5)
    both = linux.cpu_seconds(PROC_STAT, {0, 1}, ticks=100)
    assert both == CpuSeconds(busy_s=17.0, stolen_s=2.0)


def test_a_kernel_that_tells_fewer_columns_is_understood() -> None:
    assert linux.cpu_seconds(OLD_PROC_STAT, {0}, ticks=100) == CpuSeconds(busy_s=9.6, stolen_s=0.0)


@pytest.mark.parametrize("text", ["", "cpu  1 2 3 4\n", "nonsense"])
def test_no_line_of_a_cpu_is_no_time(text: str) -> None:
    assert linux.cpu_seconds(text, {0}, ticks=100) is None


def test_swapped_pages_are_counted_in_and_out() -> None:
    assert linux.swapped_bytes(VMSTAT, page_bytes=4096) == 8 * 4096
    assert linux.swapped_bytes("", page_bytes=4096) is None


def test_waiting_for_memory_is_the_line_of_some_tasks() -> None:
    assert linux.memory_wait_s(PRESSURE) == 2.5
    assert linux.memory_wait_s("") is None


@pytest.mark.parametrize("text", [CPU_STAT_V2, CPU_STAT_V1], ids=["version 2", "version 1"])
def test_periods_read_alike_in_both_versions(text: str) -> None:
    assert linux.periods_of(text) == Periods(all=200, throttled=30)


def test_the_group_that_has_a_quota_is_found_around_the_own_one(tmp_path: Path) -> None:
    root = put(
        tmp_path,
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/inner/cpu.stat": "nr_periods 0\nnr_throttled 0\n",
            "sys/fs/cgroup/outer/cpu.stat": CPU_STAT_V2,
        },
    )
    assert linux.periods(root) == Periods(all=200, throttled=30)


def test_without_a_quota_there_are_no_periods(tmp_path: Path) -> None:
    assert linux.periods(put(tmp_path, {"proc/self/cgroup": "0::/\n"})) is None
    old = {"sys/fs/cgroup/cpu/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n"}
    assert linux.periods(put(tmp_path, old)) is None


def test_version_1_has_its_quota_in_a_folder_of_its_own(tmp_path: Path) -> None:
    root = put(tmp_path, {"sys/fs/cgroup/cpu/cpu.stat": CPU_STAT_V1})
    assert linux.periods(root) == Periods(all=200, throttled=30)


def test_a_group_allows_what_is_left_of_its_limit_and_what_can_be_dropped(tmp_path: Path) -> None:
    root = put(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/memory.max": "1000\n",
            "sys/fs/cgroup/job/memory.current": "700\n",
            "sys/fs/cgroup/job/memory.stat": "anon 400\ninactive_file 200\nactive_file 100\n",
            "sys/fs/cgroup/memory.max": "max\n",
            "sys/fs/cgroup/memory.current": "5000\n",
        },
    )
    assert linux.group_available_bytes(root) == 500


@pytest.mark.parametrize(("limit", "left"), [("2000", 1500), ("9223372036854771712", None)])
def test_version_1_writes_a_number_where_there_is_no_limit(
    tmp_path: Path, limit: str, left: int | None
) -> None:
    folder = "sys/fs/cgroup/memory"
    files = {
        f"{folder}/memory.limit_in_bytes": limit,
        f"{folder}/memory.usage_in_bytes": "800",
        f"{folder}/memory.stat": "total_inactive_file 300\n",
    }
    assert linux.group_available_bytes(put(tmp_path, files)) == left


def test_no_group_sets_no_limit(tmp_path: Path) -> None:
    assert linux.group_available_bytes(tmp_path) is None


@pytest.mark.parametrize(
    ("governor", "driver", "preference", "is_slow"),
    [
        ("powersave", "acpi-cpufreq", "", True),
        ("powersave", "intel_cpufreq", "", True),
        ("powersave", "intel_pstate", "balance_performance", False),
        ("powersave", "intel_pstate", "power", True),
        ("powersave", "amd-pstate-epp", "balance_power", False),
        ("schedutil", "amd-pstate", "", False),
        ("performance", "intel_pstate", "performance", False),
        ("", "", "", False),
    ],
)
def test_powersave_is_slow_but_where_the_driver_adapts_by_itself(
    tmp_path: Path, governor: str, driver: str, preference: str, is_slow: bool
) -> None:
    folder = "sys/devices/system/cpu/cpu1/cpufreq"
    names = ("scaling_governor", "scaling_driver", "energy_performance_preference")
    values = zip(names, (governor, driver, preference), strict=True)
    root = put(tmp_path, {f"{folder}/{name}": f"{text}\n" for name, text in values if text})

    found = linux.scaling(root, {1})
    assert (found.governor, found.driver, found.preference) == (governor, driver, preference)
    assert found.is_slow == is_slow


def test_one_slow_cpu_is_told(tmp_path: Path) -> None:
    files = {
        f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor": governor
        for cpu, governor in enumerate(("performance", "performance", "powersave"))
    }
    assert linux.scaling(put(tmp_path, files), {0, 1, 2}).is_slow
    assert not linux.scaling(tmp_path, {0, 1}).is_slow
    assert linux.scaling(tmp_path / "none", {0}).governor == ""


def test_the_clock_is_that_of_the_cpu_the_main_thread_is_on(tmp_path: Path) -> None:
    stat = "7 (a b) R 1 " + " ".join(str(value) for value in range(5, 53))
    assert linux.present_cpu(stat) == 39
    root = put(tmp_path, {"sys/devices/system/cpu/cpu39/cpufreq/scaling_cur_freq": "3500123\n"})
    assert linux.frequency_mhz(root, 39) == 3500.123
    assert linux.frequency_mhz(root, 38) is None
    assert linux.present_cpu("") is None


def test_heat_events_of_cores_and_packages_are_counted(tmp_path: Path) -> None:
    folder = "sys/devices/system/cpu/cpu{}/thermal_throttle"
    files = {
        f"{folder.format(0)}/core_throttle_count": "3\n",
        f"{folder.format(0)}/package_throttle_count": "4\n",
        f"{folder.format(1)}/core_throttle_count": "5\n",
    }
    assert linux.heat_events(put(tmp_path, files), {0, 1}) == 12
    assert linux.heat_events(tmp_path, {0}) == 7
    assert linux.heat_events(tmp_path, {2}) is None


LAPTOP = {
    "AC/type": "Mains",
    "AC/online": "0",
    "BAT0/type": "Battery",
    "BAT0/status": "Discharging",
}
MOUSE = {"hid/type": "Battery", "hid/status": "Discharging", "hid/scope": "Device"}
USB_C = {"ucsi/type": "USB", "ucsi/online": "1"}


@pytest.mark.parametrize(
    ("supplies", "expected"),
    [
        (LAPTOP, True),
        (LAPTOP | {"AC/online": "1", "BAT0/status": "Charging"}, False),
        (LAPTOP | {"AC/online": "1", "BAT0/status": "Discharging"}, False),
        (LAPTOP | USB_C | {"BAT0/status": "Full"}, False),
        (MOUSE, None),
        (MOUSE | {"AC/type": "Mains", "AC/online": "1"}, False),
        ({}, None),
    ],
    ids=["battery", "mains", "mains, weak", "usb-c", "a mouse", "desktop with a mouse", "nothing"],
)
def test_a_machine_is_on_battery_when_no_mains_is_on(
    tmp_path: Path, supplies: dict[str, str], expected: bool | None
) -> None:
    files = {f"sys/class/power_supply/{name}": f"{text}\n" for name, text in supplies.items()}

    assert linux.on_battery(put(tmp_path, files)) is expected


def test_the_power_profile_is_read_where_there_is_one(tmp_path: Path) -> None:
    assert linux.power_mode(tmp_path) == ""
    put(tmp_path, {"sys/firmware/acpi/platform_profile": "low-power\n"})
    assert linux.power_mode(tmp_path) == "low-power"
