"""The child process of the peer cells: mlx-lm as it comes, driven by JSON lines.

Run as `python -m harness.peers.child [--blas]`. Each line on standard input is a command, each line
on standard output its answer. Without `--blas` the engine is never imported, so that mlx keeps the
BLAS of its own wheel. Everything that libraries print goes to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from harness.child_stdio import die_with_parent, private_stdout
from harness.trials.clock import monotonic
from harness.trials.memory import RssSampler


@dataclass(slots=True)
class Reply:
    """What one prompt got: ids without the end token, and when each was read, in seconds."""

    submitted_s: float
    ids: list[int] = field(default_factory=list)
    tokens_s: list[float] = field(default_factory=list)
    first_text_s: float | None = None
    ended_s: float = 0.0
    finish: str = ""
    text: str = ""
    from_draft: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """One turn of a trial: prompts as ids, and how to run them.

    Args:
        is_first: of its trial; mlx's cache of freed buffers is emptied before it.
    """

    mode: str
    prompts: list[list[int]]
    max_tokens: int
    rows: int
    num_draft_tokens: int
    is_first: bool


@dataclass(slots=True)
class Outcome:
    """Replies in prompt order, and each decode step as [rows, committed, seconds]."""

    replies: list[Reply] = field(default_factory=list)
    steps: list[tuple[int, int, float]] = field(default_factory=list)


class Peer:
    """mlx-lm with one model, and a draft model where the cell has one."""

    def __init__(self, folder: str, dtype: str, draft_folder: str | None) -> None:
        import mlx_lm

        self.model, self.tokenizer = _load(mlx_lm.load, folder, dtype)
        self.draft = None if draft_folder is None else _load(mlx_lm.load, draft_folder, dtype)[0]

    def serial(self, work: Work) -> Outcome:
        """Run the prompts one after another through stream_generate."""
        return self._streamed(work, {})

    def spec(self, work: Work) -> Outcome:
        """Run the prompts one after another through stream_generate with the draft model."""
        options = {"draft_model": self.draft, "num_draft_tokens": work.num_draft_tokens}
        return self._streamed(work, options)

    def batch(self, work: Work) -> Outcome:
        """Run the prompts in waves of `rows` through BatchGenerator."""
        outcome = Outcome()
        for start in range(0, len(work.prompts), work.rows):
            self._wave(work.prompts[start : start + work.rows], work, outcome)
        return outcome

    def _streamed(self, work: Work, options: dict[str, Any]) -> Outcome:
        from mlx_lm import stream_generate

        outcome = Outcome()
        for prompt in work.prompts:
            reply = Reply(submitted_s=monotonic())
            answers = stream_generate(
                self.model,
                self.tokenizer,
                prompt,
                max_tokens=work.max_tokens,
                **options,
            )
            for answer in answers:
                _take(reply, answer, outcome)
            outcome.replies.append(reply)
        return outcome

    def _wave(self, prompts: Sequence[list[int]], work: Work, outcome: Outcome) -> None:
        from mlx_lm.generate import BatchGenerator

        ends = [[token] for token in sorted(self.tokenizer.eos_token_ids)]
        # Its own defaults, save that a wave larger than they allow must still fit.
        size = max(32, len(prompts))
        generator: Any = BatchGenerator(self.model, stop_tokens=ends, completion_batch_size=size)
        submitted = monotonic()
        uids = generator.insert(list(prompts), [work.max_tokens] * len(prompts))
        replies = {uid: Reply(submitted_s=submitted) for uid in uids}
        before: float | None = None
        while answers := generator.next_generated():
            now = monotonic()
            kept = [answer for answer in answers if answer.finish_reason != "stop"]
            if before is not None:
                outcome.steps.append((len(answers), len(kept), now - before))
            before = now
            for answer in kept:
                replies[answer.uid].ids.append(answer.token)
                replies[answer.uid].tokens_s.append(now)
            for answer in answers:
                if answer.finish_reason is not None:
                    replies[answer.uid].finish = answer.finish_reason
                    replies[answer.uid].ended_s = now
        generator.close()
        for reply in replies.values():
            # BatchGenerator yields ids only: the first token stands for the first text.
            reply.first_text_s = reply.tokens_s[0] if reply.tokens_s else None
            reply.text = self.tokenizer.decode(reply.ids)
            outcome.replies.append(reply)


def _load(load: Callable[..., Any], folder: str, dtype: str) -> tuple[Any, Any]:
    import mlx.core as mx

    model, tokenizer = load(folder)
    model.set_dtype(getattr(mx, dtype))
    mx.eval(model.parameters())
    return model, tokenizer


def _take(reply: Reply, answer: Any, outcome: Outcome) -> None:
    """Record one answer of stream_generate; its last one repeats no token."""
    now = monotonic()
    is_end = answer.finish_reason == "stop"
    if reply.tokens_s:
        outcome.steps.append((1, 0 if is_end else 1, now - reply.tokens_s[-1]))
    if not is_end:
        reply.ids.append(answer.token)
        reply.tokens_s.append(now)
        reply.from_draft += bool(answer.from_draft)
    if answer.text and reply.first_text_s is None:
        reply.first_text_s = now
    reply.text += answer.text
    if answer.finish_reason is not None:
        reply.finish = answer.finish_reason
        reply.ended_s = now


def _run(peer: Peer, command: dict[str, Any]) -> dict[str, Any]:
    import mlx.core as mx

    work = Work(**command["work"])
    modes = {"serial": peer.serial, "batch": peer.batch, "spec": peer.spec}
    if work.is_first:
        # As for our engines: filling the cache again is in the time of the next first token.
        mx.clear_cache()
    mx.reset_peak_memory()
    with RssSampler() as rss:
        outcome = modes[work.mode](work)
    return {
        **asdict(outcome),
        "mlx_bytes": mx.get_peak_memory(),
        "rss_bytes": rss.peak_bytes,
    }


def _open(command: dict[str, Any]) -> tuple[Peer, dict[str, Any]]:
    peer = Peer(command["folder"], command["dtype"], command["draft_folder"])
    return peer, {name: version(name) for name in ("mlx", "mlx-lm")}


def serve(commands: Iterator[str], answers: TextIO) -> None:
    """Answer each command line with one line, until the commands end.

    An error of a command is answered as {"error": line}; the process goes on.
    """
    peer: Peer | None = None
    for line in commands:
        command = json.loads(line)
        try:
            if peer is None:
                peer, answer = _open(command)
            else:
                answer = _run(peer, command)
        except (
            ValueError,
            RuntimeError,
            OSError,
            MemoryError,
            LookupError,
            TypeError,
        ) as error:
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Serve until standard input closes."""
    answers = private_stdout()
    die_with_parent()
    if "--blas" in sys.argv[1:]:
        from engine.backend import prepare

        prepare()
    serve(iter(sys.stdin.readline, ""), answers)


if __name__ == "__main__":
    # `python -m` puts the working folder first; results do not depend on where fm is started.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path.cwd()] + [
        str(Path.cwd())
    ]
    main()
