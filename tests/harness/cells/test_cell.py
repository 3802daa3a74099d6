"""Cells: one canonical name for every spelling, one line for every bad one."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backend import prefill_columns
from engine.config import EngineConfig
from engine.errors import FmError, SettingError, UnknownNameError
from harness.cells.cell import (
    CORE_CELLS,
    Cell,
    CellCatalogue,
    CellKind,
    load_cells,
    read_cells,
)
from harness.cells.name import parse_cell_name
from harness.running.plan_rows import cell_row

CELLS = Path(__file__).parents[3] / "cells"


@pytest.fixture(scope="module")
def catalogue() -> CellCatalogue:
    return load_cells(CELLS)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("spec+grammar", "serial+spec+grammar"),
        ("serial", "serial"),
        ("grammar", "serial+grammar"),
        ("batch4", "batch4"),
        ("batch004", "batch4"),
        ("grammar+batch128+spec", "batch128+spec+grammar"),
        (" spec + grammar ", "serial+spec+grammar"),
        ("batch3+spec@routed", "batch3+spec@routed"),
        ("mlx-lm", "mlx-lm"),
        ("batch4+mlx-lm", "mlx-lm+batch4"),
        ("mlx-lm+spec@blas", "mlx-lm+spec@blas"),
        ("serial+mlx-lm", "mlx-lm"),
        ("serial@aa", "serial@aa"),
    ],
)
def test_a_name_has_one_canonical_spelling(text: str, canonical: str) -> None:
    assert str(parse_cell_name(text)) == canonical
    assert str(parse_cell_name(canonical)) == canonical


@given(st.integers(1, 128), st.sets(st.sampled_from(["spec", "grammar"])))
def test_the_order_of_words_does_not_matter(rows: int, features: set[str]) -> None:
    names = {
        str(parse_cell_name("+".join(words))) for words in permutations([f"batch{rows}", *features])
    }
    assert len(names) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty part"),
        ("   ", "empty part"),
        ("serial++spec", "empty part"),
        ("spec+", "empty part"),
        ("spec+spec", "names 'spec' twice"),
        ("batch0", "between 1 and 128"),
        ("batch129", "between 1 and 128"),
        ("batch" + "9" * 5000, "between 1 and 128"),
        ("serial+batch4", "names the lanes serial and batch4"),
        ("batch4+batch8", "names the lanes"),
        ("serial+fill", "not available yet"),
        ("https://host:1/v1+spec", "drafts as it was started"),
        ("https://me:secret@host:1/v1", "holds an '@'"),
        ("https://host:1/v1?key=secret", "holds a '?'"),
        ("https://host:1/v1#secret", "holds a '#'"),
        ("http://a/v1+http://b/v1", "names two peers"),
        ("http://a/v1+mlx-lm", "names two peers"),
        ("mlx-lm+grammar", "mlx-lm has no grammar"),
        ("mlx-lm+batch4+spec", "mlx-lm does not batch speculation"),
        ("serial+spec@routed", "needs batchN and spec"),
        ("batch4+grammar@routed", "needs batchN and spec"),
        ("serial@blas", "is for mlx-lm cells"),
        ("serial+spec@aa", "repeats a bare lane"),
        ("serial+grammar@rejection", "for cells of ours with spec"),
        ("batch4@rejection", "for cells of ours with spec"),
        ("mlx-lm+spec@rejection", "for cells of ours with spec"),
        ("serial@", "no usable word after '@'"),
        ("serial@a@b", "has the variants a and b; name one"),
    ],
)
def test_a_name_that_makes_no_cell_gets_one_line(text: str, expected: str) -> None:
    with pytest.raises(SettingError, match="cell") as caught:
        parse_cell_name(text)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["warp", "batch4+warp", "batch", "batch٤", "Serial", "spec;x"])
def test_an_unknown_word_is_named_with_what_exists(text: str) -> None:
    with pytest.raises(UnknownNameError, match="known: batchN") as caught:
        parse_cell_name(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_a_cell_or_an_fm_error(text: str) -> None:
    with suppress(FmError):
        name = parse_cell_name(text)
        assert parse_cell_name(str(name)) == name


def test_every_core_cell_and_every_peer_cell_has_a_file(
    catalogue: CellCatalogue,
) -> None:
    peers = [f"mlx-lm{lane}{blas}" for lane in ("", "+batch4", "+spec") for blas in ("", "@blas")]
    assert set(catalogue.cells) >= {*CORE_CELLS, *peers}


def test_cells_that_are_compared_differ_in_nothing_but_the_mechanism(
    catalogue: CellCatalogue,
) -> None:
    for name in ("serial", "batch4"):
        plain, spec = catalogue.get(name), catalogue.get(f"{name}+spec")
        assert catalogue.get(f"{name}+grammar").config == plain.config
        assert catalogue.get(f"{name}+spec+grammar").config == spec.config


def test_any_number_of_rows_takes_the_settings_of_the_file(
    catalogue: CellCatalogue,
) -> None:
    cell = catalogue.get("spec+batch7")
    assert cell.config.max_rows == cell.rows == 7
    assert cell.config.num_draft_tokens == catalogue.get("batch4+spec").config.num_draft_tokens
    assert cell.lane_taken == "batch"


def test_one_row_of_a_batch_is_declared_serial(catalogue: CellCatalogue) -> None:
    assert catalogue.get("batch1").lane_taken == "serial"


def test_a_routed_cell_is_a_routing_check_in_the_serial_lane(
    catalogue: CellCatalogue,
) -> None:
    cell = catalogue.get("batch9+spec+grammar@routed")
    assert cell.kind is CellKind.ROUTING
    assert cell.lane_taken == "serial"
    assert cell.config.spec_batching == "serial"


@pytest.mark.parametrize("name", ["serial+spec", "batch9+spec", "batch4+spec+grammar"])
def test_a_rejection_cell_differs_from_the_cell_of_its_words_in_acceptance_alone(
    catalogue: CellCatalogue, name: str
) -> None:
    match, rejection = catalogue.get(name), catalogue.get(f"{name}@rejection")
    assert rejection.name == f"{name}@rejection"
    assert rejection.config == replace(match.config, acceptance="rejection")
    assert (rejection.kind, rejection.lane_taken) == (match.kind, match.lane_taken)
    assert rejection.digest != match.digest


def test_the_noise_floor_repeats_the_settings_of_its_lane(
    catalogue: CellCatalogue,
) -> None:
    cell = catalogue.get("batch2@aa")
    assert cell.kind is CellKind.AA
    assert cell.config == catalogue.get("batch2").config


def test_a_cell_without_a_preset_lists_those_that_exist(
    catalogue: CellCatalogue,
) -> None:
    with pytest.raises(UnknownNameError, match=r"serial@nonesuch.*known: batch4"):
        catalogue.get("serial@nonesuch")


def test_what_is_stored_of_a_cell_has_the_numbers_that_nobody_set(
    catalogue: CellCatalogue,
) -> None:
    settings, columns = cell_row(catalogue.get("batch4")).settings, prefill_columns()
    assert settings["prefill_chunk"] == columns.chunk
    assert settings["interleaved_prefill"] == columns.interleaved
    assert EngineConfig.from_mapping(settings) == catalogue.get("batch4").config


def test_a_url_is_a_peer_cell_of_a_running_server(catalogue: CellCatalogue) -> None:
    for text, name in {
        "http://127.0.0.1:8000/v1": "http://127.0.0.1:8000/v1",
        "batch4+https://host/v1": "https://host/v1+batch4",
        "grammar+http://host/v1": "http://host/v1+grammar",
    }.items():
        cell = catalogue.get(text)
        assert (cell.name, cell.kind) == (name, CellKind.PEER)
        assert cell.server is None
        assert catalogue.get(cell.name) == cell
    assert catalogue.get("batch4+https://host/v1").rows == 4


def test_a_peer_cell_may_bring_the_command_of_its_server(catalogue: CellCatalogue) -> None:
    for name in ("mlx-lm@server", "mlx-lm+batch4@server", "mlx-lm@server-blas"):
        server = catalogue.get(name).server
        assert server is not None
        assert "{folder}" in server.command
        assert server.counts_end
    assert catalogue.get("mlx-lm+batch8@server").server == catalogue.get("mlx-lm@server").server


@pytest.mark.parametrize(
    ("name", "table", "words"),
    [
        ("serial", 'command = ["x"]', "server is for peer cells"),
        ("mlx-lm@x", "", "a table with a command"),
        ("mlx-lm@x", "command = []", "command must hold texts"),
        ("mlx-lm@x", "command = [1]", "command must hold texts"),
        ("mlx-lm@x", 'command = ["{home}"]', "command names {home}; it may name python"),
        ("mlx-lm@x", 'command = ["x"]\nhealth = 1', "health"),
        ("mlx-lm@x", 'command = ["x"]\ncounts_end = 1', "counts_end is 1"),
        ("mlx-lm@x", 'command = ["x"]\nwait = 1', "unknown key 'wait' of server"),
    ],
    ids=str,
)
def test_a_wrong_server_is_told_by_file_and_line(
    tmp_path: Path, name: str, table: str, words: str
) -> None:
    with pytest.raises(SettingError, match=re.escape(words)) as caught:
        written(tmp_path, f'name = "{name}"\n[server]\n{table}\n')
    assert re.search(r"\.toml:\d+: ", str(caught.value))


def test_a_server_changes_the_digest_and_its_absence_leaves_it(catalogue: CellCatalogue) -> None:
    cell = catalogue.get("mlx-lm@server")
    assert replace(cell, server=None).digest != cell.digest
    assert replace(cell, is_remote=True).digest != cell.digest


def test_a_list_of_names_holds_each_cell_once(catalogue: CellCatalogue) -> None:
    cells = catalogue.get_all(["spec", "serial", "serial+spec"])
    assert [cell.name for cell in cells] == ["serial+spec", "serial"]
    with pytest.raises(SettingError, match="no cell is named"):
        catalogue.get_all([])


def test_the_digest_changes_with_every_setting(tmp_path: Path) -> None:
    def digest(settings: str, name: str = "serial+spec") -> str:
        return written(tmp_path, f'name = "{name}"\n[settings]\n{settings}').digest

    digests = {
        digest("num_draft_tokens = 3"),
        digest("num_draft_tokens = 4"),
        digest('num_draft_tokens = 3\ndrafter = "two_model"'),
        digest('num_draft_tokens = 3\nspec_batching = "batched"', "batch4+spec"),
    }
    assert len(digests) == 4
    assert digest("num_draft_tokens = 3") == digest('num_draft_tokens = 3\ndrafter = "ngram"')


def written(folder: Path, text: str) -> Cell:
    path = folder / "cell.toml"
    path.write_text(text)
    _, (cell,) = read_cells(path)
    return cell


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ('name = "serial"\nkind = perf\n', 2, "Invalid value"),
        ('name = "serial', 1, "fix the TOML"),
        ('kind = "perf"\n', 1, "name is None"),
        ("name = 3\n", 1, "name is 3"),
        ('\nname = "spec"\n', 2, "write 'serial+spec'"),
        ('name = "warp"\n', 1, "unknown cell 'warp'"),
        ('name = "serial"\nkind = "slow"\n', 2, "one of perf"),
        ('name = "serial"\nlane_taken = "warp"\n', 2, "one of serial, batch"),
        ('name = "serial"\nspeed = 3\n', 2, "unknown key 'speed'"),
        ('name = "serial"\nsettings = 3\n', 2, "must be a table"),
        ('name = "serial"\n[settings]\nmax_row = 3\n', 3, "unknown setting 'max_row'"),
        (
            'name = "serial"\n[settings]\nmax_rows = 3\n',
            3,
            "max_rows is set by the lane",
        ),
        (
            'name = "serial+spec"\n\n[settings]\nnum_draft_tokens = 99\n',
            4,
            "num_draft_tokens is 99",
        ),
        (
            'name = "serial+spec"\n[settings]\nnum_draft_tokens = "3"\n',
            3,
            "must be a number",
        ),
        ('name = "serial+spec"\n', 1, "needs at least 1"),
        (
            'name = "serial"\n[settings]\nnum_draft_tokens = 3\n',
            3,
            "without spec needs 0",
        ),
        (
            'name = "serial"\n[settings]\nacceptance = "rejection"\n',
            3,
            "a cell without spec has no drafts",
        ),
        (
            'name = "serial+spec@rejection"\n[settings]\nnum_draft_tokens = 3\n',
            1,
            "acceptance is 'match'",
        ),
    ],
)
def test_a_bad_file_is_one_line_with_file_and_line(
    tmp_path: Path, text: str, line: int, expected: str
) -> None:
    with pytest.raises(SettingError) as caught:
        written(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'cell.toml'}:{line}: ")
    assert expected in message
    assert "\n" not in message


def test_bytes_that_are_no_text_are_an_fm_error(tmp_path: Path) -> None:
    path = tmp_path / "cell.toml"
    path.write_bytes(b"name = '\xff'\n")
    with pytest.raises(SettingError, match="cannot be read"):
        read_cells(path)


def test_an_empty_folder_and_a_doubled_cell_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"no \*.toml cell files"):
        load_cells(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text('name = "serial"\n')
    with pytest.raises(SettingError, match="has two files"):
        load_cells(tmp_path)
