"""A cached folder appears whole or not at all, whoever makes it and however that ends."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine.errors import DownloadError
from engine.models.store import Product, obtain, read_product, store_dir, stored
from tests.waiting import WAIT_S, wait_for

RECIPE = "test-1"


def product() -> Product:
    return Product(digest="d" * 64, source="test:x", recipe=RECIPE)


def write_one(folder: Path) -> Product:
    (folder / "weights.bin").write_bytes(b"abc")
    return product()


def staging() -> list[Path]:
    return list((store_dir() / ".staging").glob("*"))


def test_a_made_folder_is_found_again_and_made_once(model_cache: Path) -> None:
    made: list[Path] = []

    def make(folder: Path) -> Product:
        made.append(folder)
        return write_one(folder)

    assert obtain("m/a", RECIPE, make) == obtain("m/a", RECIPE, make)
    assert len(made) == 1
    folder = stored("m/a", RECIPE)
    assert folder is not None
    assert (folder / "weights.bin").read_bytes() == b"abc"
    assert read_product(folder) == product()
    assert staging() == []


def test_a_maker_that_fails_leaves_nothing_behind(model_cache: Path) -> None:
    def fail(folder: Path) -> Product:
        (folder / "half").write_bytes(b"x")
        raise DownloadError("no")

    with pytest.raises(DownloadError, match="no"):
        obtain("m/a", RECIPE, fail)
    assert stored("m/a", RECIPE) is None
    assert staging() == []
    assert obtain("m/a", RECIPE, write_one).is_dir()


@pytest.mark.parametrize("harm", ["truncate", "delete", "manifest"])
def test_a_damaged_folder_is_made_again(model_cache: Path, harm: str) -> None:
    folder = obtain("m/a", RECIPE, write_one)
    if harm == "truncate":
        (folder / "weights.bin").write_bytes(b"a")
    elif harm == "delete":
        (folder / "weights.bin").unlink()
    else:
        (folder / "fm.json").write_text("{")
    assert stored("m/a", RECIPE) is None
    obtain("m/a", RECIPE, write_one)
    assert (folder / "weights.bin").read_bytes() == b"abc"


def test_another_recipe_makes_the_folder_again(model_cache: Path) -> None:
    folder = obtain("m/a", RECIPE, write_one)

    def make_new(folder: Path) -> Product:
        (folder / "weights.bin").write_bytes(b"new")
        return Product(digest="", source="", recipe="test-2")

    assert obtain("m/a", "test-2", make_new) == folder
    assert (folder / "weights.bin").read_bytes() == b"new"
    assert staging() == []


MAKE_SLOWLY = """
import sys, time
from pathlib import Path
import engine
from engine.models.store import Product, obtain
log = Path(sys.argv[1])
def make(folder):
    with log.open("a") as stream:
        stream.write("made\\n")
    for number in range(20):
        (folder / f"part-{number}").write_bytes(bytes(1000))
        time.sleep(0.05)
    return Product(digest="", source="", recipe="test-1")
folder = obtain("m/a", "test-1", make)
print(sorted(path.name for path in folder.glob("part-*")) == sorted(f"part-{n}" for n in range(20)))
"""


def start(log: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", MAKE_SLOWLY, str(log)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_come_at_once_make_it_once(model_cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    processes = [start(log) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in processes] == ["True"] * 3
    assert log.read_text() == "made\n"


def test_a_killed_maker_is_followed_by_one_that_cleans_up(
    model_cache: Path, tmp_path: Path
) -> None:
    killed = start(tmp_path / "log")
    wait_for(lambda: list((store_dir() / ".staging").glob("*/part-3")))
    waiting = start(tmp_path / "log")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert waiting.communicate()[0].strip() == "True"
    assert staging() == []


def test_progress_is_told_from_bytes_on_disk(model_cache: Path) -> None:
    told: list[tuple[int, int | None]] = []
    looked = threading.Event()

    def make(folder: Path) -> Product:
        (folder / "a").write_bytes(bytes(500))
        (folder / "b").hardlink_to(folder / "a")
        assert looked.wait(WAIT_S)
        return product()

    def tell(done: int, expected: int | None) -> None:
        told.append((done, expected))
        if done == 500:
            looked.set()

    obtain("m/a", RECIPE, make, tell, 1000)
    assert (500, 1000) in told


def test_a_cache_that_is_no_folder_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FM_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="Not a directory; set FM_CACHE_DIR") as caught:
        obtain("m/a", RECIPE, write_one)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        pytest.param(errno.ENOSPC, "free space in", id="disk-full"),
        pytest.param(
            errno.EROFS, "set FM_CACHE_DIR to a folder that can be written", id="read-only"
        ),
    ],
)
def test_what_the_disk_refuses_is_told_with_the_remedy(
    model_cache: Path, number: int, remedy: str
) -> None:
    def refuse(folder: Path) -> Product:
        raise OSError(number, "refused", str(folder))

    with pytest.raises(DownloadError, match=remedy):
        obtain("m/a", RECIPE, refuse)


def test_more_than_the_disk_can_hold_is_refused_before_it_is_fetched(model_cache: Path) -> None:
    with pytest.raises(DownloadError, match="No space left on device for"):
        obtain("m/a", RECIPE, write_one, expected_bytes=2**60)
    assert stored("m/a", RECIPE) is None
