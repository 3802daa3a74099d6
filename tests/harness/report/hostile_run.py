"""A run in which every text that comes from outside is one and the same, chosen to do harm."""

from __future__ import annotations

from dataclasses import replace

from harness.report import build_report, to_html
from harness.store import ConditionRow, DivergenceRow, EvalStore, RequestRow, new_id
from tests.harness.store.sample_run import EXTRACT, MODEL, Sample, reply

XSS = {
    "script": "<script>window.harmed=1</script>",
    "closing": '</td></table></pre></details></style></script><script>window.harmed=1</script>"',
    "image": '"><img src=x onerror=window.harmed=1>',
    "vector": "'><svg onload=window.harmed=1><animate onbegin=window.harmed=1 attributeName=x>",
    "attribute": "\" autofocus onfocus=window.harmed=1 x='",
    "address": "javascript:window.harmed=1//",
    "comment": "--><!--><script>window.harmed=1</script>",
    "entity": "&lt;script&gt;&#60;script&#62;window.harmed=1&amp;amp;",
    "template": "${window.harmed=1}{{window.harmed=1}}<template><script>window.harmed=1</script>",
    "frame": "<iframe srcdoc='<script>parent.harmed=1</script>'></iframe><base href=//x>",
    "meta": '<meta http-equiv=refresh content="0;url=data:,x"><link rel=stylesheet href=x>',
}
"""Texts a model might be made to write, each of which would run code in a careless page."""

AWKWARD = {
    "pipes": "a|b|c",
    "backticks": "`x|y` ```",
    "lines": "line1\nline2\n\nline4",
    "first-line": "\n\nnot lost",
    "tab": "tab\there",
    "japanese": "日本語モデル",
    "emoji": "😀👨‍👩‍👧",
    "combining": "\u0435\u0301 combining",
    "link": "[link](x)",
    "marks": "*bold* _it_ \\| trailing \\",
    "blanks": "  two  blanks  ",
    "right-to-left": "\u202eRTL\u202c \u2067\u05e2\u05d1\u05e8\u2069 \u0627\u0644",
    "model": "owner/name-4bit+spec@v1",
    "separators": "line\u2028paragraph\u2029",
    "controls": "bell\x07 escape\x1b[31m null\x00 delete\x7f c1\x9b return\r",
    "long": "very-long-" + "x" * 180,
}
"""Texts that break tables and pages without meaning to."""


def page_of(store: EvalStore, text: str) -> str:
    """Return the HTML report of a run in which everything from outside is this text."""
    sample = hostile_run(text, new_id())
    sample.store_in(store)
    return to_html(build_report(store.load_run(sample.run_id)))


def hostile_run(text: str, run_id: str = Sample.run_id) -> Sample:
    """Return a run whose names, replies, errors, reasons and environment all are `text`.

    Names that must differ from each other begin with a word of their own.
    """
    model = replace(MODEL, name=f"model {text}")
    workload = replace(EXTRACT, name=f"workload {text}", content_hash=f"w {text}")
    sample = Sample(
        run_id=run_id,
        run={
            "tag": text,
            "command": text,
            "preset": text,
            "git_sha": text,
            "plan_hash": text,
            "target": text,
            "environment": {text: text, "many": [text, text], "deep": {text: {text: text}}},
            "machine_refusals": (text,),
        },
        workloads=(workload,),
    )
    names = {}
    for name in ("serial", "serial+grammar", "serial+spec", "batch4+spec@routed"):
        names[name] = f"{name} {text}"
        row = sample.cells[name]
        baseline = row.baseline and names.get(row.baseline, row.baseline)
        reference = row.reference and names.get(row.reference, row.reference)
        sample.cells[name] = replace(
            row,
            name=names[name],
            content_hash=f"c {name} {text}",
            baseline=baseline,
            reference=reference,
            expected_lane=text,
        )
    replies = [
        reply(text, text=text, conformance="not-json", conformance_detail=text, lane_reason=text),
        reply(f"2 {text}", status="error", error=text, text=text, lane_taken=text),
    ]
    spec = [replace(item, drafted=4, accepted=2, target_calls=3) for item in replies]
    spec += parting_replies(text, "2", (5, 8))
    for block in range(3):
        expected = [*replies, *parting_replies(text, "1", (5, 6, 7))]
        sample.add("serial", block, 20 + block, expected, workload=workload, model=model)
        sample.add("serial+grammar", block, 19, replies, workload=workload, model=model)
        trial = sample.add("serial+spec", block, 25, spec, [(4, 2)], workload=workload, model=model)
    sample.divergences.append(
        DivergenceRow(
            trial_id=trial.trial_id, prompt_id=text, reference=text, position=1, gap=3.1e-5
        )
    )
    sample.divergences.append(
        DivergenceRow(
            trial_id=trial.trial_id,
            prompt_id=f"4 {text}",
            reference=names["serial"],
            position=1,
            gap=0.5,
        )
    )
    sample.add("batch4+spec@routed", tok_s=None, replies=replies, workload=workload, model=model)
    sample.add("batch4", status="failed", reason=text, workload=workload, model=model, replies=[])
    sample.plan("mlx-lm", status="skipped", reason=text, workload=workload, model=model)
    sample.conditions.append(
        ConditionRow(
            run_id=sample.run_id,
            sampled_at="2026-03-04T05:06:08Z",
            phase="preflight",
            warnings=(text,),
        )
    )
    return sample


def parting_replies(text: str, word: str, ids: tuple[int, ...]) -> list[RequestRow]:
    """Return replies to two prompts, which part in the middle from those with another word."""
    return [
        reply(f"{prompt} {text}", ids, text=f"{text} {word} {text}", lane_taken=text)
        for prompt in (3, 4)
    ]
