"""What work costs, as a multiple of a fixed piece of work: no machine is too slow, or too busy."""

from __future__ import annotations

import time
from collections.abc import Callable


def effort(work: Callable[[], object]) -> float:
    """The processor time of this process for `work`, that of the reference being one.

    All threads count, waiting does not. The reference takes about 15 ms on an idle core.
    """
    return _processor_s(work) / _processor_s(_reference)


def _reference() -> object:
    return sorted(range(100_000), key=str)


def _processor_s(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s
