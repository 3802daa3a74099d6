"""The engine: submit, cancel, step. Every lane is this one loop with other settings.

A step is plan, draft, forward, verify, commit. The forward of the next step is launched on tokens
that are still on the device whenever it does not depend on a host decision; grammar masks are
filled while the forward runs. The host waits once a step, and only then without the lock: rows may
be submitted and cancelled from any thread at any time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import replace

import mlx.core as mx

from engine import arrays, emit
from engine.backend import shape_block
from engine.cache.reuse import PrefixReuse
from engine.completions import Completions
from engine.config import EngineConfig, adapter_places
from engine.costs import StepCosts
from engine.draft.registry import build_budgets
from engine.draft.source import DraftSource
from engine.errors import RequestError, SettingError, detail_of
from engine.flight import Draft, Flight, Selector
from engine.intake import Intake
from engine.kv_budget import BYTES_PER_GB, KvBudget
from engine.launch import Launcher
from engine.models.footprint import step_weight_bytes
from engine.models.load import LoadedModel
from engine.models.lora import load_adapters
from engine.plan import Slot, StepKind, StepPlan
from engine.propose import Proposer
from engine.request import Completion, FinishReason, Request, TokenEvent, TokenLogprobs
from engine.runner import Runner
from engine.scheduler import Scheduler
from engine.sequence import MAX_FAILURES, Sequence
from engine.step_time import StepTimer
from engine.switches import degrade
from engine.telemetry import EngineStats, ReplayReport, StepBytes, StepReport, Tally
from engine.verify import Verdict, accept_match


class Engine:
    """Decodes requests on one model.

    Args:
        model: the target.
        config: every setting, but for what a kill switch turns off (engine.switches).
        drafter: proposes tokens when `config.num_draft_tokens` is above zero.
        costs: prices by which draft budgets adapt; None measures them when they are needed.

    Attributes:
        last_step: what the last call of `step` computed; None when it computed nothing.

    Raises:
        SettingError: drafts are asked for and there is no drafter.
        ModelError: the model, the drafter or an adapter does not fit.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        drafter: DraftSource | None = None,
        costs: StepCosts | None = None,
    ) -> None:
        config = degrade(config)
        if drafter is None and config.num_draft_tokens:
            raise SettingError(
                f"num_draft_tokens is {config.num_draft_tokens} and there is no drafter; "
                "give one (engine.draft.registry.build_drafter) or set it to 0"
            )
        self.model = model
        self.config = config
        self.last_step: StepReport | None = None
        self._weight_bytes = step_weight_bytes(model)
        self._adapters = load_adapters(model, adapter_places(config.adapters))
        self._runner = Runner(model, shape_block(), config.kv_bits, self._adapters)
        if config.max_rows > 1:
            self._runner.check_batch()
        self._runner.warm_up(config.max_rows, widest=1 + config.num_draft_tokens)
        self._timer = StepTimer()
        self._selector = Selector(
            model.vocab_size, model.eos_ids, config.max_rows, config.acceptance, self._timer
        )
        drafter = drafter if config.num_draft_tokens else None
        if drafter is not None:
            drafter.open(model)
        draft_budgets = build_budgets(config, self._runner, drafter, costs)
        self._proposer = Proposer(model, drafter, draft_budgets)
        self._launcher = Launcher(self._runner, self._proposer, self._timer)
        self._kv_budget = _kv_budget(config, self._runner, drafter)
        self._intake = Intake(model, config, self._adapters, self._runner.cache.is_rewindable)
        self._prefixes = PrefixReuse(config, self._runner.cache)
        self._scheduler = Scheduler(config, self._kv_budget, draft_budgets, self._prefixes.take)
        self._lock = threading.RLock()
        self._live: dict[str, Sequence] = {}
        self._completions = Completions()
        self._flight: Flight | None = None
        self._at_risk: list[Sequence] = []
        self._untold: list[TokenEvent] = []
        self._tally = Tally()

    # -- the surface ---------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """True while a row waits or decodes, events are untold, or a drafter has rows to forget."""
        with self._lock:
            has_rows = self._scheduler.has_work or self._proposer.has_leavers
            return has_rows or bool(self._untold)

    @property
    def step_bytes(self) -> StepBytes:
        """What a decode step has to read; waits for nothing."""
        costs = self._runner.kv_costs
        return StepBytes(
            weights=self._weight_bytes,
            kv_per_token=costs.per_token,
            kv_per_row=costs.per_slot,
        )

    def submit(self, request: Request) -> str:
        """Queue a request and return its id; from any thread, does not wait for the device.

        A constraint is compiled here, in the caller's thread.

        Raises:
            RequestError: a value cannot be served, the prompt fills the model's context, or the
                row would not fit the KV budget alone; SchemaError when it is the constraint. A
                budget beyond the context is cut to it, and `min_tokens` with it.
        """
        return self._enqueue(self._intake.row(request))

    def submit_copies(self, request: Request, num_rows: int) -> list[str]:
        """Queue one prompt `num_rows` times; the prompt is computed once.

        Row i draws with seed + i, and its id is the request's with "/i" behind it. The oldest live
        row computes the prompt, the others copy it from there. Raises as submit; then no row is
        queued.
        """
        rows = self._intake.copies(request, num_rows)
        with self._lock:
            for row in rows:
                self._check_new(row)
            return [self._enqueue(row) for row in rows]

    def cancel(self, request_id: str) -> bool:
        """End a row now; from any thread. Unknown and finished ids are ignored.

        The row's slot is free for the next step. Returns whether a row was ended.
        """
        with self._lock:
            sequence = self._live.get(request_id)
            if sequence is None or sequence.is_finished:
                return False
            emit.cancel(sequence)
            self._finish(sequence)
            if self._flight is not None and self._flight.is_over:
                self._flight = None
            return True

    def step(self) -> list[TokenEvent]:
        """Run one step and return what it emitted, in slot order; by one thread at a time.

        Empty when there was no work, and for a step inside a long prompt. It need not be the thread
        that opened the engine, nor the same one each time. But MLX keeps the workers of every
        thread that has computed, and may abort a process that exits while such a thread ends: use
        few, and let each call mx.clear_streams() last.

        A step may raise (out of memory, a broken drafter). Then every live row starts over: what it
        has emitted stands and is fed again behind its prompt, so that the next calls go on with the
        same tokens. What was emitted before the step raised is told by the next call, which does
        nothing else. A row that is in MAX_FAILURES failed steps without a token between ends with
        an error. So calling step while there is work comes to an end, whatever is raised.
        """
        try:
            self._timer.start()
            with self._lock:
                self._at_risk, self.last_step = [], None
                self._proposer.forget_leavers()
                if self._untold:
                    return self._tell()
                flight = self._flight or self._launch()
                if flight is None:
                    return self._tell()
                self._at_risk = [slot.sequence for slot in flight.plan.slots]
                self._flight = None
                self._timer.skip()
                tokens = self._selector.select(flight)
                if tokens is not None:
                    # By itself: arrays evaluated together are read when the last one is done.
                    arrays.launch(tokens)
                self._timer.lap("sample")
                ahead = self._follow(flight, tokens)
            chosen = flight.read(tokens)
            ended_s = self._timer.lap("wait")
            flight.take_logprobs()
            self._timer.lap("commit")
            with self._lock:
                self._timer.skip()
                self._land(flight, chosen)
                self._proposer.forget_leavers()
                self._flight = None if ahead is None or ahead.is_over else ahead
                self._runner.cache.landed(num_ahead=0 if self._flight is None else 1)
                self._timer.lap("commit")
                self.last_step = self._tally.add(
                    flight, self._untold, self.config.max_rows, self._timer.seconds, ended_s
                )
                return self._tell()
        except BaseException as error:
            with self._lock:
                self._start_over(error)
            raise

    def completion(self, request_id: str) -> Completion:
        """Return the record of a finished row, once.

        It is kept until it is taken, or until MAX_KEPT rows (engine.completions) have ended since.

        Raises:
            RequestError: there is none.
        """
        with self._lock:
            return self._completions.take(request_id)

    def generate(self, requests: Many[Request]) -> list[Completion]:
        """Submit `requests` together, run to the end, return their completions in order.

        When one of them is refused, or a step raises, none is left behind.
        """
        ids: list[str] = []
        done: dict[str, Completion] = {}
        try:
            for request in requests:
                request_id = self.submit(request)
                ids.append(request_id)
            own = set(ids)
            while self.has_work:
                for event in self.step():
                    if event.finish_reason is not None and event.request_id in own:
                        done[event.request_id] = self.completion(event.request_id)
        except BaseException:
            for request_id in ids:
                self._drop(request_id)
            raise
        return [done.get(request_id) or self.completion(request_id) for request_id in ids]

    def replay(self, request: Request, token_ids: Many[int]) -> ReplayReport:
        """Decode `token_ids` again, each forced, to time the steps of a text that is known.

        With `request.constraint` masks are filled and applied, without it they are not, on the
        same ids: the difference is the cost of the grammar. When a step raises, no row is left.

        Raises:
            RequestError: other rows are live, an id is no token, or the constraint refuses one.
        """
        if self._live:
            raise RequestError("a replay needs an idle engine; run or cancel the live rows first")
        forced = replace(
            request,
            max_tokens=len(token_ids),
            num_draft_tokens=0,
            request_id="",
            stop=(),
            sampling=replace(request.sampling, logprobs=False, top_logprobs=0, min_tokens=0),
        )
        self._intake.check_ids(token_ids)
        request_id = self._enqueue(self._intake.row(forced, tuple(token_ids)))
        step_s: list[float] = []
        mask_s: list[float] = []
        try:
            while self.has_work:
                before = time.perf_counter()
                self.step()
                if self.last_step is not None and self.last_step.is_decode:
                    step_s.append(time.perf_counter() - before)
                    mask_s.append(self.last_step.mask_s)
        except BaseException:
            self._drop(request_id)
            raise
        error = self.completion(request_id).error
        if error is not None:
            raise RequestError(f"the recorded ids cannot be replayed: {error}")
        return ReplayReport(step_s=tuple(step_s), mask_s=tuple(mask_s))

    def stats(self) -> EngineStats:
        """Return totals since the engine was opened, and what is live now."""
        with self._lock:
            return self._tally.stats(
                lanes=[row.route.lane for row in self._scheduler.active],
                pending=self._scheduler.num_waiting,
                kv_bytes=self._runner.cache.num_bytes,
                projected_bytes=self._scheduler.projected_bytes,
                budget_bytes=self._kv_budget.limit_bytes,
                prefix=self._prefixes.stats(),
                grammar=self._intake.grammar_stats,
            )

    # -- submission ----------------------------------------------------------------------------

    def _drop(self, request_id: str) -> None:
        """End a row that nobody waits for, and forget its record."""
        with self._lock:
            self.cancel(request_id)
            if request_id in self._completions:
                self._completions.take(request_id)

    def _check_new(self, sequence: Sequence) -> None:
        request_id = sequence.request.request_id
        if request_id in self._live or request_id in self._completions:
            raise RequestError(
                f"request_id {request_id!r} is live, or its completion not taken; choose another"
            )

    def _enqueue(self, sequence: Sequence) -> str:
        request_id = sequence.request.request_id
        with self._lock:
            self._check_new(sequence)
            self._scheduler.add(sequence)
            self._live[request_id] = sequence
            self._tally.submitted += 1
        return request_id

    # -- one step ------------------------------------------------------------------------------

    def _launch(self) -> Flight | None:
        """Start a step whose tokens the host knows."""
        started_s = self._timer.skip()
        plan = self._plan()
        self._timer.lap("plan")
        if plan is None:
            return None
        self._at_risk = [slot.sequence for slot in plan.slots]
        return self._launcher.launch(plan, started_s)

    def _plan(self) -> StepPlan | None:
        """Let rows join and the cache fit them; return what they are to do next."""
        self._runner.cache.landed(num_ahead=0)
        admission = self._scheduler.admit()
        self._copy(admission.moves)
        room = self._scheduler.room(self._runner.room)
        self._runner.make_room(room)
        self._proposer.make_room(room)
        self._copy(self._scheduler.share_prompts())
        return self._scheduler.plan()

    def _copy(self, moves: Many[tuple[int, int]]) -> None:
        for source, destination in moves:
            self._runner.cache.move(source, destination)

    def _follow(self, flight: Flight, tokens: mx.array | None) -> Flight | None:
        """Launch the next forward on tokens the host has not read, where nothing hinges on them."""
        if not self.config.pipelined or tokens is None:
            return None
        plan = self._plan_ahead(flight)
        started_s = self._timer.lap("plan")
        return None if plan is None else self._launcher.launch_ahead(plan, tokens, started_s)

    def _plan_ahead(self, flight: Flight) -> StepPlan | None:
        """Return the step behind one that is not read; None when it hinges on what is read."""
        plan = self._scheduler.plan_ahead(flight.plan)
        room = self._runner.room
        if plan is None or self._scheduler.room(room) != room:
            return None  # a cache is resized between steps: kernels may write to it unseen
        return plan

    def _land(self, flight: Flight, chosen: list[list[int]] | None) -> None:
        """Commit what a step chose; rows that were cancelled meanwhile are passed over."""
        verdicts = [
            self._judge(flight, slot, draft, chosen)
            for slot, draft in zip(flight.plan.slots, flight.drafts, strict=True)
        ]
        if flight.plan.kind is StepKind.DECODE:
            self._proposer.observe(flight.plan.slots, flight.drafts, verdicts)
        held = self._settle(flight, verdicts)
        for slot, draft, verdict in zip(flight.plan.slots, flight.drafts, verdicts, strict=True):
            sequence, row = slot.sequence, flight.plan.row(slot)
            if not sequence.is_finished:
                sequence.num_cached = slot.start + held[row]
                entries = flight.logprobs.get(row, ())
                # one by one: what a row has emitted is told, even when the next token fails
                self._untold.extend(self._commit(sequence, verdict, bool(draft.ids), entries))
                sequence.target_calls += flight.plan.kind is StepKind.DECODE
        for slot, verdict in zip(flight.plan.slots, verdicts, strict=True):
            self._keep_prefix(flight, slot, verdict)
            is_live = self._live.get(slot.sequence.request.request_id) is slot.sequence
            if slot.sequence.is_finished and is_live:
                self._finish(slot.sequence)

    def _commit(
        self,
        sequence: Sequence,
        verdict: Verdict | None,
        was_drafted: bool,
        logprobs: Many[TokenLogprobs],
    ) -> Iterable[TokenEvent]:
        if verdict is None:
            return []
        if sequence.error is not None:
            return [emit.fail(sequence, sequence.error)]
        return emit.commit(sequence, verdict, was_drafted, self.model.eos_ids, logprobs)

    def _keep_prefix(self, flight: Flight, slot: Slot, verdict: Verdict | None) -> None:
        """Cache a prompt that has just been computed, and a row that has ended well."""
        reason = slot.sequence.finish_reason
        if verdict is None or reason in (FinishReason.CANCELLED, FinishReason.ERROR):
            return
        if flight.plan.kind is StepKind.PREFILL or reason is not None:
            self._prefixes.store(slot.sequence, slot.index)

    def _settle(self, flight: Flight, verdicts: list[Verdict | None]) -> tuple[int, ...]:
        """Let the cache forget rejected drafts; returns how many fed tokens each row holds."""
        kept = [0] * flight.plan.num_rows
        for slot, verdict in zip(flight.plan.slots, verdicts, strict=True):
            accepted = 0 if verdict is None else verdict.num_accepted
            kept[flight.plan.row(slot)] = slot.num_known + accepted
        if tuple(kept) == flight.counts:
            return flight.counts
        return self._runner.settle(flight.plan.first, kept)

    def _judge(
        self, flight: Flight, slot: Slot, draft: Draft, chosen: list[list[int]] | None
    ) -> Verdict | None:
        """Judge a row's drafts and tell the drafter, before any row changes."""
        sequence = slot.sequence
        if chosen is None or not slot.samples or sequence.is_finished:
            return None
        choices = chosen[flight.plan.row(slot)][flight.column(slot) :]
        verdict = accept_match(
            [sequence.forced_next] if sequence.forced_ids else choices, draft.ids
        )
        if slot.draft_budget and sequence.error is None:
            self._proposer.learn(sequence, verdict.num_accepted)
        return verdict

    def _finish(self, sequence: Sequence) -> None:
        """Free a finished row's slot and keep its record; live until all of that is done."""
        self._scheduler.release(sequence)
        self._proposer.leave(sequence)
        self._selector.leave(sequence)
        sequence.siblings = ()
        self._completions.keep(sequence.completion())
        self._tally.finished += 1
        del self._live[sequence.request.request_id]

    def _tell(self) -> list[TokenEvent]:
        events, self._untold, self._at_risk = self._untold, [], []
        return events

    # -- after a step that raised --------------------------------------------------------------

    def _start_over(self, error: BaseException) -> None:
        """Let go of all that was computed, which may have failed unseen, and keep what was said."""
        self._flight = None
        if isinstance(error, Exception):
            self._blame(detail_of(error))
        for sequence in [row for row in self._live.values() if row.is_finished]:
            self._finish(sequence)
        rows = list(self._live.values())
        for sequence in rows:
            sequence.restart()
        self._scheduler.restart(rows)
        self._runner.cache.clear()
        self._prefixes.clear()
        self._proposer.restart()

    def _blame(self, detail: str) -> None:
        """Count a failed step against its rows; one that fails too often ends with an error.

        Before its rows are known it is the youngest row's: without it there was less to do.
        """
        active = self._scheduler.active
        youngest = [row for row in self._live.values() if row in active][-1:]
        for sequence in self._at_risk or youngest or list(self._live.values())[:1]:
            sequence.num_failures += 1
            if sequence.num_failures >= MAX_FAILURES and not sequence.is_finished:
                reason = f"{MAX_FAILURES} steps failed, the last with {detail}; try again later"
                self._untold.append(emit.fail(sequence, reason))


def _kv_budget(config: EngineConfig, runner: Runner, drafter: DraftSource | None) -> KvBudget:
    costs = runner.kv_costs if drafter is None else runner.kv_costs + drafter.kv_costs
    limit = config.kv_budget_gb
    return KvBudget(costs, None if limit is None else int(limit * BYTES_PER_GB))
