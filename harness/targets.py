"""The targets by name, each made when it is asked for."""

from __future__ import annotations

from harness.http.process import OnWait
from harness.target import Target


def target_of(name: str, tell: OnWait) -> Target:
    """Return a target.

    Args:
        name: a value of Choices.target.
        tell: takes lines for people.
    """
    if name == "http":
        from harness.http.target import HttpTarget

        return HttpTarget(tell)
    if name == "in-process":
        from harness.in_process import local_target

        return local_target(tell)
    from harness.http.remote import RemoteTarget

    return RemoteTarget(name, tell)
