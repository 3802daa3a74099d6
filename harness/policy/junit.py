"""A judgement as JUnit XML, which every CI system shows: a case for each finding.

There is no standard. What is written keeps to the elements and attributes that the schemas of
Jenkins and of Ant's junitreport share, with the sums that GitLab and others read at the root.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import get_args
from xml.etree import ElementTree

from harness.policy.judgement import Finding, Judgement, Kind
from harness.report.partings import told_lines
from harness.report.visible import visible

KINDS: tuple[Kind, ...] = get_args(Kind)
"""The suites, in the order in which they are written."""

_ILLEGAL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(judgement: Judgement) -> str:
    """Return the XML: what decides and failed is a failure, what is missing or refused an error.

    What is told and decides nothing never fails a case: it is skipped with what it says.
    """
    run = judgement.run
    root = ElementTree.Element("testsuites", name="fm gate", time="0")
    taken: Counter[tuple[str, str]] = Counter()
    for kind in KINDS:
        found = judgement.of(kind)
        if found:
            suite = _suite(root, f"fm gate: {kind}", found, judgement.is_strict, taken)
            suite.set("timestamp", run.created_at[:19])
    for attribute in ("tests", "failures", "errors"):
        root.set(attribute, str(sum(int(suite.get(attribute, "0")) for suite in root)))
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _suite(
    root: ElementTree.Element,
    name: str,
    findings: Sequence[Finding],
    is_strict: bool,
    taken: Counter[tuple[str, str]],
) -> ElementTree.Element:
    suite = ElementTree.SubElement(root, "testsuite", name=name, time="0")
    for finding in findings:
        classname, own = _names(finding, taken)
        case = ElementTree.SubElement(suite, "testcase", classname=classname, name=own, time="0")
        tag = _tag(finding, is_strict)
        if tag:
            word = finding.status if finding.is_hard else f"{finding.status}, advisory"
            message = _text(f"{word}: {finding.detail}")
            detail = ElementTree.SubElement(case, tag, message=message, type=finding.status)
            shown = [] if finding.partings is None else told_lines(finding.partings)
            detail.text = _text("\n".join([finding.detail, *shown]))
    for attribute, tags in {
        "tests": ("testcase",),
        "failures": ("testcase/failure",),
        "errors": ("testcase/error",),
        "skipped": ("testcase/skipped",),
    }.items():
        suite.set(attribute, str(sum(len(suite.findall(tag)) for tag in tags)))
    return suite


def _names(finding: Finding, taken: Counter[tuple[str, str]]) -> tuple[str, str]:
    """Return classname and name of a case, which together no other case has.

    Readers keep one case of a name: a passed floor would hide a failed metric called the same.
    """
    classname = _text(finding.where.replace(".", "_").replace(" ", ".") or "run")
    name = _text(finding.name if finding.kind != "floor" else f"{finding.name} floor")
    taken[classname, name] += 1
    number = taken[classname, name]
    return classname, name if number == 1 else f"{name} {number}"


def _tag(finding: Finding, is_strict: bool) -> str:
    """Return the element that says how a case ended, "" for one that passed."""
    if finding.status == "pass":
        return ""
    if not finding.is_hard:
        return "skipped"
    if finding.status == "inconclusive":
        return "failure" if is_strict else "skipped"
    return "failure" if finding.status == "fail" else "error"


def _text(value: str) -> str:
    """Return text that an XML file may hold."""
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", visible(value))
