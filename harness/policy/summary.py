"""A judgement as Markdown for a pull request, and as plain lines for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from harness.exit_codes import WORDS
from harness.policy.family import Effect
from harness.policy.judge import decisive
from harness.policy.judgement import Finding, Judgement
from harness.report.gfm import bullets, code_block, escape, table
from harness.report.numbers import DASH, change, counted, fixed, percent
from harness.report.partings import LEGEND, PARTINGS, parting_rows, unshown_lines
from harness.report.visible import one_line

HEADINGS = {
    "fail": "Failed",
    "incomplete": "Not seen",
    "refused": "Refused by the machine",
    "inconclusive": "Not to be told",
}

PERCENT_DIGITS = 1


def to_markdown(judgement: Judgement) -> str:
    """Return the summary; the same rows give the same bytes."""
    run = judgement.run
    parts = [
        f"# fm gate: {WORDS[judgement.verdict]}",
        escape(f"Run {run.run_id} of {run.created_at[:10]}, policy {judgement.policy}."),
        bullets(judgement.notes),
    ]
    for status, findings in decisive(judgement).items():
        parts += [f"## {HEADINGS[status]}", bullets(_gathered(findings))]
    parts += [part for part in _tables(judgement) if part]
    parts += ["## Again", code_block(run.command)]
    return "\n\n".join(parts) + "\n"


def to_lines(judgement: Judgement) -> Iterator[str]:
    """Yield what a terminal shows: the verdict, and each finding that decides and did not pass."""
    yield from map(one_line, judgement.notes)
    for status, findings in decisive(judgement).items():
        yield from (one_line(f"{status}: {line}") for line in _gathered(findings))
    hard = [item for item in judgement.findings if item.is_hard]
    passed = sum(item.status == "pass" for item in hard)
    told = len(judgement.findings) - len(hard)
    yield (
        f"gate: {WORDS[judgement.verdict]}, {passed} of {len(hard)} findings passed, {told} more "
        f"are advisory (run {judgement.run.run_id}, policy {judgement.policy})"
    )


def _gathered(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a line for each finding; those that the machine refused share one for each reason."""
    yield from (_line(finding) for finding in findings if finding.status != "refused")
    reasons = Counter(finding.detail for finding in findings if finding.status == "refused")
    for reason, count in reasons.items():
        yield f"{counted(count, 'comparison')} of times: {reason}"


def _line(finding: Finding) -> str:
    return f"{finding.name}{_at(finding)}: {_said(finding)}"


def _at(finding: Finding) -> str:
    return f" on {finding.where}" if finding.where else ""


def _said(finding: Finding) -> str:
    effect = finding.effect
    if effect is None:
        return finding.detail or finding.status
    return (
        f"{_changed(effect)} to the base in {counted(effect.n, 'block')}; "
        f"{finding.detail or finding.status}"
    )


def _changed(effect: Effect) -> str:
    """Return a ratio as a change with its interval, e.g. `-7.9 % [-9.4, -6.1]`."""
    if effect.low is None or effect.high is None:
        return change(effect.ratio - 1)
    ends = ", ".join(fixed(100 * (end - 1), PERCENT_DIGITS) for end in (effect.low, effect.high))
    return f"{change(effect.ratio - 1)} [{ends}]"


def _tables(judgement: Judgement) -> Iterator[str]:
    yield from _section("Correctness", _correctness(judgement.of("correctness", "coverage")))
    yield from _section("Replies that part from their reference", _partings(judgement))
    yield from _section("Counts", _counts(judgement.of("counter")))
    yield from _section("Measured, head against base", _effects(judgement.of("metric", "noise")))
    yield from _section("Floors", _floors(judgement.of("floor")))


def _section(heading: str, content: str) -> Iterator[str]:
    if content:
        yield f"## {heading}"
        yield content


def _correctness(findings: Sequence[Finding]) -> str:
    rows = [
        [item.name, item.where, _word(item), percent(item.observed), str(item.n), item.detail]
        for item in findings
    ]
    names = ("gate", "where", "status", "share", "n", "detail")
    return _table(names, rows, right=("share", "n"))


def _partings(judgement: Judgement) -> str:
    cells = [item.partings for item in judgement.of("correctness") if item.partings is not None]
    if not cells:
        return ""
    return "\n\n".join(
        [LEGEND, table(PARTINGS, parting_rows(cells)), bullets(unshown_lines(cells))]
    ).rstrip()


def _counts(findings: Sequence[Finding]) -> str:
    rows = [
        [
            item.name,
            item.where,
            DASH if item.count.head is None else str(item.count.head),
            DASH if item.count.base is None else str(item.count.base),
            _word(item),
        ]
        for item in findings
        if item.count is not None
    ]
    return _table(("counter", "where", "head", "base", "status"), rows, right=("head", "base"))


def _effects(findings: Sequence[Finding]) -> str:
    rows = [_effect_row(item) for item in findings]
    names = (
        "metric", "where", "change [95 %]", "limit", "n", "wins", "spread", "detectable",
        "p (family)", "status",
    )  # fmt: skip
    return _table(names, rows, right=("n", "wins", "spread", "detectable", "p (family)"))


def _effect_row(item: Finding) -> list[str]:
    effect = item.effect
    if effect is None:
        return [item.name, item.where, item.detail, *[DASH] * 6, _word(item)]
    return [
        item.name,
        item.where,
        _changed(effect),
        change(effect.limit - 1),
        str(effect.n),
        str(effect.wins),
        percent(effect.spread, PERCENT_DIGITS),
        percent(effect.minimum_detectable, PERCENT_DIGITS),
        fixed(effect.p, 4),
        _word(item),
    ]


def _floors(findings: Sequence[Finding]) -> str:
    rows = [[item.name, item.where, item.detail, _word(item)] for item in findings]
    return _table(("floor", "where", "seen", "status"), rows)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> str:
    return table([(name, name in right) for name in names], rows) if rows else ""


def _word(finding: Finding) -> str:
    return finding.status if finding.is_hard else f"{finding.status} (advisory)"
