"""One prompt from the shell: its request, its text as it comes, and what it took."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from engine.document import read_document
from engine.errors import RequestError
from engine.request import (
    Completion,
    Constraint,
    ConstraintKind,
    FinishReason,
    Request,
    SamplingParams,
)
from harness.clock import monotonic

if TYPE_CHECKING:
    from engine.loop import Engine
    from engine.models.load import LoadedModel

EXIT_FAILED = 1


def read_schema(path: Path) -> Constraint:
    """Return the constraint of a schema file; raises RequestError when there is none in it."""
    try:
        value = read_document(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # DocumentError is a ValueError
        raise RequestError(f"schema {path}: {error}") from None
    return Constraint(kind=ConstraintKind.JSON_SCHEMA, value=value)


def request_for(
    model: LoadedModel,
    prompt: str,
    max_tokens: int,
    sampling: SamplingParams,
    constraint: Constraint | None,
) -> Request:
    """Return the request of one user message; a schema wants the document at once."""
    options = {} if constraint is None else {"enable_thinking": False}
    messages = [{"role": "user", "content": prompt}]
    return Request(
        prompt_ids=tuple(model.tokenizer.apply_chat_template(messages, options=options)),
        max_tokens=max_tokens,
        sampling=sampling,
        constraint=constraint,
    )


def generate(engine: Engine, request: Request, out: TextIO, err: TextIO) -> int:
    """Write the reply to `out` as it comes and what it took to `err`; returns an exit code."""
    started_s = monotonic()
    first_s: float | None = None
    request_id = engine.submit(request)
    while engine.has_work:
        for event in engine.step():
            if event.text and first_s is None:
                first_s = monotonic() - started_s
            out.write(event.text)
        out.flush()
    out.write("\n")
    completion = engine.completion(request_id)
    err.write(f"fm: {summary(completion, first_s, monotonic() - started_s)}\n")
    return EXIT_FAILED if completion.finish_reason is FinishReason.ERROR else 0


def summary(completion: Completion, first_s: float | None, seconds: float) -> str:
    """Return one line of what a reply took."""
    num_tokens = len(completion.token_ids)
    parts = [
        f"{completion.prompt_tokens} prompt tokens",
        f"{num_tokens} tokens in {seconds:.2f} s",
        f"first text after {first_s:.2f} s" if first_s is not None else "no text",
        f"ended by {completion.finish_reason}",
    ]
    decode_s = seconds - (first_s or 0.0)
    if num_tokens > 1 and decode_s > 0:
        parts.append(f"{(num_tokens - 1) / decode_s:.1f} tokens/s after it")
    if completion.drafted:
        parts.append(
            f"{completion.accepted} of {completion.drafted} drafts accepted in "
            f"{completion.target_calls} target calls"
        )
    if completion.conformance is not None:
        parts.append(f"schema {completion.conformance}")
    if completion.error is not None:
        parts.append(completion.error)
    return "; ".join(parts)
