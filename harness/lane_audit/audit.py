"""The identity audit: every lane's token ids against the oracle, on a real model.

The serial lane is followed by the oracle, which scores every row in one forward without a cache and
has to choose each of its tokens itself; mlx-lm's own loops have to write the same rows, and other
lanes repeat the serial rows. Where ids differ, the oracle follows the row on to its end, and
every place where it would have chosen otherwise has to be a near-tie: a gap of final scores under
engine.oracle.NEAR_TIE, at most one in 5,000 tokens. Run it with `scripts/audit`.

`--stress N` plays N random scripts of the batch lane on the tiny model instead, where every id has
to be the oracle's, and some on the real one (harness.lane_audit.stress). `--soak N` serves N random
requests on one open engine of the tiny model, and some on one of the real model: nothing may be
left behind and memory has to be flat (harness.lane_audit.soak).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from engine.config import EngineConfig
from engine.draft.registry import build_drafter
from engine.errors import FmError
from engine.loop import Engine
from engine.models.load import LoadedModel, load_model
from engine.oracle import Divergence, Oracle
from engine.request import Completion, FinishReason, Request, SamplingParams
from harness.judging.token_identity import allowed_near_ties
from harness.lane_audit.script import Limits, text_limits, tiny_limits
from harness.lane_audit.soak import run_soak
from harness.lane_audit.stress import Stress, run_scripts
from harness.workloads.workload import Prompt, load_workload

FREE_WORKLOADS = ("short-chat", "long-form")
CONSTRAINED_WORKLOAD = "json-extract"
TEMPERATURES = (0.0, 0.8)
NUM_DRAFT_TOKENS = 3

LANES: dict[str, EngineConfig] = {
    "serial+spec": EngineConfig(num_draft_tokens=NUM_DRAFT_TOKENS, draft_budgets="fixed"),
    "batch4": EngineConfig(max_rows=4),
    "batch4+spec": EngineConfig(
        max_rows=4,
        num_draft_tokens=NUM_DRAFT_TOKENS,
        draft_budgets="fixed",
        spec_batching="batched",
    ),
}
"""Lanes that repeat the serial one, free and under a grammar."""

MAX_PAIR_PROMPTS = 8
"""Rows on which draft-model pairs are compared with mlx-lm's: each costs two models a token."""


@dataclass(slots=True)
class Check:
    """One lane beside its reference.

    Attributes:
        tokens: reference tokens compared.
        rows, equal: rows compared and rows with the same ids.
        near_ties, failures: places where a differing row parts from the oracle.
    """

    name: str
    temperature: float
    rows: int = 0
    equal: int = 0
    tokens: int = 0
    near_ties: list[Divergence] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """True when rows were seen and only so many near-ties tell them from the reference."""
        few = len(self.near_ties) <= allowed_near_ties(self.tokens)
        return self.rows > 0 and not self.failures and few

    def line(self) -> str:
        """Return the check as one line for people."""
        gaps = ", ".join(f"{d.position}: {d.gap:.1e}" for d in self.near_ties)
        ties = f", near-ties at {gaps}" if gaps else ""
        failed = f"; {self.failures[0]}" if self.failures else ""
        word = "pass" if self.passed else "FAIL"
        return (
            f"{word}  {self.name:<32} T={self.temperature:<4} "
            f"{self.equal}/{self.rows} rows equal, {self.tokens} tokens{ties}{failed}"
        )


@dataclass(slots=True)
class Audit:
    """All checks on one model.

    Args:
        free, constrained: prompts without and with a schema.
        say: takes a line of progress.
    """

    model: LoadedModel
    draft_models: Sequence[LoadedModel]
    free: Sequence[Prompt]
    constrained: Sequence[Prompt]
    max_tokens: int
    say: Callable[[str], None]
    checks: list[Check] = field(default_factory=list)

    def run(self) -> None:
        """Run every check."""
        oracle = Oracle(self.model)
        for temperature in TEMPERATURES:
            free = [self._request(p, temperature, i) for i, p in enumerate(self.free)]
            bound = [self._request(p, temperature, i) for i, p in enumerate(self.constrained)]
            rows = self._lanes(oracle, "", free, temperature)
            if temperature == 0:
                self._peers(oracle, free, rows)
            self._lanes(oracle, "+grammar", bound, temperature)

    def _request(self, prompt: Prompt, temperature: float, seed: int) -> Request:
        ids = self.model.tokenizer.apply_chat_template(prompt.messages)
        return Request(
            prompt_ids=tuple(ids),
            max_tokens=self.max_tokens,
            constraint=prompt.constraint,
            sampling=SamplingParams(temperature=temperature, seed=seed),
        )

    def _lanes(
        self, oracle: Oracle, suffix: str, requests: Sequence[Request], temperature: float
    ) -> list[Completion]:
        reference = self._complete(EngineConfig(), requests)
        check = Check(f"serial{suffix} == oracle", temperature)
        for request, completion in zip(requests, reference, strict=True):
            _follow(check, oracle, request, completion)
        self._done(check)
        for name, config in LANES.items():
            check = Check(f"{name}{suffix} == serial{suffix}", temperature)
            rows = zip(requests, self._complete(config, requests), reference, strict=True)
            for request, completion, expected in rows:
                compare(check, oracle, request, completion, expected.token_ids)
            self._done(check)
        return reference

    def _complete(
        self, config: EngineConfig, requests: Sequence[Request], draft: LoadedModel | None = None
    ) -> list[Completion]:
        return Engine(self.model, config, build_drafter(config, draft)).generate(requests)

    def _peers(
        self, oracle: Oracle, requests: Sequence[Request], serial: Sequence[Completion]
    ) -> None:
        """Compare with mlx-lm's own loops on the same weights, greedy."""
        check = Check("serial == mlx-lm", 0.0)
        for request, completion in zip(requests, serial, strict=True):
            compare(check, oracle, request, completion, list(self._mlx_lm(request, None)))
        self._done(check)
        config = EngineConfig(
            num_draft_tokens=NUM_DRAFT_TOKENS, draft_budgets="fixed", drafter="two_model"
        )
        requests = requests[:MAX_PAIR_PROMPTS]
        for draft in self.draft_models:
            check = Check(f"two_model {draft.name} == mlx-lm", 0.0)
            completions = self._complete(config, requests, draft)
            for request, completion in zip(requests, completions, strict=True):
                compare(check, oracle, request, completion, list(self._mlx_lm(request, draft)))
            if draft is self.model:
                drafted = sum(completion.drafted for completion in completions)
                accepted = sum(completion.accepted for completion in completions)
                if drafted == 0 or accepted != drafted:
                    check.failures.append(f"only {accepted} of {drafted} drafts accepted")
            self._done(check)

    def _mlx_lm(self, request: Request, draft: LoadedModel | None) -> Iterator[int]:
        from mlx_lm import stream_generate  # engine has to be imported before mlx

        extra: dict[str, Any] = {} if draft is None else {"num_draft_tokens": NUM_DRAFT_TOKENS}
        for response in stream_generate(
            self.model.model,
            self.model.tokenizer.wrapper,
            list(request.prompt_ids),
            max_tokens=request.max_tokens,
            draft_model=None if draft is None else draft.model,
            **extra,
        ):
            if response.token in self.model.eos_ids:
                return
            yield int(response.token)

    def _done(self, check: Check) -> None:
        self.checks.append(check)
        self.say(check.line())


def _follow(check: Check, oracle: Oracle, request: Request, completion: Completion) -> None:
    """Let the oracle choose every token of a row by itself."""
    check.rows += 1
    check.tokens += len(completion.token_ids)
    if completion.finish_reason is FinishReason.ERROR:
        check.failures.append(f"a row failed: {completion.error}")
        return
    found = oracle.follow(
        request, completion.token_ids, completion.finish_reason is FinishReason.STOP
    )
    check.equal += not found
    _judge(check, found)


def _judge(check: Check, found: Sequence[Divergence]) -> None:
    check.near_ties += [divergence for divergence in found if divergence.is_near_tie]
    check.failures += [
        f"{d.token} for {d.expected} at position {d.position}, gap {d.gap:.2e}"
        for d in found
        if not d.is_near_tie
    ]


def compare(
    check: Check,
    oracle: Oracle,
    request: Request,
    completion: Completion,
    expected: Sequence[int],
) -> None:
    """Compare one row with the ids it should have; the oracle tells near-ties from faults."""
    check.rows += 1
    check.tokens += len(expected)
    if completion.finish_reason is FinishReason.ERROR:
        check.failures.append(f"a row failed: {completion.error}")
        return
    if list(completion.token_ids) == list(expected):
        check.equal += 1
        return
    ended = completion.finish_reason is FinishReason.STOP
    found = oracle.follow(request, completion.token_ids, ended) or oracle.follow(
        request, expected, len(expected) < request.max_tokens
    )
    _judge(check, found)
    if not found:
        check.failures.append("ids differ where neither row parts from the oracle")


def _pick(names: Sequence[str], first: int, count: int) -> list[Prompt]:
    """Return `count` prompts from the `first` on, taken from the workloads in turn."""
    pools = [load_workload(name).prompts for name in names]
    return [pools[i % len(pools)][i // len(pools)] for i in range(first, first + count)]


@dataclass(frozen=True, slots=True)
class Subject:
    """A model under random scripts or requests.

    Args:
        count: how many of them.
        is_tiny: whether rounding may not change an id.
    """

    model: LoadedModel
    limits: Limits
    count: int
    is_tiny: bool


def _subjects(model: str, num_tiny: int, num_real: int) -> Iterator[Subject]:
    """Yield the tiny model, and the real one unless nothing is asked of it."""
    yield Subject(load_model("tiny-thinking"), tiny_limits(), num_tiny, is_tiny=True)
    if num_real:
        target = load_model(model, dtype="float32")
        pool = load_workload(FREE_WORKLOADS[-1]).prompts
        text = "\n".join(str(message["content"]) for p in pool for message in p.messages)
        limits = text_limits(target.tokenizer.encode(text))
        yield Subject(target, limits, num_real, is_tiny=False)


def _stress(subject: Subject, first_seed: int, say: Callable[[str], None]) -> dict[str, object]:
    """Play scripts; returns their report."""
    stress = Stress(subject.model, subject.limits, is_exact=subject.is_tiny, say=say)
    return run_scripts(stress, subject.count, first_seed, say)


def _soak(subject: Subject, seed: int, say: Callable[[str], None]) -> dict[str, object]:
    """Serve requests on one engine; returns their report."""
    return run_soak(subject.model, subject.limits, subject.count, seed, say)


def _conclude(reports: dict[str, list[dict[str, object]]], json_path: str | None) -> int:
    """Keep the reports of scripts and soaks; returns the exit code."""
    if json_path is not None:
        Path(json_path).write_text(json.dumps(reports, indent=1), encoding="utf-8")
    return 3 if any(report["failures"] for kind in reports.values() for report in kind) else 0


@click.command(help=__doc__)
@click.option("--model", default="smollm2-135m", show_default=True)
@click.option("--prompts", type=click.IntRange(1, 32), default=32, show_default=True)
@click.option("--skip", type=click.IntRange(0, 31), default=0, help="Prompts to leave out first.")
@click.option("--tokens", type=click.IntRange(2, 512), default=128, show_default=True)
@click.option("--stress", type=click.IntRange(0), default=0, help="Scripts on the tiny model.")
@click.option("--stress-real", type=click.IntRange(0), default=12, show_default=True)
@click.option("--soak", type=click.IntRange(0), default=0, help="Requests on the tiny model.")
@click.option("--soak-real", type=click.IntRange(0), default=60, show_default=True)
@click.option("--first-seed", type=click.IntRange(0), default=0, help="Seed of the first script.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, writable=True))
def main(
    model: str,
    prompts: int,
    skip: int,
    tokens: int,
    stress: int,
    stress_real: int,
    soak: int,
    soak_real: int,
    first_seed: int,
    json_path: str | None,
) -> None:
    """Audit one model in float32; exits 3 when a check fails."""
    started = time.monotonic()

    def say(line: str) -> None:
        click.echo(f"{time.monotonic() - started:6.0f} s  {line}")

    try:
        reports: dict[str, list[dict[str, object]]] = {}
        if stress:
            subjects = _subjects(model, stress, stress_real)
            reports["stress"] = [_stress(subject, first_seed, say) for subject in subjects]
        if soak:
            subjects = _subjects(model, soak, soak_real)
            reports["soak"] = [_soak(subject, first_seed, say) for subject in subjects]
        if reports:
            sys.exit(_conclude(reports, json_path))
        target = load_model(model, dtype="float32")
        drafts = [target]
        if model == "smollm2-135m":
            drafts.append(load_model("smollm2-135m-first8", dtype="float32"))
        audit = Audit(
            target,
            drafts,
            _pick(FREE_WORKLOADS, skip, prompts),
            _pick((CONSTRAINED_WORKLOAD,), skip, prompts),
            tokens,
            say,
        )
        audit.run()
    except FmError as error:
        click.echo(f"fm: {error}", err=True)
        sys.exit(2)
    failed = [check for check in audit.checks if not check.passed]
    click.echo(f"{len(audit.checks) - len(failed)} passed, {len(failed)} failed")
    if json_path is not None:
        rows = [asdict(check) | {"passed": check.passed} for check in audit.checks]
        report = {"model": model, "prompts": prompts, "tokens": tokens, "checks": rows}
        Path(json_path).write_text(json.dumps(report, indent=1), encoding="utf-8")
    sys.exit(3 if failed else 0)


if __name__ == "__main__":
    main()
