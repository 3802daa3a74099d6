"""A run from its plan to its exit code, whatever happens in between."""
