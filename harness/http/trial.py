"""A turn of a trial over HTTP: bodies out, streams in, the rows that one in this process gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

from engine.request import Completion, FinishReason
from harness.http.chat_reply import ChatReply
from harness.http.client import Ask, Exchange, Load, LoadClient, Patience
from harness.http.process import ServerError
from harness.store.rows import Phase, RequestRow, TrialRecord
from harness.trials.clock import StepTally, TokenTimes
from harness.trials.memory import RssSampler
from harness.trials.prompting import (
    WARM_UP_TOKENS,
    cache_salt_of,
    constraint_of,
    sampling_of,
    template_options,
    warm_up_prompts,
)
from harness.trials.record import Served, accept_rows, filled_trial, reply_rows, with_step_bytes
from harness.trials.target import OnTokens, TrialJob, ignore_tokens, timeout_s
from harness.workloads.workload import Prompt

LOADING = Patience(first_event_s=600.0, total_s=600.0)
"""A server may load its weights at the first request."""

ENDINGS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """Which fields a server takes beyond those that all do.

    Args:
        usage: tells token counts at the end of a stream.
        template: takes variables of the chat template.
        seed: takes a seed.
    """

    usage: bool = True
    template: bool = True
    seed: bool = True


class Telemetry(Protocol):
    """What a server tells of itself beside its replies."""

    def begin(self) -> None:
        """A measured turn starts."""
        ...

    def sums(self, rows: int) -> StepTally | None:
        """Return the sums over the decode steps since `begin`; `rows` is full occupancy."""
        ...

    @property
    def peak_mlx_bytes(self) -> int | None:
        """Device memory at its highest since `begin`."""
        ...

    @property
    def step_bytes(self) -> Mapping[str, int | None]:
        """What a decode step has to read (the engine's StepBytes), empty where it is not told."""
        ...


class Silent:
    """The telemetry of a server that tells nothing."""

    peak_mlx_bytes: int | None = None
    step_bytes: Mapping[str, int | None] = MappingProxyType({})

    def begin(self) -> None:
        """Nothing begins."""

    def sums(self, rows: int) -> StepTally | None:
        """Return nothing."""
        return None


@dataclass(slots=True, kw_only=True)
class HttpServer:
    """A server that trials are run against.

    Args:
        model: its id for the server.
        path: of the chats, behind the client's URL.
        extras: further fields of a request of a cell.
        pids: its processes, where they are on this machine and known.
        lost: why it is gone, "" while it is there; asked when something failed.
        tells_ids: its extras ask for token ids, and it sends them.
        schema_check: finds out whether it enforces schemas.
        counts_end: its usage counts the end token of a reply that ended by itself.
    """

    client: LoadClient[ChatReply]
    model: str
    path: str
    takes: Takes = field(default_factory=Takes)
    extras: Callable[[TrialJob], Mapping[str, Any]] = lambda _job: {}
    telemetry: Telemetry = field(default_factory=Silent)
    pids: Callable[[], Sequence[int]] = tuple
    lost: Callable[[], str] = str
    tells_ids: bool = False
    counts_end: bool = False
    schema_check: Callable[[], bool] = lambda: True
    warm: set[tuple[str, str]] = field(default_factory=set)
    _enforces_schema: bool | None = None

    def enforces_schema(self) -> bool:
        """Return whether it enforces a json_schema response_format; asked once, when needed."""
        if self._enforces_schema is None:
            self._enforces_schema = self.schema_check()
        return self._enforces_schema

    def run(self, job: TrialJob, on_tokens: OnTokens) -> TrialRecord:
        """Run a turn in waves; a server that was lost in it makes it a failed one, with its rows.

        Raises:
            ServerError: the warm-up failed.
            FmError: the server does not tell of itself any more.
        """
        warm_up = self._warm_up(job)
        asks = self._asks(job, job.prompts, job.max_tokens)
        self.client.patience = _patience(job)
        self.telemetry.begin()
        with RssSampler(pids=pids) if (pids := self.pids()) else _Unwatched() as memory:
            load = self.client.waves(asks, job.cell.rows, on_tokens)
        rows = self._rows(job, job.prompts, load, start=len(warm_up))
        record = self._record(job, load, rows, memory.peak_bytes)
        return replace(record, requests=(*warm_up, *rows))

    def _record(
        self, job: TrialJob, load: Load[ChatReply], rows: list[RequestRow], rss_bytes: int | None
    ) -> TrialRecord:
        has_failures = any(item.error is not None for item in load.exchanges)
        if has_failures and (reason := self.lost()):
            return TrialRecord(trial=replace(job.trial, status="failed", reason=reason))
        sums = self.telemetry.sums(job.cell.rows)
        filled = filled_trial(job.trial, rows, sums, load.wall_s)
        trial = replace(
            with_step_bytes(filled, self.telemetry.step_bytes),
            peak_mlx_bytes=self.telemetry.peak_mlx_bytes,
            peak_rss_bytes=rss_bytes,
            **_client(load),
        )
        completions = [_completion(item) for item in load.exchanges]
        return TrialRecord(trial=trial, accepts=accept_rows(trial, completions))

    def _warm_up(self, job: TrialJob) -> list[RequestRow]:
        key = (job.cell.name, job.workload.name)
        if key in self.warm:
            return []
        prompts = warm_up_prompts(job)
        asks = self._asks(job, prompts, WARM_UP_TOKENS, "warmup")
        self.client.patience = LOADING
        load = self.client.waves(asks, job.cell.rows, ignore_tokens)
        broken = next((item.error for item in load.exchanges if item.error is not None), None)
        if broken is not None:
            raise ServerError(self.lost() or f"the warm-up failed: {broken}")
        self.warm.add(key)
        return self._rows(job, prompts, load, "warmup")

    def _asks(
        self,
        job: TrialJob,
        prompts: Sequence[Prompt],
        max_tokens: int,
        phase: Phase = "measured",
    ) -> list[Ask]:
        salt = cache_salt_of(job, phase)
        extras = {**self.extras(job), **({"cache_salt": salt} if salt else {})}
        return [
            Ask.of(self.path, {**self._body(job, prompt, max_tokens), **extras})
            for prompt in prompts
        ]

    def _body(self, job: TrialJob, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
        sampling, constraint = sampling_of(job, prompt), constraint_of(job.cell, prompt)
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(prompt.messages),
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "stream": True,
        }
        if self.takes.usage:
            body["stream_options"] = {"include_usage": True}
        if self.takes.seed and sampling.seed is not None:
            body["seed"] = sampling.seed
        if self.takes.template and (options := template_options(job.workload)):
            body["chat_template_kwargs"] = options
        if constraint is not None:
            named = {"name": prompt.schema_name, "schema": constraint.value, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        return body

    def _rows(
        self,
        job: TrialJob,
        prompts: Sequence[Prompt],
        load: Load[ChatReply],
        phase: Phase = "measured",
        start: int = 0,
    ) -> list[RequestRow]:
        served = [Served(_completion(item), times_of(item)) for item in load.exchanges]
        rows = reply_rows(job, prompts, served, phase, start)
        return [
            self._as_told(row, item, sampling_of(job, prompt).seed)
            for row, item, prompt in zip(rows, load.exchanges, prompts, strict=True)
        ]

    def _as_told(
        self, row: RequestRow, exchange: Exchange[ChatReply], seed: int | None
    ) -> RequestRow:
        """Return the row with None where nothing was told, and counts from where they are."""
        usage = exchange.reply.usage or {}
        details = usage.get("prompt_tokens_details") or {}
        speculates = "speculation" in usage and row.drafted is not None
        told = replace(
            row,
            prompt_tokens=usage.get("prompt_tokens"),
            cached_tokens=details.get("cached_tokens"),
            seed=seed if self.takes.seed else None,
            drafted=row.drafted if speculates else None,
            accepted=row.accepted if speculates else None,
            target_calls=row.target_calls if speculates else None,
            illegal_drafts=None,
        )
        if self.tells_ids:
            return told
        count = usage.get("completion_tokens")
        if count and self.counts_end and row.finish_reason == FinishReason.STOP:
            count -= 1
        if count is not None or exchange.error is not None:
            return replace(told, token_ids=None, completion_tokens=count, count_source="usage")
        chunks = exchange.reply.chunks
        return replace(told, token_ids=None, completion_tokens=chunks, count_source="estimated")


class _Unwatched:
    """In place of a sampler of memory, for processes that are not here."""

    peak_bytes: int | None = None

    def __enter__(self) -> _Unwatched:
        return self

    def __exit__(self, *_error: object) -> None:
        return None


def _patience(job: TrialJob) -> Patience:
    """Return how long one reply may take: in a lane that routes, it waits for its whole wave."""
    total_s = timeout_s(job.max_tokens * job.cell.rows)
    return Patience(first_event_s=total_s, event_s=timeout_s(0), total_s=total_s)


def _client(load: Load[ChatReply]) -> dict[str, Any]:
    """Return what the trial keeps of the client itself."""
    return {
        "client_delay_s": load.delay.delay_s,
        "client_stream_s": load.delay.stream_s,
        "retries": sum(item.retries for item in load.exchanges),
    }


def _completion(exchange: Exchange[ChatReply]) -> Completion:
    """Return a reply as an engine's record, with zeros where nothing was told."""
    reply, usage = exchange.reply, exchange.reply.usage or {}
    speculation = usage.get("speculation") or {}
    error = exchange.error or _odd_ending(reply) or _odd_count(reply)
    return Completion(
        request_id="",
        prompt_tokens=usage.get("prompt_tokens") or 0,
        token_ids=tuple(reply.token_ids or ()),
        text=reply.text,
        finish_reason=FinishReason.ERROR if error else ENDINGS[str(reply.finish_reason)],
        error=error,
        lane=usage.get("lane") or "",
        lane_reason=usage.get("lane_reason") or "",
        target_calls=speculation.get("target_calls") or 0,
        drafted_by_position=tuple(speculation.get("drafted_by_position") or ()),
        accepted_by_position=tuple(speculation.get("accepted_by_position") or ()),
        conformance=usage.get("conformance"),
    )


def _odd_ending(reply: ChatReply) -> str | None:
    if reply.finish_reason in ENDINGS:
        return None
    return f"the reply ended for {reply.finish_reason!r}, which is neither stop nor length"


def _odd_count(reply: ChatReply) -> str | None:
    """A server that tells ids and counts has to tell the same number of both."""
    told = (reply.usage or {}).get("completion_tokens")
    if reply.token_ids is None or told is None or told == len(reply.token_ids):
        return None
    return f"{len(reply.token_ids)} token ids came, and usage counts {told}"


def times_of(exchange: Exchange[ChatReply]) -> TokenTimes:
    """Return when a reply came; it has ended when it says why, whatever follows that."""
    reply = exchange.reply
    return TokenTimes(
        submitted_s=exchange.due_s,
        first_token_s=reply.first_token_s,
        first_text_s=reply.first_text_s,
        last_token_s=reply.last_token_s,
        ended_s=reply.finished_s or exchange.ended_s,
    )
