"""The targets by name, each made when it is asked for."""

from __future__ import annotations

from harness.trials.target import Target, Tell


def target_of(name: str, tell: Tell) -> Target:
    """Return a target.

    Args:
        name: a value of Choices.target.
        tell: takes lines for people.
    """
    if name == "http":
        from harness.targets.http import HttpTarget

        return HttpTarget(tell)
    if name == "in-process":
        from harness.targets.in_process import local_target

        return local_target(tell)
    from harness.targets.remote import RemoteTarget

    return RemoteTarget(name, tell)
