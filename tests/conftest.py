"""Importing engine first puts the fast BLAS in place before any test imports mlx."""

import os

import engine  # noqa: F401  # imported for its effect

# CUDA rounds the factors of float32 products to 10 bits otherwise; tests compare whole ones.
os.environ.setdefault("MLX_ENABLE_TF32", "0")
