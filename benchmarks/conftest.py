"""Importing engine first puts the fast BLAS in place before any benchmark imports mlx."""

import engine  # noqa: F401  # imported for its effect
