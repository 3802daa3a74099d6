"""`fm serve`."""

from __future__ import annotations

import os

import click

from engine.config import EngineConfig
from engine.server.settings import ServerConfig
from harness import exit_codes
from harness.commands import options
from harness.commands.places import say
from harness.flags import chosen_settings, setting_flags
from harness.serve_flags import ENGINE_FLAGS, SERVED_ROWS, SERVER_FLAGS


@click.command()
@options.model
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
