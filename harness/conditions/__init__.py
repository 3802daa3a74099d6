"""The state of the machine while it measures: read, kept with the run, and judged."""
