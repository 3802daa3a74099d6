"""Reports of a run: one value built from its rows, written as Markdown, tables or JSON."""

from harness.report.build import build_report, comparison_rows
from harness.report.figures import RunReport
from harness.report.html import to_html
from harness.report.json_report import to_json, to_mapping
from harness.report.markdown import to_markdown
from harness.report.outcome import ReportError, check_folder, report_name, write_report
from harness.report.tables import plain_report, print_report

__all__ = [
    "ReportError",
    "RunReport",
    "build_report",
    "check_folder",
    "comparison_rows",
    "plain_report",
    "print_report",
    "report_name",
    "to_html",
    "to_json",
    "to_mapping",
    "to_markdown",
    "write_report",
]
