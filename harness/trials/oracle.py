"""The oracle's word on replies: where one parts from what it should be, which law draws are due to.

It is given ids that were stored, so it does not matter which target they came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from engine.models.load import LoadedModel
from engine.oracle import NEAR_TIE, Oracle
from harness.judging.law import law_row
from harness.sampling import params_of
from harness.store.rows import DivergenceRow, LawRow
from harness.trials.prompting import request_of
from harness.trials.target import Parting, SampledReply

EPSILONS = {"float32": NEAR_TIE, "bfloat16": 0.26, "float16": 0.02}
"""Gaps below these are near-ties: two units in the last place of a score of 16 to 32 in the half
precisions, where one unit (0.125 in bfloat16) was seen on an H200."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges replies of one model. Waits for the device."""

    model: LoadedModel

    def judge(self, parting: Parting) -> Sequence[DivergenceRow]:
        """Follow the reply, and the reply it should have been, with the oracle.

        A place where either departs from the oracle explains the parting; the reply's own places
        count first.
        """
        oracle = Oracle(self.model)
        request = request_of(
            self.model,
            parting.cell,
            parting.workload,
            parting.prompt,
            parting.max_tokens,
            parting.sampling,
        )
        found = oracle.follow(request, parting.reply, parting.reply_ended) or oracle.follow(
            request, parting.expected, parting.expected_ended
        )
        mx.clear_cache()
        return [
            DivergenceRow(
                trial_id=parting.trial_id,
                prompt_id=parting.prompt.id,
                reference=parting.reference,
                position=divergence.position,
                gap=divergence.gap,
                epsilon=EPSILONS[self.model.dtype],
            )
            for divergence in found
        ]

    def weigh(self, reply: SampledReply) -> LawRow:
        """Let the oracle say which law each token was due to."""
        row, ids = reply.row, reply.row.token_ids or ()
        request = request_of(
            self.model, reply.cell, reply.workload, reply.prompt, reply.max_tokens, params_of(row)
        )
        ended = row.finish_reason == "stop" and reply.draws > len(ids)
        found = law_row(row, Oracle(self.model).draws(request, ids[: reply.draws], ended))
        mx.clear_cache()
        return found
