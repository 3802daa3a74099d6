"""Stored runs beyond their own reports: one on the results page, or two beside each other."""

from harness.results.page import ResultsError
from harness.results.promotion import Promoted, Promotion, promote, promotion_of

__all__ = ["Promoted", "Promotion", "ResultsError", "promote", "promotion_of"]
