"""One trial: requests, clocks, counts, and the rows they come to."""
