"""What /stats tells: what is live, what was done, and what is mounted."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import mlx.core as mx
import psutil

from engine.server.totals import DecodeTotals
from engine.server.worker import EngineWorker


def snapshot(name: str, worker: EngineWorker) -> dict[str, Any]:
    """Return the state of a server as JSON; waits for the engine's lock, not for the device."""
    engine, totals = worker.opened, worker.totals
    found: dict[str, Any] = {
        "model": name,
        "state": str(worker.state),
        "rows": {"live": worker.num_rows, "ended": dict(totals.rows), "lanes": dict(totals.lanes)},
        "tokens": {
            "prompt": totals.prompt_tokens,
            "cached": totals.cached_tokens,
            "completion": totals.completion_tokens,
        },
        "speculation": {
            "drafted": totals.drafted,
            "accepted": totals.accepted,
            "acceptance": totals.acceptance,
            "target_calls": totals.target_calls,
            "illegal_drafts": totals.illegal_drafts,
        },
        "failed_steps": totals.failed_steps,
        "decode": _decoded(totals.decode),
        "memory": _memory(),
    }
    if engine is None:
        return found
    stats, config = engine.stats(), engine.config
    found["rows"] |= {
        "max": config.max_rows,
        "active": stats.active,
        "pending": stats.pending,
        "active_lanes": dict(stats.lanes),
    }
    found["speculation"] |= {
        "is_on": config.num_draft_tokens > 0,
        "draft_kind": config.drafter if config.num_draft_tokens else None,
        "draft_model": config.draft_model if config.num_draft_tokens else None,
        "num_draft_tokens": config.num_draft_tokens,
        "acceptance_rule": config.acceptance,
        "batching": config.spec_batching,
    }
    return found | {
        "kv": {
            "bytes": stats.kv_bytes,
            "projected_bytes": stats.projected_bytes,
            "budget_bytes": stats.budget_bytes,
            "bits": config.kv_bits,
        },
        "step_bytes": asdict(engine.step_bytes),
        "steps": {
            "count": stats.steps,
            "host_syncs": stats.host_syncs,
            "positions": stats.positions,
            "tokens": stats.tokens,
        },
        "prefix_cache": asdict(stats.prefix),
        "grammar_cache": asdict(stats.grammar),
    }


def _memory() -> dict[str, int]:
    active = mx.get_active_memory()
    return {
        "mlx_active_bytes": active,
        # Behind a reset it is 0 until something is allocated.
        "mlx_peak_bytes": max(active, mx.get_peak_memory()),
        "rss_bytes": psutil.Process().memory_info().rss,
    }


def _decoded(decode: DecodeTotals) -> dict[str, Any]:
    by_rows = dict(decode.by_rows)  # the engine's thread goes on adding to it
    return {
        "steps": sum(sums.steps for sums in by_rows.values()),
        "tokens": sum(sums.tokens for sums in by_rows.values()),
        "seconds": sum(sums.seconds for sums in by_rows.values()),
        "mask_positions": decode.mask_positions,
        **{f"{part}_s": spent_s for part, spent_s in decode.parts_s.items()},
        "by_rows": {str(rows): asdict(sums) for rows, sums in sorted(by_rows.items())},
    }
