"""What a row does with a chosen token: emit it, and end when the token ends it.

Pure bookkeeping on one Sequence; slots and records are the loop's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Many

from engine.errors import RowError, detail_of
from engine.request import FinishReason, Provenance, TokenEvent, TokenLogprobs
from engine.sequence import Sequence
from engine.text import Said
from engine.verify import Verdict


def commit(
    sequence: Sequence,
    verdict: Verdict,
    was_drafted: bool,
    eos_ids: Collection[int],
    logprobs: Many[TokenLogprobs],
) -> Iterator[TokenEvent]:
    """Emit what a step decided for one row, token by token; yields its events, at least one.

    Args:
        was_drafted: whether the step verified drafts of the row.
        eos_ids: tokens that end a row.
        logprobs: one entry a decided token; empty when the row asks for none.
    """
    sequence.drafts.accept(verdict.num_accepted)
    for index, token in enumerate(verdict.tokens):
        if index < verdict.num_accepted:
            provenance = Provenance.ACCEPTED
        else:
            provenance = Provenance.CORRECTED if was_drafted else Provenance.SAMPLED
        entry = logprobs[index] if logprobs else None
        yield _emit(sequence, token, provenance, eos_ids, entry)
        if sequence.is_finished:
            break


def end(sequence: Sequence, reason: FinishReason) -> TokenEvent:
    """End a row without a further token."""
    return _close(sequence, reason, sequence.text.finish())


def cancel(sequence: Sequence) -> None:
    """End a row that nobody waits for, whatever becomes of its text."""
    _close(sequence, FinishReason.CANCELLED, _rest(sequence))


def fail(sequence: Sequence, error: str) -> TokenEvent:
    """End a row with an error, one line."""
    sequence.error = error
    return _close(sequence, FinishReason.ERROR, _rest(sequence))


def _close(sequence: Sequence, reason: FinishReason, said: Said) -> TokenEvent:
    position, reasoning_tokens = sequence.num_emitted, sequence.text.reasoning_tokens
    sequence.pieces.append(said)
    sequence.finish_reason = reason
    return TokenEvent(
        sequence.request.request_id,
        None,
        said.text,
        position,
        finish_reason=reason,
        error=sequence.error,
        reasoning=said.reasoning,
        reasoning_tokens=reasoning_tokens,
    )


def _rest(sequence: Sequence) -> Said:
    """Return what is still held back; nothing when it cannot be had, which ends no other way."""
    try:
        return sequence.text.finish()
    except Exception:  # noqa: BLE001  # the row ends already
        return Said()


def _emit(
    sequence: Sequence,
    token: int,
    provenance: Provenance,
    eos_ids: Collection[int],
    logprobs: TokenLogprobs | None,
) -> TokenEvent:
    """Append one token to a row, and end the row when the token does.

    All that can fail comes before the row changes; a row whose grammar or text fails ends there.
    """
    try:
        position = sequence.num_emitted
        if token in eos_ids and not sequence.request.ignore_eos:
            return end(sequence, FinishReason.STOP)
        reason = _take(sequence, token)
        said = sequence.text.push(token)
        if sequence.text.stopped:
            reason = FinishReason.STOP
        if reason is not None:
            said += sequence.text.finish()
        reasoning_tokens = sequence.text.reasoning_tokens
    except RowError as error:
        return fail(sequence, str(error))
    except Exception as error:  # noqa: BLE001  # ends this row alone
        return fail(sequence, f"a token could not be taken ({detail_of(error)}); try again")
    except BaseException as error:
        # an interrupt: the grammar or the text may be a token ahead of the row by now
        sequence.error = f"interrupted while a token was taken ({detail_of(error)}); try again"
        raise
    sequence.ids.append(token)
    sequence.provenance.append(provenance)
    if logprobs is not None:
        sequence.logprobs.append(logprobs)
    sequence.pieces.append(said)
    sequence.finish_reason = reason
    sequence.num_failures = 0
    return TokenEvent(
        sequence.request.request_id,
        token,
        said.text,
        position,
        provenance,
        reason,
        logprobs=logprobs,
        reasoning=said.reasoning,
        reasoning_tokens=reasoning_tokens,
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
