"""The house rules: module size and names, words that have no place, docs and pins in step."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 500
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}

PACKAGES = [
    path for folder in ("engine", "harness") for path in sorted((ROOT / folder).rglob("*.py"))
]
OTHERS = [
    path for folder in ("tests", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))
]
TEXTS = [
    *PACKAGES,
    *(path for path in OTHERS if path != Path(__file__).resolve()),
    *(path for path in (ROOT / "scripts").iterdir() if path.is_file()),
    *ROOT.glob("*.md"),
    *ROOT.glob("*.toml"),
    *ROOT.glob("requirements*.txt"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "cells").glob("*.toml"),
    *ROOT.glob(".ci/*"),
]

FORBIDDEN = {
    "an unfinished thing": r"\b(?:TODO|FIXME|XXX|HACK)\b",
    "a path of one machine": r"(?<![\w.])/(?:root|work|home|Users)/\w",
    "a package registry's host": r"\b(?:pypi\.org|pythonhosted\.org|registry\.npmjs\.org)\b",
    "code from a hub": r"trust_remote_code\s*=\s*True",
    "a type error ignored without a reason": r"# type: ignore(?:\[[\w, -]+\])?\s*$",
}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [*PACKAGES, *OTHERS], ids=named)
def test_a_module_stays_within_its_budget(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())

    assert lines <= MAX_LINES, f"{named(path)} has {lines} lines; split it by idea"


def test_a_module_is_named_after_what_it_holds() -> None:
    assert [named(path) for path in PACKAGES if path.stem in VAGUE_NAMES] == []


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what], flags=re.MULTILINE)
    found = [
        f"{named(path)}: {match.group(0)!r}"
        for path in TEXTS
        for match in pattern.finditer(path.read_text(encoding="utf-8"))
    ]

    assert found == []


def test_the_architecture_page_lists_every_module_in_its_own_words() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "modules"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


NAMED_FILE = re.compile(
    r"(?<![\w/.])(?:engine|harness|benchmarks|scripts|tests|docs|cells|workloads)/[\w./@+-]*\.\w+"
)


def test_every_file_of_the_project_that_a_text_names_is_there() -> None:
    found = {
        (named(path), match)
        for path in TEXTS
        if path.suffix in {".md", ".py"} and path not in OTHERS
        for match in NAMED_FILE.findall(path.read_text(encoding="utf-8"))
    }

    assert len(found) > 10
    assert sorted(item for item in found if not (ROOT / item[1]).exists()) == []


def test_every_module_that_the_architecture_page_speaks_of_is_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    told = re.findall(r"`([\w/]+(?:\.py|/))`", text.partition("\n## Modules\n")[0])
    places = [ROOT, ROOT / "engine", ROOT / "engine" / "server", ROOT / "harness"]

    assert len(told) > 40
    assert [name for name in told if not any((place / name).exists() for place in places)] == []


RUN_MODULE = re.compile(r"""-m[", ]+((?:engine|harness)(?:\.\w+)+)""")


def test_every_module_that_a_text_runs_is_there() -> None:
    found = {
        (named(path), match)
        for path in TEXTS
        for match in RUN_MODULE.findall(path.read_text(encoding="utf-8"))
    }

    assert len(found) > 10
    gone = [item for item in found if not (ROOT / f"{item[1].replace('.', '/')}.py").is_file()]
    assert sorted(gone) == []


@pytest.mark.parametrize("package", ["engine", "harness"])
def test_tests_lie_where_what_they_test_lies(package: str) -> None:
    tests = ROOT / "tests"
    folders = {path.parent.relative_to(tests) for path in (tests / package).rglob("test_*.py")}

    # Cases that others wrote are told by what they are about.
    assert [
        str(item) for item in folders if item.name != "cases" and not (ROOT / item).is_dir()
    ] == []


@pytest.mark.parametrize(
    "path", [path for path in OTHERS if path.parent.name == "benchmarks"], ids=named
)
def test_a_benchmark_imports_what_there_is(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            ("engine", "harness")
        ):
            module = importlib.import_module(node.module or "")
            missing = [
                item.name
                for item in node.names
                if not hasattr(module, item.name)
                and not importlib.util.find_spec(f"{node.module}.{item.name}")
            ]
            assert not missing, f"{node.module} has no {missing}"


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def direct_requirements() -> list[Requirement]:
    table = project()
    section, groups = table["project"], table["dependency-groups"]
    assert isinstance(section, dict)
    assert isinstance(groups, dict)
    lines = [*section["dependencies"], *section["optional-dependencies"]["cpu"], *groups["dev"]]
    return [Requirement(line) for line in lines]


def pins() -> list[Requirement]:
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    return [
        Requirement(line) for line in re.findall(r"^([\w.-]+==[^\\#]+?)\s*\\?$", text, re.MULTILINE)
    ]


@pytest.mark.parametrize("requirement", direct_requirements(), ids=str)
def test_every_direct_requirement_is_pinned_within_its_bounds(requirement: Requirement) -> None:
    name = canonicalize_name(requirement.name)
    found = [pin for pin in pins() if canonicalize_name(pin.name) == name]

    assert found, f"{name} is not pinned; run scripts/lock"
    for pin in found:
        version = Version(str(pin.specifier).removeprefix("=="))
        assert requirement.specifier.contains(version), f"{pin} is outdated; run scripts/lock"


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_a_package_has_one_pin_on_a_system(python: str, system: str) -> None:
    values = {"python_version": python, "python_full_version": f"{python}.1"}
    values |= {"sys_platform": system, "platform_python_implementation": "CPython"}
    here = [pin.name for pin in pins() if applies(pin.marker, values)]

    assert len(here) == len(set(here))
    assert ("mlx-cpu" in here, "mlx-metal" in here) == (system == "linux", system == "darwin")


def applies(marker: Marker | None, values: dict[str, str]) -> bool:
    return marker is None or marker.evaluate(values)


def test_the_pins_are_hashed_and_name_no_host() -> None:
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    entries = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]

    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text
    assert "index" not in text


def test_readme_begins_with_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    (\S.*)$", text, flags=re.MULTILINE)

    assert commands[:2] == [
        "python3 -m pip install uv && uv run fm run --cells serial,spec+grammar",
        "python3 -m pip install uv && uv run pytest",
    ]


def test_ci_runs_the_checks_and_the_tests_of_the_readme() -> None:
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

    assert "step scripts/check" in steps
    assert "step scripts/test" in steps
    assert 'uv run pytest "$@"' in (ROOT / "scripts" / "test").read_text(encoding="utf-8")
