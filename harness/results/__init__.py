"""What is published of runs: the tables of results/RESULTS.md, and how they get there."""

from harness.results.page import ResultsError
from harness.results.promotion import Promoted, Promotion, promote, promotion_of

__all__ = ["Promoted", "Promotion", "ResultsError", "promote", "promotion_of"]
