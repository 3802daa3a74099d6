"""What macOS tells, from outputs in the form in which its commands write them."""

from __future__ import annotations

import pytest

from harness.conditions import macos

ON_MAINS = """\
Now drawing from 'AC Power'
 -InternalBattery-0 (id=1234567)\t100%; charged; 0:00 remaining present: true
"""
ON_BATTERY = """\
Now drawing from 'Battery Power'
 -InternalBattery-0 (id=1234567)\t81%; discharging; 5:12 remaining present: true
"""
DESKTOP = "Now drawing from 'AC Power'\n"
ON_UPS = "Now drawing from 'UPS Power'\n"

SETTINGS = """\
System-wide power settings:
Currently in use:
 standby              1
 Sleep On Power Button 1
 hibernatefile        /var/vm/sleepimage
{line}
 displaysleep         10
"""

COOL_APPLE = """\
Note: No thermal warning level has been recorded
Note: No performance warning level has been recorded
Note: No CPU power status has been recorded
"""
COOL_INTEL = """\
Note: No thermal warning level has been recorded
Note: No performance warning level has been recorded
2026-03-04 05:06:07 +0100 CPU Power notify
\tCPU_Scheduler_Limit \t= 100
\tCPU_Available_CPUs \t= 12
\tCPU_Speed_Limit \t= 100
"""
HOT_INTEL = COOL_INTEL.replace("CPU_Speed_Limit \t= 100", "CPU_Speed_Limit \t= 58")

VM_STAT = """\
Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                              123456.
Pages stored in compressor:               12345.
Pageins:                                9999999.
Pageouts:                                 88888.
Swapins:                                     20.
Swapouts:                                     5.
"""

MEMORY = """\
The system has 34359738368 (2097152 pages with a page size of 16384).
System-wide memory free percentage: {percent}%
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [(ON_MAINS, False), (DESKTOP, False), (ON_BATTERY, True), (ON_UPS, True), ("", None)],
    ids=["mains", "desktop", "battery", "a supply that may end", "nothing"],
)
def test_the_supply_is_what_is_drawn_from(text: str, expected: bool | None) -> None:
    assert macos.on_battery(text) is expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (" lowpowermode         0", "automatic"),
        (" lowpowermode         1", "low-power"),
        (" powermode            0", "automatic"),
        (" powermode            1", "low-power"),
        (" powermode            2", "high-power"),
        (" lowpowermode         1\n powermode            1", "low-power"),
        (" womp                 1", ""),
    ],
)
def test_the_power_mode_has_two_or_three_values(line: str, expected: str) -> None:
    assert macos.power_mode(SETTINGS.format(line=line)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("com.apple.system.thermalpressurelevel 0\n", "nominal"),
        ("com.apple.system.thermalpressurelevel 1\n", "moderate"),
        ("com.apple.system.thermalpressurelevel 2\n", "heavy"),
        ("com.apple.system.thermalpressurelevel 4", "sleeping"),
        ("com.apple.system.thermalpressurelevel 9", ""),
        ("com.apple.system.thermalpressurelevel: Failed with code 1", ""),
        ("", ""),
    ],
)
def test_thermal_pressure_is_a_word(text: str, expected: str) -> None:
    assert macos.thermal_pressure(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [(COOL_APPLE, None), (COOL_INTEL, 100), (HOT_INTEL, 58), ("", None)],
    ids=["apple", "intel", "hot intel", "nothing"],
)
def test_the_speed_limit_is_the_lowest_that_was_recorded(text: str, expected: int | None) -> None:
    assert macos.speed_limit_pct(text) == expected


def test_swapped_pages_are_counted_and_pages_of_files_are_not() -> None:
    assert macos.swapped_bytes(VM_STAT) == 25 * 16384
    assert macos.swapped_bytes("") is None
    assert macos.swapped_bytes(VM_STAT.partition("Swapouts")[0]) is None


def test_free_memory_is_a_percentage() -> None:
    assert macos.free_pct(MEMORY.format(percent=57)) == 57
    assert macos.free_pct("memory_pressure: illegal option") is None


def test_a_system_without_the_commands_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    assert macos.read_power() == macos.Power(
        on_battery=None, mode="", thermal_pressure="", speed_limit_pct=None
    )
