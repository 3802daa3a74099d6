"""How the requests of a run are sampled, and which of them promise token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from engine.request import SamplingParams
from harness.cells.name import REJECTION


class Sent(Protocol):
    """A stored request, as it was sampled."""

    @property
    def seed(self) -> int | None:
        """Of its draws."""
        ...

    @property
    def sampling(self) -> Mapping[str, Any]:
        """Temperature and so on."""
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a person chose for every request of a run.

    Args:
        temperature: 0 takes the likeliest token.
        seed: of the run.
    """

    temperature: float = 0.0
    seed: int = 0

    def params(self, block: int, prompt_id: str) -> SamplingParams:
        """Return the parameters of one request.

        Its seed depends on block and prompt alone: all cells of a block draw with the same noise,
        so that their ids can be compared, and no two blocks do.
        """
        if self.temperature == 0:
            return SamplingParams()
        digest = hashlib.sha256(f"{self.seed}/{block}/{prompt_id}".encode()).digest()
        return SamplingParams(
            temperature=self.temperature, seed=int.from_bytes(digest[:8], byteorder="big")
        )


def stored(params: SamplingParams) -> dict[str, float]:
    """Return what a request's row keeps beside its seed."""
    return {"temperature": params.temperature}


def params_of(row: Sent) -> SamplingParams:
    """Return the parameters a stored request was sent with."""
    return SamplingParams(temperature=_temperature(row), seed=row.seed)


def promises_ids(acceptance: str, row: Sent) -> bool:
    """Return whether a reply has to be the token ids of its reference.

    Drafts that are kept with min(1, p/q) change which token a sampled row draws, and not the law
    it draws from; a greedy row's law leaves one token.
    """
    return always_promises_ids(acceptance) or _temperature(row) == 0


def always_promises_ids(acceptance: str) -> bool:
    """Return whether that holds for every reply, however it was sampled."""
    return acceptance != REJECTION


def _temperature(row: Sent) -> float:
    return float(row.sampling.get("temperature", 0.0))
