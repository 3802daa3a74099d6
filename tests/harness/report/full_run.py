"""A run with something in every section of a report."""

from __future__ import annotations

import random
from dataclasses import replace

from harness.store import ConditionRow, DivergenceRow
from tests.harness.store.sample_run import CHAT, EXTRACT, Sample, reply

SPEEDS = {
    "serial": 20.0,
    "serial@aa": 20.0,
    "serial+grammar": 19.7,
    "serial+spec": 26.0,
    "serial+spec+grammar": 31.0,
    "batch4": 55.0,
    "mlx-lm": 13.0,
}


def full_run(blocks: int = 7, seed: int = 1) -> Sample:
    """Return a run of several cells on two workloads; only long runs give verdicts."""
    rng = random.Random(seed)
    sample = Sample(run={"blocks": blocks, "preset": "gate" if blocks >= 6 else "quick"})
    for workload in (CHAT, EXTRACT):
        for block in range(blocks):
            pace = rng.uniform(0.97, 1.03)
            for name, speed in SPEEDS.items():
                if workload is CHAT and "grammar" in name:
                    continue
                _add(
                    sample, name, block, speed * pace * rng.uniform(0.99, 1.01), workload is EXTRACT
                )
        sample.add(
            "batch4+spec@routed",
            workload=workload,
            tok_s=None,
            replies=[
                reply("p0", (0, 1, 2), lane_taken="serial", lane_reason="speculation runs serially")
            ],
        )
    for name in ("serial+grammar", "serial+spec+grammar"):
        sample.plan(name, status="skipped", reason="workload short-chat has no constraint")
    sample.conditions.append(
        ConditionRow(
            run_id=sample.run_id,
            sampled_at="2026-03-04T05:06:08Z",
            phase="preflight",
            warnings=("swap is in use: 12 MB",),
        )
    )
    return sample


def _add(sample: Sample, name: str, block: int, tok_s: float, constrained: bool) -> None:
    lane = "batch" if name.startswith("batch") else "serial"
    has_spec, has_grammar = "spec" in name, "grammar" in name
    outcome = ("ok" if has_grammar else "not-json") if constrained else None
    replies = [
        reply(
            f"p{number}",
            ids=(number, 7, 8) if has_grammar else (number, 1, 2),
            lane_taken=lane,
            conformance=outcome,
            conformance_detail="" if outcome in ("ok", None) else "no document begins",
            field_accuracy=0.5 if constrained else None,
            drafted=8 if has_spec else None,
            accepted=5 if has_spec else None,
            target_calls=6 if has_spec else None,
            illegal_drafts=1 if has_spec else None,
        )
        for number in range(4)
    ]
    sample.add(
        name,
        block,
        tok_s,
        replies,
        accepts=[(16, 12), (10, 6), (6, 2)] if has_spec else (),
        workload=EXTRACT if constrained else CHAT,
        replay_tokens=100 if has_grammar else None,
        replay_plain_s=5.0 if has_grammar else None,
        replay_masked_s=5.05 if has_grammar else None,
        replay_mask_s=0.0021 if has_grammar else None,
    )


def timed_run() -> Sample:
    """Return a short run whose trials tell where their steps' time went, and what they read."""
    sample = full_run(blocks=3)
    sample.run = {**sample.run, "environment": {"memory_bandwidth_gb_s": 20.0}}
    parts = dict.fromkeys(
        ("plan_s", "draft_s", "build_s", "launch_s", "mask_s", "sample_s", "wait_s", "commit_s"),
        0.4,
    )
    sample.records = [
        replace(
            record,
            trial=replace(
                record.trial,
                decode_steps=100,
                step_s=3.5,
                weight_bytes=600_000_000,
                kv_token_bytes=20_000,
                kv_row_bytes=0,
                **parts,
            ),
        )
        for record in sample.records
    ]
    return sample


def failed_run() -> Sample:
    """Return a run in which a reply does not conform, an id differs, and a trial broke."""
    sample = Sample()
    sample.add("serial", workload=EXTRACT)
    sample.add("serial+grammar", workload=EXTRACT, replies=[reply("p1", (1, 2), conformance="ok")])
    hostile = '{"a": "<script>alert(1)</script> | `x`\n' + "y" * 400
    sample.add(
        "serial+spec+grammar",
        workload=EXTRACT,
        replies=[
            reply(
                "p1",
                (1, 3),
                text=hostile,
                conformance="truncated",
                conformance_detail="the token budget ended before the document",
                finish_reason="length",
                drafted=0,
                accepted=0,
                target_calls=2,
                illegal_drafts=0,
            )
        ],
    )
    sample.divergences.append(
        DivergenceRow(
            trial_id=sample.planned[-1].trial_id,
            prompt_id="p1",
            reference="serial+grammar",
            position=1,
            gap=0.25,
        )
    )
    sample.add("serial+spec", workload=EXTRACT, status="failed", reason="RowError | dead end")
    return sample
