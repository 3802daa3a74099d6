"""`fm serve` and `fm generate`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from engine.config import EngineConfig
from engine.server.settings import ServerConfig
from harness import exit_codes
from harness.commands.places import say
from harness.flags import chosen_settings, setting_flags
from harness.planning.choices import DEFAULT_MODELS
from harness.serve_flags import (
    CACHE_FLAGS,
    DRAFT_FLAGS,
    ENGINE_FLAGS,
    SERVED_ROWS,
    SERVER_FLAGS,
)


@click.command()
@click.option("--model", default=DEFAULT_MODELS[0], help="a name of `fm models`, hf:..., a path")
@setting_flags(EngineConfig, ENGINE_FLAGS, {"max_rows": SERVED_ROWS})
@setting_flags(ServerConfig, SERVER_FLAGS)
@click.pass_context
def serve(context: click.Context, model: str) -> int:
    """Serve a model over HTTP, the way OpenAI's API is spoken."""
    settings = {"api_key": os.environ.get("FM_API_KEY") or None}
    server = ServerConfig(**settings | chosen_settings(context, ServerConfig))
    from engine.backend import require_backend
    from engine.server.model_ids import check_ids
    from harness.opening import engine_config, open_engine, served_name

    config, name = engine_config(chosen_settings(context, EngineConfig)), served_name(model)
    check_ids(name, config)
    require_backend()
    from engine.server import listen

    listen.log_to_stderr(server.log_level)
    listen.serve(server, name, lambda: open_engine(model, config), say)
    return exit_codes.PASS


@click.command()
@click.argument("prompt")
@click.option("--model", default=DEFAULT_MODELS[0], help="a name of `fm models`, hf:..., a path")
@click.option("--schema", type=click.Path(path_type=Path), help="JSON Schema the reply must meet")
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
    """Answer one PROMPT: text as it comes; reasoning, and what it took, on standard error."""
    from engine.backend import require_backend
    from engine.request import SamplingParams
    from harness.commands import generate as shell
    from harness.opening import engine_config, open_engine

    constraint = None if schema is None else shell.read_schema(schema)
    sampling = SamplingParams(temperature=temperature, seed=seed)
    config = engine_config(chosen_settings(context, EngineConfig))
    require_backend()
    engine = open_engine(model, config)
    request = shell.request_for(engine.model, prompt, max_tokens, sampling, constraint, reasoning)
    return shell.generate(engine, request, sys.stdout, sys.stderr)
