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
from harness import exit_codes
from harness.trials.clock import monotonic

if TYPE_CHECKING:
    from engine.loop import Engine
    from engine.models.load import LoadedModel

DIM = ("\x1b[2m", "\x1b[0m\n")
BETWEEN = ("fm: reasoning\n", "\nfm: reply\n")
"""What stands before and behind reasoning."""


def read_schema(path: Path) -> Constraint:
    """Return the constraint of a schema file; raises RequestError when there is none in it."""
    try:
        value = read_document(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"schema {path}: {error.strerror}; name a file of JSON") from None
    except ValueError as error:  # DocumentError is one
        raise RequestError(f"schema {path}: {error}") from None
    return Constraint(kind=ConstraintKind.JSON_SCHEMA, value=value)


def request_for(
    model: LoadedModel,
    prompt: str,
    max_tokens: int,
    sampling: SamplingParams,
    constraint: Constraint | None,
    thinks: bool | None = None,
) -> Request:
    """Return the request of one user message.

    Args:
        thinks: whether the model is to reason first; None leaves that to its chat template, but
            for a schema, which wants the document at once.
    """
    if thinks is None and constraint is not None:
        thinks = False
    options = {} if thinks is None else {"enable_thinking": thinks}
    messages = [{"role": "user", "content": prompt}]
    prompt_ids = tuple(model.tokenizer.apply_chat_template(messages, options=options))
    return Request(
        prompt_ids=prompt_ids,
        reasoning=model.tokenizer.reasoning_of(prompt_ids),
        max_tokens=max_tokens,
        sampling=sampling,
        constraint=constraint,
    )


class Margin:
    """Reasoning as it comes, beside the reply: dim on a terminal, between two lines elsewhere."""

    def __init__(self, err: TextIO) -> None:
        self._err = err
        self._begin, self._end = DIM if err.isatty() else BETWEEN
        self._is_open = False

    def write(self, reasoning: str) -> None:
        """Write reasoning."""
        if reasoning and not self._is_open:
            self._err.write(self._begin)
            self._is_open = True
        self._err.write(reasoning)
        self._err.flush()

    def close(self) -> None:
        """End what has been written, if anything has."""
        if self._is_open:
            self._err.write(self._end)
            self._err.flush()
        self._is_open = False


def write_reply(engine: Engine, request: Request, out: TextIO, err: TextIO) -> int:
    """Write the reply to `out` as it comes, reasoning and what it took to `err`.

    Returns:
        An exit code.
    """
    margin = Margin(err)
    started_s = monotonic()
    first_s: float | None = None
    request_id = engine.submit(request)
    while engine.has_work:
        for event in engine.step():
            if (event.text or event.reasoning) and first_s is None:
                first_s = monotonic() - started_s
            margin.write(event.reasoning)
            if event.text:
                margin.close()
            out.write(event.text)
        out.flush()
    margin.close()
    out.write("\n")
    completion = engine.completion(request_id)
    err.write(f"fm: {summary(completion, first_s, monotonic() - started_s)}\n")
    is_failed = completion.finish_reason is FinishReason.ERROR or completion.conformance == "failed"
    return exit_codes.PROBLEM if is_failed else exit_codes.PASS


def summary(completion: Completion, first_s: float | None, seconds: float) -> str:
    """Return one line of what a reply took."""
    num_tokens = len(completion.token_ids)
    parts = [
        f"{completion.prompt_tokens} prompt tokens",
        f"{num_tokens} tokens in {seconds:.2f} s" + _share(completion),
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


def _share(completion: Completion) -> str:
    if not completion.reasoning_tokens:
        return ""
    return f", {completion.reasoning_tokens} of them reasoning"
