"""What holds for all tests.

Importing engine first puts the fast BLAS in place before any test imports mlx.
"""

import os

from hypothesis import HealthCheck, settings

import engine  # noqa: F401  # imported for its effect

# CUDA rounds the factors of float32 products to 10 bits otherwise; tests compare whole ones.
os.environ.setdefault("MLX_ENABLE_TF32", "0")

# No example is too slow, and no machine.
settings.register_profile("fm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fm")
