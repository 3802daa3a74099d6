"""`fm generate`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from engine.config import EngineConfig
from harness.commands import options
from harness.flags import chosen_settings, setting_flags
from harness.serve_flags import CACHE_FLAGS, DRAFT_FLAGS


@click.command()
@click.argument("prompt")
@options.model
@click.option("--schema", type=options.FILE, help="JSON Schema the reply must meet")
@click.option("--max-tokens", type=int, default=256, help="most tokens of the reply")
@click.option("--temperature", type=float, default=0.0, help="0 takes likeliest tokens")
@click.option("--seed", type=int, default=0, help="of the draws")
@click.option(
    "--reasoning/--no-reasoning",
    default=None,
    help="whether the model reasons first, if it can; as its template says, or not with --schema",
)
@setting_flags(EngineConfig, {**DRAFT_FLAGS, **CACHE_FLAGS})
@click.pass_context
def generate(
    context: click.Context,
    prompt: str,
    model: str,
    schema: Path | None,
    max_tokens: int,
    temperature: float,
    seed: int,
    reasoning: bool | None,
) -> int:
    """Answer one PROMPT from the shell.

    The text comes as it is made; reasoning, and what it took, go to standard error.
    """
    from engine.backend import require_backend
    from engine.request import SamplingParams
    from harness.commands.generate_text import read_schema, request_for, write_reply
    from harness.opening import engine_config, open_engine

    constraint = None if schema is None else read_schema(schema)
    sampling = SamplingParams(temperature=temperature, seed=seed)
    config = engine_config(chosen_settings(context, EngineConfig))
    require_backend()
    engine = open_engine(model, config)
    request = request_for(engine.model, prompt, max_tokens, sampling, constraint, reasoning)
    return write_reply(engine, request, sys.stdout, sys.stderr)
