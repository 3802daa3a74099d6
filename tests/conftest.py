"""What holds for all tests.

Importing engine first puts the fast BLAS in place before any test imports mlx.
"""

import os

from hypothesis import HealthCheck, settings

import engine  # noqa: F401  # imported for its effect
from engine.grammar.limits import GrammarLimits
from tests.waiting import WAIT_S

# CUDA rounds the factors of float32 products to 10 bits otherwise; tests compare whole ones.
os.environ.setdefault("MLX_ENABLE_TF32", "0")

# No example is too slow, and no machine; and every run tries the same examples, wherever it is.
# `--hypothesis-profile search` tries others in each run, and keeps what fails.
settings.register_profile(
    "search", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("fm", settings.get_profile("search"), derandomize=True)
settings.load_profile("fm")

# No compile is too slow either: what is about that limit sets its own.
GrammarLimits.__init__.__kwdefaults__["compile_s"] = WAIT_S
