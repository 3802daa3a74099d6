"""Draft sources: cheap guesses that the target verifies in one forward."""
