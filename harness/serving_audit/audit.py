"""The audit of the server: what must hold over HTTP, on a live server, with the figures.

Everything runs against `fm serve` children on this machine. The tiny model stands for any in what
depends on no model: load, clients that leave, what one request costs the others. Conformance and
the cost of HTTP are those of `--model`. Run it with `scripts/audit --serve`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from engine.errors import FmError
from harness.exit_codes import CORRECTNESS, PASS, REGRESSION, USAGE, worst
from harness.serving_audit.beside import large_schema, long_prompt, refusals
from harness.serving_audit.conform import conformance
from harness.serving_audit.load import disconnects, load
from harness.serving_audit.overhead import overhead
from harness.serving_audit.subject import Finding, Served, served

TINY = "tiny-thinking"
FLAGS = ("--batch", "16", "--num-draft-tokens", "3", "--allow-overrides")


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """How much of everything; what is 0 is left out.

    Args:
        model: whose replies must conform, and whose decoding is timed.
        leavers: requests whose clients leave.
        prompts: documents asked for at each concurrency.
        prompt_tokens: of the long prompt beside live streams.
        rounds, tokens: replies timed in process and over HTTP, and their length.
    """

    model: str
    requests: int
    leavers: int
    prompts: int
    prompt_tokens: int
    rounds: int
    tokens: int
    seed: int

    def findings(self) -> Iterator[Finding]:
        """Run every part, against as few servers as will do."""
        with served(TINY, *FLAGS) as server:
            yield from self._of_any_model(server)
            if self.model == TINY:
                yield from self._of_the_model(server)
        if self.model != TINY and (self.prompts or self.rounds):
            with served(self.model, *FLAGS) as server:
                yield from self._of_the_model(server)

    def _of_any_model(self, server: Served) -> Iterator[Finding]:
        if self.requests:
            yield load(server, self.requests, self.seed)
        if self.leavers:
            yield disconnects(server, self.leavers, self.seed)
        if self.prompt_tokens:
            yield long_prompt(server, self.prompt_tokens)
            yield large_schema(server)
            yield refusals(server)

    def _of_the_model(self, server: Served) -> Iterator[Finding]:
        if self.prompts:
            yield conformance(server, self.prompts)
        if self.rounds:
            yield overhead(server, self.rounds, self.tokens)


@click.command(help=__doc__)
@click.option("--model", default=TINY, show_default=True, help="of conformance and overhead")
@click.option("--requests", type=click.IntRange(0), default=10_000, show_default=True)
@click.option("--disconnects", "leavers", type=click.IntRange(0), default=1000, show_default=True)
@click.option("--prompts", type=click.IntRange(0), default=24, show_default=True)
@click.option("--prompt-tokens", type=click.IntRange(0), default=2000, show_default=True)
@click.option("--rounds", type=click.IntRange(0), default=12, show_default=True)
@click.option("--tokens", type=click.IntRange(8), default=96, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--advisory-timing",
    is_flag=True,
    help="bounds on times and memory are told and change no exit code: for a shared machine",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, writable=True))
def main(
    model: str,
    requests: int,
    leavers: int,
    prompts: int,
    prompt_tokens: int,
    rounds: int,
    tokens: int,
    seed: int,
    advisory_timing: bool,
    json_path: str | None,
) -> None:
    """Audit a server; a count of 0 leaves a part out.

    Exits 3 when a property does not hold, 1 when only a bound on times or memory is passed.
    """
    audit = Audit(
        model=model,
        requests=requests,
        leavers=leavers,
        prompts=prompts,
        prompt_tokens=prompt_tokens,
        rounds=rounds,
        tokens=tokens,
        seed=seed,
    )
    started = time.monotonic()
    findings: list[Finding] = []
    try:
        for finding in audit.findings():
            findings.append(finding)
            click.echo(f"{time.monotonic() - started:6.0f} s  {finding.line()}")
    except FmError as error:
        click.echo(f"fm: {error}", err=True)
        sys.exit(USAGE)
    if json_path is not None:
        text = json.dumps([asdict(finding) for finding in findings], indent=1)
        Path(json_path).write_text(text, encoding="utf-8")
    sys.exit(exit_code(findings, advisory_timing))


def exit_code(findings: Sequence[Finding], advisory_timing: bool) -> int:
    """Return what an audit exits with."""
    failed = any(finding.failures for finding in findings)
    slow = any(finding.slow for finding in findings) and not advisory_timing
    return worst((CORRECTNESS if failed else PASS, REGRESSION if slow else PASS))


if __name__ == "__main__":
    main()
