"""Models: where they come from, how they are stored, and how they become something to run."""
