"""A trial survives its way to a side and back, and a side of another version is not in the way."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import SettingError
from engine.request import SamplingParams
from harness.base import forms
from harness.cells.cell import Cell
from harness.sampling import Sampling
from harness.store import AcceptRow, RequestRow, TrialRecord, record_form, record_from
from harness.trials.target import Parting, SampledReply
from tests.harness.jobs import CHAT, PEOPLE, cell_of, job_of


def sent(form: Any) -> Any:
    """Return a form as it arrives."""
    return json.loads(json.dumps(form, allow_nan=False))


@pytest.mark.parametrize(
    "name",
    [
        "serial",
        "batch4+spec+grammar",
        "serial+spec@draft_budgets=fixed",
        "serial+spec@rejection",
        "mlx-lm@server",
    ],
)
def test_a_cell_arrives_as_it_was_sent(name: str) -> None:
    cell = cell_of(name)
    assert forms.cell_from(sent(forms.cell_form(cell))) == cell


def test_a_side_is_not_told_which_side_it_is() -> None:
    cell = cell_of("serial+spec@draft_budgets=fixed")
    twin = replace(cell, key=replace(cell.key, side="base"))
    assert str(twin.key) == "serial+spec@draft_budgets=fixed@base"
    assert forms.cell_from(sent(forms.cell_form(twin))) == cell


def test_settings_at_their_default_are_left_to_the_side() -> None:
    assert set(forms.cell_form(cell_of("serial+spec"))["settings"]) == {"num_draft_tokens"}


def test_a_setting_that_the_side_does_not_know_is_named() -> None:
    form = forms.cell_form(cell_of("serial"))
    form["settings"]["warp"] = 9
    with pytest.raises(SettingError, match="unknown setting 'warp'"):
        forms.cell_from(sent(form))


@pytest.mark.parametrize("workload", [CHAT, PEOPLE], ids=lambda item: item.name)
def test_a_workload_arrives_as_it_was_sent(workload: Any) -> None:
    assert forms.workload_from(sent(forms.workload_form(workload))) == workload


def test_what_a_newer_version_adds_to_a_workload_is_left_aside() -> None:
    form = sent(forms.workload_form(PEOPLE))
    form["colour"] = "blue"
    form["prompts"][0]["colour"] = "blue"
    assert forms.workload_from(form) == PEOPLE


def test_a_job_arrives_as_it_was_sent() -> None:
    job = job_of(cell_of("batch4+grammar"), PEOPLE, sampling=Sampling(0.7, 2**63 - 1))
    assert forms.job_from(sent(forms.job_form(job)), PEOPLE) == job


def record(cell: Cell) -> TrialRecord:
    job = job_of(cell)
    trial = replace(job.trial, status="done", aggregate_s=0.1 + 0.2, counters={"steps": 7})
    row = RequestRow(
        trial_id=trial.trial_id, position=0, prompt_id="p", token_ids=(1, 2), text="é\0"
    )
    accept = AcceptRow(trial_id=trial.trial_id, position=0, drafted=3, accepted=2)
    return TrialRecord(trial=trial, requests=(row,), accepts=(accept,))


def test_a_record_comes_back_as_it_was_observed() -> None:
    one = record(cell_of("serial"))
    assert record_from(sent(record_form(one))) == one


def test_a_record_of_an_older_side_has_defaults_for_what_it_does_not_tell() -> None:
    one = record(cell_of("serial"))
    form = sent(record_form(one))
    del form["trial"]["counters"]
    form["trial"]["warp"] = 9
    assert record_from(form) == replace(one, trial=replace(one.trial, counters={}))


def test_what_an_oracle_is_asked_arrives_as_it_was_sent() -> None:
    parting = Parting(
        trial_id="t",
        reference="serial",
        cell=cell_of("batch4"),
        workload=CHAT,
        prompt=CHAT.prompts[2],
        max_tokens=9,
        reply=(1, 2),
        expected=(1, 3),
        reply_ended=True,
        expected_ended=False,
        sampling=SamplingParams(temperature=0.5, seed=2**63),
    )
    assert forms.parting_from(sent(forms.parting_form(parting)), CHAT) == parting
    reply = SampledReply(
        row=RequestRow(trial_id="t", position=1, prompt_id=CHAT.prompts[1].id, token_ids=(4,)),
        cell=cell_of("serial+spec@rejection"),
        workload=CHAT,
        prompt=CHAT.prompts[1],
        max_tokens=9,
        draws=1,
    )
    assert forms.sampled_from(sent(forms.sampled_form(reply)), CHAT) == reply
