"""The flags of the commands that open an engine, and settings written as flags again.

Imports nothing heavy: the command line is made from it.
"""

from __future__ import annotations

from engine.config import EngineConfig

DRAFT_FLAGS = {
    "draft-model": "draft_model",
    "draft-kind": "drafter",
    "num-draft-tokens": "num_draft_tokens",
    "draft-budgets": "draft_budgets",
    "acceptance": "acceptance",
}
CACHE_FLAGS = {"kv-bits": "kv_bits"}
ENGINE_FLAGS = {
    **DRAFT_FLAGS,
    "spec-batching": "spec_batching",
    "grammar-batching": "grammar_batching",
    "batch": "max_rows",
    "kv-budget": "kv_budget_gb",
    **CACHE_FLAGS,
    "prefix-cache-bytes": "prefix_cache_bytes",
    "prefill-chunk": "prefill_chunk",
    "interleaved-prefill": "interleaved_prefill",
    "pipelined": "pipelined",
    "adapter": "adapters",
}
"""Flag of `fm serve` -> field of EngineConfig."""

SERVED_ROWS = 8
"""A server's default for rows decoded together: one that is alone costs as if serial."""

SERVER_FLAGS = {
    "host": "host",
    "port": "port",
    "api-key": "api_key",
    "insecure": "insecure",
    "max-body": "max_body_bytes",
    "max-waiting": "max_waiting",
    "default-max-tokens": "default_max_tokens",
    "request-timeout": "request_timeout_s",
    "client-timeout": "client_timeout_s",
    "stuck-after": "stuck_after_s",
    "drain": "drain_s",
    "allow-overrides": "allow_overrides",
    "log-level": "log_level",
}
"""Flag of `fm serve` -> field of ServerConfig."""

DRAFTERS = ("drafter", "draft_model")
"""Settings that say who drafts."""


def engine_flags(config: EngineConfig) -> tuple[str, ...]:
    """Return the flags of `fm serve` that open an engine with these settings.

    Settings that draft nothing name no drafter, which `fm serve` would refuse.
    """
    usual, found = EngineConfig(), list[str]()
    for flag, name in ENGINE_FLAGS.items():
        value = getattr(config, name)
        is_idle = name in DRAFTERS and config.num_draft_tokens == 0
        if is_idle or (value == getattr(usual, name) and name != "max_rows"):
            continue
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            for item in value if isinstance(value, tuple) else (value,):
                found += [f"--{flag}", str(item)]
    return tuple(found)
