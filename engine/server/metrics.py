"""What a Prometheus server reads: counts of requests, rows and tokens, and what is live."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from engine.server.lag import BOUNDS_S, LoopLag
from engine.server.totals import Totals
from engine.telemetry import EngineStats

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

TOKEN_COUNTS = {
    "prompt_tokens": "tokens of prompts",
    "cached_tokens": "tokens of prompts taken from the prefix cache",
    "completion_tokens": "tokens emitted",
    "target_calls": "decode forwards that rows took part in",
    "drafted": "tokens drafted",
    "accepted": "drafted tokens the target agreed with",
    "failed_steps": "steps that raised",
}
"""Counts of Totals -> help."""


class Metrics:
    """The metrics of one server.

    Args:
        totals: counts of the engine thread.
        stats: what is live now, None before the engine is open.
        lag: of the event loop.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(
        self, totals: Totals, stats: Callable[[], EngineStats | None], lag: LoopLag
    ) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "fm_requests", "answered requests", ("path", "status"), registry=self._registry
        )
        self._first_text_s = Histogram(
            "fm_first_text_seconds",
            "from a request's arrival to its first text",
            buckets=SECONDS,
            registry=self._registry,
        )
        self._request_s = Histogram(
            "fm_request_seconds",
            "from a request's arrival to its end",
            buckets=SECONDS,
            registry=self._registry,
        )
        self._registry.register(_EngineMetrics(totals, stats))
        self._registry.register(_LoopMetrics(lag))

    def saw_request(self, path: str, status: int) -> None:
        """Count an answer; `path` is one of the server's routes."""
        self._requests.labels(path, str(status)).inc()

    def saw_first_text(self, seconds: float) -> None:
        """Note how long a first text took."""
        self._first_text_s.observe(seconds)

    def saw_end(self, seconds: float) -> None:
        """Note how long a reply took."""
        self._request_s.observe(seconds)

    def text(self) -> bytes:
        """Return all of it in Prometheus' text format."""
        return generate_latest(self._registry)


class _EngineMetrics:
    """Numbers that are read when they are asked for."""

    def __init__(self, totals: Totals, stats: Callable[[], EngineStats | None]) -> None:
        self._totals = totals
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        """Yield one family a number."""
        for name, help in TOKEN_COUNTS.items():
            yield CounterMetricFamily(f"fm_{name}", help, value=getattr(self._totals, name))
        rows = CounterMetricFamily("fm_rows", "ended rows", labels=("finish_reason",))
        for reason, count in self._totals.rows.copy().items():
            rows.add_metric((reason,), count)
        yield rows
        stats = self._stats()
        if stats is None:
            return
        live = {
            "fm_rows_active": ("rows that hold a slot", stats.active),
            "fm_rows_pending": ("rows that wait for a slot", stats.pending),
            "fm_kv_bytes": ("bytes of keys and values", stats.kv_bytes),
            "fm_prefix_cache_bytes": ("bytes of cached prefixes", stats.prefix.num_bytes),
        }
        for name, (help, value) in live.items():
            yield GaugeMetricFamily(name, help, value=value)

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead: `collect` may wait for the engine's lock."""
        return ()


class _LoopMetrics:
    """The lag of the event loop, as it was counted."""

    def __init__(self, lag: LoopLag) -> None:
        self._lag = lag

    def collect(self) -> Iterable[Metric]:
        """Yield one histogram."""
        sums = accumulate(tuple(self._lag.counts))
        bounds = [*(f"{bound:.6g}" for bound in BOUNDS_S), "+Inf"]
        yield HistogramMetricFamily(
            "fm_event_loop_lag_seconds",
            "how late the event loop is, by share of time",
            buckets=list(zip(bounds, sums, strict=True)),
            sum_value=self._lag.total_s,
        )

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead."""
        return ()
