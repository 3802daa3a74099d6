"""The HTML report: one file, self-contained, made of elements that escape by construction."""

from harness.report.html.page import to_html

__all__ = ["to_html"]
