"""What a row does with a chosen token: emit it, and end when the token ends it.

Pure bookkeeping on one Sequence; slots and records are the loop's.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Many

from engine.errors import RowError
from engine.request import FinishReason, Provenance, TokenEvent, TokenLogprobs
from engine.sequence import Sequence
from engine.verify import Verdict


def commit(
    sequence: Sequence,
    verdict: Verdict,
    was_drafted: bool,
    eos_ids: Collection[int],
    logprobs: Many[TokenLogprobs],
) -> list[TokenEvent]:
    """Emit what a step decided for one row; returns its events, at least one.

    Args:
        was_drafted: whether the step verified drafts of the row.
        eos_ids: tokens that end a row.
        logprobs: one entry a decided token; empty when the row asks for none.
    """
    sequence.drafts.accept(verdict.num_accepted)
    events: list[TokenEvent] = []
    for index, token in enumerate(verdict.tokens):
        if index < verdict.num_accepted:
            provenance = Provenance.ACCEPTED
        else:
            provenance = Provenance.CORRECTED if was_drafted else Provenance.SAMPLED
        entry = logprobs[index] if logprobs else None
        events.append(_emit(sequence, token, provenance, eos_ids, entry))
        if sequence.is_finished:
            break
    return events


def end(sequence: Sequence, reason: FinishReason) -> TokenEvent:
    """End a row without a further token."""
    text = sequence.text.finish()
    sequence.pieces.append(text)
    sequence.finish_reason = reason
    return TokenEvent(
        sequence.request.request_id,
        None,
        text,
        sequence.num_emitted,
        finish_reason=reason,
        error=sequence.error,
    )


def fail(sequence: Sequence, error: str) -> TokenEvent:
    """End a row with an error, one line."""
    sequence.error = error
    return end(sequence, FinishReason.ERROR)


def _emit(
    sequence: Sequence,
    token: int,
    provenance: Provenance,
    eos_ids: Collection[int],
    logprobs: TokenLogprobs | None,
) -> TokenEvent:
    """Append one token to a row, and end the row when the token does."""
    if token in eos_ids and not sequence.request.ignore_eos:
        return end(sequence, FinishReason.STOP)
    try:
        reason = _take(sequence, token)
    except RowError as error:
        return fail(sequence, str(error))
    position = sequence.num_emitted
    sequence.ids.append(token)
    sequence.provenance.append(provenance)
    if logprobs is not None:
        sequence.logprobs.append(logprobs)
    text = sequence.text.push(token)
    if sequence.text.stopped:
        reason = FinishReason.STOP
    if reason is not None:
        text += sequence.text.finish()
        sequence.finish_reason = reason
    sequence.pieces.append(text)
    return TokenEvent(
        sequence.request.request_id,
        token,
        text,
        position,
        provenance,
        reason,
        logprobs=logprobs,
    )


def _take(sequence: Sequence, token: int) -> FinishReason | None:
    """Let the grammar take a token; return why the row ends with it, None when it goes on.

    Everything is asked of the matcher before the row changes: it may raise RowError.
    """
    matcher, is_last = sequence.matcher, sequence.remaining <= 1
    if matcher is None:
        return FinishReason.LENGTH if is_last else None
    matcher.advance([token])
    if matcher.is_finished or (is_last and matcher.is_accepting):
        return FinishReason.STOP
    return FinishReason.LENGTH if is_last else None
