"""The engine: submit, cancel, step. Every lane is this one loop with other settings.

A step is plan, draft, forward, verify, commit. The forward of the next step is launched on tokens
that are still on the device whenever it does not depend on a host decision; grammar masks are
filled while the forward runs. The host waits once a step, in `_land`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence as Many
from dataclasses import replace

import mlx.core as mx

from engine import arrays
from engine.backend import shape_block
from engine.config import EngineConfig
from engine.draft.source import DraftRequest, DraftSource
from engine.errors import FmError, RequestError, RowError, SettingError
from engine.flight import Flight, select
from engine.grammar.compile import GrammarCompiler
from engine.models.load import LoadedModel
from engine.plan import Slot, StepKind, StepPlan, step_width
from engine.request import Completion, FinishReason, Provenance, Request, TokenEvent
from engine.routing import route
from engine.runner import Runner
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.telemetry import EngineStats, ReplayReport, StepReport
from engine.text import TextStream
from engine.verify import Verdict, accept_match


class Engine:
    """Decodes requests on one model.

    Args:
        model: the target.
        config: every setting.
        drafter: proposes tokens when `config.num_draft_tokens` is above zero.

    Raises:
        SettingError: drafts are asked for and there is no drafter.
    """

    def __init__(
        self, model: LoadedModel, config: EngineConfig, drafter: DraftSource | None = None
    ) -> None:
        self.model = model
        self.config = config
        self.last_step: StepReport | None = None
        self._runner = Runner(model, shape_block())
        self._scheduler = Scheduler(config)
        self._grammars = GrammarCompiler(model.tokenizer.ll, model.vocab_size, model.eos_ids)
        if drafter is None and config.num_draft_tokens:
            raise SettingError(
                f"num_draft_tokens is {config.num_draft_tokens} and there is no drafter; "
                "give one (engine.draft.registry.build_drafter) or set it to 0"
            )
        self._drafter = drafter
        if drafter is not None:
            drafter.open(model)
        self._live: dict[str, Sequence] = {}
        self._completions: dict[str, Completion] = {}
        self._flight: Flight | None = None
        self._submitted = self._finished = self._steps = 0
        self._syncs_before = arrays.SYNCS.count

    # -- the surface ---------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """True while a row waits or decodes."""
        return self._scheduler.has_work

    def submit(self, request: Request) -> str:
        """Queue a request and return its id.

        Raises:
            RequestError: a value cannot be served, or the prompt fills the model's context;
                SchemaError when it is the constraint. A budget beyond the context is cut to it.
        """
        request_id = request.request_id or f"req-{self._submitted}-{secrets.token_hex(4)}"
        if request_id in self._live or request_id in self._completions:
            raise RequestError(
                f"request_id {request_id!r} is live, or its completion not taken; choose another"
            )
        self._check_ids((*request.prompt_ids, *request.sampling.logit_bias))
        room = self._context_left(request)
        self._enqueue(
            replace(request, request_id=request_id, max_tokens=min(request.max_tokens, room))
        )
        return request_id

    def cancel(self, request_id: str) -> bool:
        """End a row now; unknown and finished ids are ignored. Returns whether a row was ended."""
        sequence = self._live.get(request_id)
        if sequence is None:
            return False
        sequence.pieces.append(sequence.text.finish())
        self._finish(sequence, FinishReason.CANCELLED)
        if self._flight is not None and self._flight.is_over:
            self._flight = None
        return True

    def step(self) -> list[TokenEvent]:
        """Run one step and return what it emitted, in slot order.

        Empty when there was no work, and for a step inside a long prompt. A step that raises has
        taken no row half way: the next call plans it again.
        """
        flight = self._flight or self._launch(self._scheduler.plan())
        if flight is None:
            return []
        self._flight = None
        tokens = select(flight)
        if tokens is not None:
            # By itself: arrays evaluated together can only be read when the last of them is done.
            arrays.launch(tokens)
        ahead = self._follow(flight, tokens)
        events = self._land(flight, tokens)
        self._flight = None if ahead is None or ahead.is_over else ahead
        return events

    def completion(self, request_id: str) -> Completion:
        """Return the record of a finished row, once."""
        return self._completions.pop(request_id)

    def generate(self, requests: Many[Request]) -> list[Completion]:
        """Submit `requests` together, run to the end, return their completions in order.

        When one of them is refused, none is left behind.
        """
        ids: list[str] = []
        try:
            for request in requests:
                request_id = self.submit(request)
                ids.append(request_id)
        except FmError:
            for request_id in ids:
                self.cancel(request_id)
                self.completion(request_id)
            raise
        while self.has_work:
            self.step()
        return [self.completion(request_id) for request_id in ids]

    def replay(self, request: Request, token_ids: Many[int]) -> ReplayReport:
        """Decode `token_ids` again, each forced, to time the steps of a text that is known.

        With `request.constraint` masks are filled and applied, without it they are not, on the
        same ids: the difference is the cost of the grammar.

        Raises:
            RequestError: other rows are live, an id is no token, or the constraint refuses one.
        """
        if self._live:
            raise RequestError("a replay needs an idle engine; run or cancel the live rows first")
        forced = replace(
            request, max_tokens=len(token_ids), num_draft_tokens=0, request_id="", stop=()
        )
        self._check_ids((*forced.prompt_ids, *token_ids))
        request_id = f"replay-{self._submitted}"
        self._enqueue(replace(forced, request_id=request_id), tuple(token_ids))
        step_s: list[float] = []
        mask_s: list[float] = []
        while self.has_work:
            before = time.perf_counter()
            self.step()
            if self.last_step is not None and self.last_step.is_decode:
                step_s.append(time.perf_counter() - before)
                mask_s.append(self.last_step.mask_s)
        error = self.completion(request_id).error
        if error is not None:
            raise RequestError(f"the recorded ids cannot be replayed: {error}")
        return ReplayReport(step_s=tuple(step_s), mask_s=tuple(mask_s))

    def stats(self) -> EngineStats:
        """Return totals since the engine was opened."""
        return EngineStats(
            submitted=self._submitted,
            waiting=self._scheduler.num_waiting,
            active=self._scheduler.num_active,
            finished=self._finished,
            steps=self._steps,
            host_syncs=arrays.SYNCS.count - self._syncs_before,
            kv_bytes=self._runner.cache.num_bytes,
        )

    # -- submission ----------------------------------------------------------------------------

    def _check_ids(self, ids: Many[int]) -> None:
        vocab_size = self.model.vocab_size
        for token in ids:
            if not isinstance(token, int) or not 0 <= token < vocab_size:
                raise RequestError(
                    f"token id {token!r} is no whole number in the vocabulary 0..{vocab_size - 1}"
                )

    def _context_left(self, request: Request) -> int:
        """Return how many tokens the model's context leaves behind the prompt."""
        context = self.model.config.get("max_position_embeddings")
        if context is None:
            return request.max_tokens
        room = int(context) - len(request.prompt_ids)
        if room < 1:
            raise RequestError(
                f"the prompt has {len(request.prompt_ids)} tokens and the model's context is "
                f"{context}; shorten the prompt"
            )
        return room

    def _enqueue(self, request: Request, forced_ids: tuple[int, ...] = ()) -> None:
        constraint = request.constraint
        grammar = self._grammars.compile(constraint) if constraint is not None else None
        seed = request.sampling.seed
        sequence = Sequence(
            request=request,
            route=route(self.config, request),
            seed=secrets.randbits(63) if seed is None else seed,
            text=TextStream(self.model.tokenizer.token_bytes, request.stop),
            matcher=None if grammar is None else grammar.start(),
            forced_ids=forced_ids,
        )
        self._live[request.request_id] = sequence
        self._submitted += 1
        self._scheduler.add(sequence)

    # -- one step ------------------------------------------------------------------------------

    def _launch(self, plan: StepPlan | None) -> Flight | None:
        """Start a step whose tokens the host knows."""
        if plan is None:
            return None
        started_s = time.perf_counter()
        for source, destination in plan.moves:
            self._runner.cache.move(source, destination)
        if plan.kind is StepKind.PREFILL:
            return self._launch_prefill(plan, started_s)
        drafts = self._propose(plan)
        draft_s = time.perf_counter() - started_s
        rows = [slot.tokens + draft for slot, draft in zip(plan.slots, drafts, strict=True)]
        width = step_width(max(len(row) for row in rows))
        flight = self._forward(plan, arrays.ids_array(rows, width), drafts, started_s)
        flight.draft_s = draft_s
        return flight

    def _launch_prefill(self, plan: StepPlan, started_s: float) -> Flight:
        (slot,) = plan.slots
        hidden = self._runner.prefill(slot.index, slot.start, slot.tokens)
        logits = self._runner.head(hidden[:, -1:])[0] if slot.samples else None
        arrays.launch(hidden if logits is None else logits)
        return Flight(plan, ((),), logits, 1, started_s)

    def _forward(
        self, plan: StepPlan, ids: mx.array, drafts: tuple[tuple[int, ...], ...], started_s: float
    ) -> Flight:
        logits = self._runner.forward(ids, plan.first, plan.starts)
        logits = logits.reshape(-1, logits.shape[-1])
        arrays.launch(logits)
        return Flight(plan, drafts, logits, ids.shape[1], started_s)

    def _propose(self, plan: StepPlan) -> tuple[tuple[int, ...], ...]:
        """Return the drafts of each slot, cut to what may be verified."""
        requests = [DraftRequest(s.sequence, s.draft_budget) for s in plan.slots if s.draft_budget]
        if self._drafter is None or not requests:
            return ((),) * len(plan.slots)
        proposals = dict(
            zip(
                (id(request.sequence) for request in requests),
                self._drafter.propose(requests),
                strict=True,
            )
        )
        return tuple(self._cut(slot, proposals.get(id(slot.sequence), [])) for slot in plan.slots)

    def _cut(self, slot: Slot, proposal: list[int]) -> tuple[int, ...]:
        """Keep the part of a proposal that can be verified; the rest counts as rejected."""
        sequence = slot.sequence
        proposal = proposal[: slot.draft_budget]
        for index, token in enumerate(proposal):
            if token in self.model.eos_ids and not sequence.request.ignore_eos:
                proposal = proposal[: index + 1]
                break
        legal = next(
            (i for i, token in enumerate(proposal) if not 0 <= token < self.model.vocab_size),
            len(proposal),
        )
        if sequence.matcher is not None and legal:
            legal = sequence.matcher.legal_prefix(proposal[:legal])
        sequence.drafts.propose(len(proposal), len(proposal) - legal)
        return tuple(proposal[:legal])

    def _follow(self, flight: Flight, tokens: mx.array | None) -> Flight | None:
        """Launch the next forward on tokens the host has not read, where nothing hinges on them."""
        if not self.config.pipelined or tokens is None:
            return None
        plan = self._scheduler.plan_ahead(flight.plan)
        if plan is None:
            return None
        started_s = time.perf_counter()
        if any(slot.sequence.forced_ids for slot in plan.slots):
            tokens = arrays.ids_array([[slot.sequence.forced_next] for slot in plan.slots], 1)
        return self._forward(plan, tokens, ((),) * len(plan.slots), started_s)

    def _land(self, flight: Flight, tokens: mx.array | None) -> list[TokenEvent]:
        """Wait for the step's choices and commit them: the only host wait of a step."""
        chosen = arrays.read_tokens(tokens) if tokens is not None else None
        ended_s = time.perf_counter()
        verdicts = self._verify(flight, chosen) if chosen is not None else []
        events: list[TokenEvent] = []
        for row, slot in enumerate(flight.plan.slots):
            if slot.sequence.is_finished:
                continue
            slot.sequence.num_cached = slot.start + len(slot.tokens or (0,))
            if verdicts:
                slot.sequence.target_calls += flight.plan.kind is StepKind.DECODE
                events += self._commit(slot.sequence, verdicts[row], bool(flight.drafts[row]))
        self._report(flight, events, ended_s)
        return events

    def _verify(self, flight: Flight, chosen: list[list[int]]) -> list[Verdict]:
        """Judge the drafts of all rows and tell the drafter, before any row changes."""
        verdicts: list[Verdict] = []
        for slot, draft, choices in zip(flight.plan.slots, flight.drafts, chosen, strict=True):
            sequence = slot.sequence
            forced = [sequence.forced_next] if sequence.forced_ids else choices
            verdict = accept_match(forced, draft)
            verdicts.append(verdict)
            is_live = not sequence.is_finished and sequence.error is None
            if slot.draft_budget and self._drafter is not None and is_live:
                self._drafter.commit(sequence, verdict.num_accepted)
        return verdicts

    def _commit(self, sequence: Sequence, verdict: Verdict, was_drafted: bool) -> list[TokenEvent]:
        """Emit what was decided for one row; returns its events."""
        if sequence.error is not None:
            return [self._end(sequence, FinishReason.ERROR)]
        sequence.drafts.accept(verdict.num_accepted)
        sequence.num_cached += verdict.num_accepted
        events: list[TokenEvent] = []
        for index, token in enumerate(verdict.tokens):
            accepted = index < verdict.num_accepted
            events.append(self._emit(sequence, token, accepted, was_drafted))
            if sequence.is_finished:
                break
        return events

    def _emit(self, sequence: Sequence, token: int, accepted: bool, corrects: bool) -> TokenEvent:
        """Append one token to a row, and end the row when the token does."""
        if token in self.model.eos_ids and not sequence.request.ignore_eos:
            return self._end(sequence, FinishReason.STOP)
        provenance = (
            Provenance.ACCEPTED
            if accepted
            else Provenance.CORRECTED
            if corrects
            else Provenance.SAMPLED
        )
        try:
            if sequence.matcher is not None:
                sequence.matcher.advance([token])
        except RowError as error:
            sequence.error = str(error)
            return self._end(sequence, FinishReason.ERROR)
        position = sequence.num_emitted
        sequence.ids.append(token)
        sequence.provenance.append(provenance)
        text = sequence.text.push(token)
        reason = self._reason(sequence)
        if reason is not None:
            text += sequence.text.finish()
        sequence.pieces.append(text)
        if reason is not None:
            self._finish(sequence, reason)
        return TokenEvent(
            sequence.request.request_id, token, text, position, provenance, reason, sequence.error
        )

    def _reason(self, sequence: Sequence) -> FinishReason | None:
        """Return why the row ends with the token just appended, None when it goes on."""
        matcher = sequence.matcher
        if sequence.text.stopped or (matcher is not None and matcher.is_finished):
            return FinishReason.STOP
        if sequence.remaining > 0:
            return None
        is_complete = matcher is not None and matcher.is_accepting
        return FinishReason.STOP if is_complete else FinishReason.LENGTH

    def _end(self, sequence: Sequence, reason: FinishReason) -> TokenEvent:
        """End a row without a further token."""
        text = sequence.text.finish()
        sequence.pieces.append(text)
        position = sequence.num_emitted
        self._finish(sequence, reason)
        return TokenEvent(
            sequence.request.request_id,
            None,
            text,
            position,
            finish_reason=reason,
            error=sequence.error,
        )

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """Set the finish reason, free the row's slot and keep its record."""
        sequence.finish_reason = reason
        self._scheduler.release(sequence)
        request_id = sequence.request.request_id
        del self._live[request_id]
        self._finished += 1
        self._completions[request_id] = sequence.completion()
        if self._drafter is not None:
            self._drafter.close(sequence)

    def _report(self, flight: Flight, events: list[TokenEvent], ended_s: float) -> None:
        plan = flight.plan
        self._steps += 1
        is_prefill = plan.kind is StepKind.PREFILL
        prompt_tokens = len(plan.slots[0].tokens) if is_prefill else 0
        self.last_step = StepReport(
            kind=plan.kind,
            rows=len(plan.slots),
            max_rows=self.config.max_rows,
            positions=prompt_tokens or len(plan.slots) * flight.width,
            prompt_tokens=prompt_tokens,
            committed=sum(event.token_id is not None for event in events),
            draft_s=flight.draft_s,
            mask_s=flight.mask_s,
            mask_positions=flight.mask_positions,
            started_s=flight.started_s,
            ended_s=ended_s,
        )
