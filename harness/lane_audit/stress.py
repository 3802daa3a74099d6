"""The stress audit: random scripts of the batch lane, every row against its solo run.

Rows join and are cancelled at any step, from other threads too, with prompts, constraints, seeds,
penalties, stop texts and draft budgets of their own, on engines of random settings. A row has to
write what the oracle writes for its request alone, and the engine's integer state has to be what
its shadow says, after every step. `scripts/audit --stress 200` runs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import jsonschema

from engine.models.load import LoadedModel
from engine.oracle import Divergence, Oracle
from engine.request import Completion, FinishReason, Request
from harness.judging.token_identity import allowed_near_ties
from harness.lane_audit.play import Play
from harness.lane_audit.script import Limits, Script, make_script

COUNTS = (
    "rows",
    "equal",
    "cancelled",
    "constrained",
    "tokens",
    "steps",
    "moves",
    "twins",
    "cached_tokens",
    "accepted",
)
"""Fields of ScriptResult that add up."""


@dataclass(slots=True)
class ScriptResult:
    """What one script showed.

    Attributes:
        rows, equal: rows compared, and rows with the same ids as alone.
        cancelled: rows that were cancelled; what they wrote is compared too.
        tokens: emitted tokens compared.
        near_ties: places where a row parts from the oracle by rounding alone.
        failures: one line for each thing that is wrong.
    """

    seed: int
    rows: int = 0
    equal: int = 0
    cancelled: int = 0
    constrained: int = 0
    tokens: int = 0
    steps: int = 0
    moves: int = 0
    twins: int = 0
    cached_tokens: int = 0
    accepted: int = 0
    near_ties: list[Divergence] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Stress:
    """Scripts on one model.

    Args:
        is_exact: every id has to be the oracle's; otherwise rows are followed by the oracle and
            near-ties are let pass, as few as harness.judging.token_identity says.
        say: takes a line of progress.
    """

    model: LoadedModel
    limits: Limits
    is_exact: bool
    say: Callable[[str], None]
    results: list[ScriptResult] = field(default_factory=list)
    _oracle: Oracle = field(init=False)
    _solo: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._oracle = Oracle(self.model)

    @property
    def tokens(self) -> int:
        """Tokens compared."""
        return sum(result.tokens for result in self.results)

    @property
    def problems(self) -> list[str]:
        """One line for each thing that is wrong."""
        found = [f"script {r.seed}: {line}" for r in self.results for line in r.failures]
        ties = sum(len(result.near_ties) for result in self.results)
        if ties > allowed_near_ties(self.tokens):
            found.append(f"{ties} near-ties in {self.tokens} tokens")
        return found

    def run(self, seeds: Sequence[int]) -> None:
        """Play the scripts of some seeds."""
        for number, seed in enumerate(seeds, 1):
            result = self.play(make_script(seed, self.limits))
            self.results.append(result)
            word = f"FAIL {result.failures[0]}" if result.failures else "pass"
            self.say(
                f"{number}/{len(seeds)} {self.model.name} script {seed}: {result.rows} rows, "
                f"{result.tokens} tokens, {result.steps} steps  {word}"
            )

    def play(self, script: Script) -> ScriptResult:
        """Play one script and judge its rows."""
        self._solo.clear()
        play = Play(self.model, script, self._generate)
        try:
            play.run()
        except Exception as error:  # noqa: BLE001  # a script that raises has failed; others go on
            play.failures.append(f"{type(error).__name__}: {error}"[:300])
        result = ScriptResult(
            script.seed,
            steps=play.engine.stats().steps,
            moves=play.shadow.moves,
            twins=play.shadow.twins,
            failures=play.failures,
        )
        for row in script.rows:
            if (completion := play.completions.get(row.request_id)) is None:
                result.failures.append(f"{row.request_id} has no completion")
            else:
                self._judge(result, row, completion, play.texts.get(row.request_id, ""))
        return result

    def _judge(self, result: ScriptResult, row: Request, done: Completion, told: str) -> None:
        result.rows += 1
        result.tokens += len(done.token_ids)
        result.cancelled += done.finish_reason is FinishReason.CANCELLED
        result.constrained += row.constraint is not None
        result.cached_tokens += done.cached_tokens
        result.accepted += done.accepted
        judge = self._compare if self.is_exact else self._follow
        found = [*self._record_problems(row, done, told), *judge(result, row, done)]
        result.equal += not found
        result.failures += [f"{row.request_id}: {problem}" for problem in found]

    # -- ids -----------------------------------------------------------------------------------

    def _generate(self, row: Request) -> list[int]:
        if row.request_id not in self._solo:
            self._solo[row.request_id] = self._oracle.generate(row)
        return self._solo[row.request_id]

    def _compare(self, result: ScriptResult, row: Request, done: Completion) -> list[str]:
        """Compare with the ids and the end of the row alone."""
        alone, ids = self._generate(row), list(done.token_ids)
        stop = self._stop_place(row, alone)
        whole = alone if stop is None else alone[: stop + 1]
        if done.finish_reason is FinishReason.CANCELLED:
            whole = whole[: len(ids)]
        if ids == whole:
            return self._end_problems(row, done, stop is not None)
        gaps = self._oracle.follow(row, ids, self._ends_itself(row, done))
        return [f"writes {ids}, alone {whole} (parts from the oracle at {gaps})"]

    def _follow(self, result: ScriptResult, row: Request, done: Completion) -> list[str]:
        """Let the oracle choose every token after the row's own prefix."""
        found = self._oracle.follow(row, done.token_ids, self._ends_itself(row, done))
        result.near_ties += [place for place in found if place.is_near_tie]
        clear = [f"parts from the oracle at {place}" for place in found if not place.is_near_tie]
        return clear + self._end_problems(row, done, self._stops_last(row, done))

    def _ends_itself(self, row: Request, done: Completion) -> bool:
        """Return whether the oracle has to end behind the row's ids."""
        is_short = len(done.token_ids) < row.max_tokens
        is_stop = done.finish_reason is FinishReason.STOP
        return is_stop and is_short and not self._stops_last(row, done)

    def _stops_last(self, row: Request, done: Completion) -> bool:
        return self._stop_place(row, done.token_ids) is not None

    def _stop_place(self, row: Request, ids: Sequence[int]) -> int | None:
        """Return at which token a stop text is complete."""
        token_bytes, text = self.model.tokenizer.token_bytes, b""
        for place, token in enumerate(ids):
            text += token_bytes(token)
            if any(stop.encode() in text for stop in row.stop):
                return place
        return None

    # -- everything else a record says ---------------------------------------------------------

    def _end_problems(self, row: Request, done: Completion, has_stopped: bool) -> list[str]:
        """Return whether the finish reason is true."""
        stop = self._stop_place(row, done.token_ids)
        if stop is not None and stop != len(done.token_ids) - 1:
            return [f"goes on behind its stop text at token {stop}"]
        if done.finish_reason is FinishReason.CANCELLED:
            return []
        is_short = len(done.token_ids) < row.max_tokens
        reason = FinishReason.STOP if is_short or has_stopped else FinishReason.LENGTH
        may_be_whole = row.constraint is not None and done.finish_reason is FinishReason.STOP
        if done.finish_reason is reason or (may_be_whole and not is_short):
            return []
        return [f"ends with {done.finish_reason} ({done.error}), should with {reason}"]

    def _record_problems(self, row: Request, done: Completion, told: str) -> list[str]:
        """Return what is wrong with text, log-probabilities, counts and conformance."""
        params, ids = row.sampling, done.token_ids
        entries = len(ids) if params.logprobs else 0
        num_top = params.top_logprobs
        tops = [
            entry
            for entry in done.logprobs
            if len(entry.top) != num_top
            and (entry.top[num_top:] != ((entry.token_id, entry.logprob),) or not num_top)
        ]
        checks = {
            f"text {done.text!r} was told as {told!r}": done.finish_reason is FinishReason.CANCELLED
            or told == done.text,
            f"a stop text in {done.text!r}": not any(stop in done.text for stop in row.stop),
            f"{len(done.provenance)} origins": len(done.provenance) == len(ids),
            f"{len(done.logprobs)} logprobs": len(done.logprobs) == entries and not tops,
            "logprobs of other tokens": not entries
            or [entry.token_id for entry in done.logprobs] == list(ids),
            f"{done.accepted} accepted of {done.drafted}": done.accepted <= done.drafted,
            f"the seed is {done.seed}": done.seed == params.seed,
            f"does not conform: {done.text!r}, {done.conformance}": _conforms(row, done),
        }
        return [problem for problem, holds in checks.items() if not holds]


def _conforms(row: Request, done: Completion) -> bool:
    """Return whether a constrained row that ended by itself is a valid document of its schema."""
    if row.constraint is None:
        return done.conformance is None
    if done.finish_reason is not FinishReason.STOP:
        return done.conformance == "failed"
    try:
        jsonschema.validate(json.loads(done.text), row.constraint.value)
    except (ValueError, jsonschema.ValidationError):
        return False
    return done.conformance == "enforced"


def run_scripts(
    stress: Stress, count: int, first_seed: int, say: Callable[[str], None]
) -> dict[str, object]:
    """Run `count` scripts; returns the report of `--json`."""
    stress.run(range(first_seed, first_seed + count))
    results, problems = stress.results, stress.problems
    sums = {name: sum(getattr(result, name) for result in results) for name in COUNTS}
    ties = sum(len(result.near_ties) for result in results)
    say(
        f"{'FAIL' if problems else 'pass'}  stress on {stress.model.name}: {len(results)} scripts, "
        f"{sums['equal']}/{sums['rows']} rows equal, {sums['tokens']} tokens, {ties} near-ties"
        + (f"; {problems[0]}" if problems else "")
    )
    scripts = [asdict(result) for result in results]
    return {"model": stress.model.name, **sums, "failures": problems, "scripts": scripts}
