"""An engine double whose speed is known, and a target that runs whole trials on it.

It stands where an engine stands: `harness.trials.drive` steps it, and `harness.trials.record`
makes the rows. On a virtual clock a whole run takes milliseconds:

    from harness.calibration.metronome import MetronomeTarget, Pace, VirtualClock
    from harness.calibration.rehearsal import rehearse
    from harness.planning.choices import Choices

    plain, drafting = Pace(step_s=0.020, noise=0.01), Pace(step_s=0.018, noise=0.01)
    target = MetronomeTarget({"serial": plain, "serial+spec": drafting}, seed=1)
    report = rehearse(Choices(cells=("spec",), workloads=("short-chat",), preset="gate"), target)
    (cell,) = [cell for cell in report.cells if cell.place.cell == "serial+spec"]
    assert cell.main.ratio.verdict == "faster"

A cell with a variant (`serial@aa`) keeps the pace of the one without, unless it has its own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.config import check_settings, setting
from engine.errors import SettingError
from engine.plan import StepKind
from engine.request import Completion, FinishReason, Provenance, Request, TokenEvent
from engine.telemetry import StepReport
from harness.calibration.disturbance import Disturbances
from harness.calibration.pacing import PacedClock, RealClock, VirtualClock
from harness.cells.cell import Cell
from harness.store.rows import DivergenceRow, LawRow, ModelRow, RequestRow, TrialRecord, TrialRow
from harness.trials.drive import Drive, drive
from harness.trials.prompting import WARM_UP_TOKENS, constraint_of, sampling_of, warm_up_prompts
from harness.trials.record import accept_rows, filled_trial, reply_rows
from harness.trials.target import OnTokens, Parting, SampledReply, TrialJob, ignore_tokens
from harness.workloads.workload import Prompt, Workload

__all__ = ["Metronome", "MetronomeTarget", "Pace", "RealClock", "VirtualClock"]

OnStep = Callable[[StepReport, float], None]
"""Called with each step, and the instant at which it was really over."""

Answer = Callable[[TrialJob, Prompt], str]
"""The reply to a prompt: one token a character."""

SENTENCE = "A metronome says the same again. "


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast one cell is, and what disturbs it; times are before any disturbance.

    Args:
        ttft_s: from the submission of a wave to the first token of each of its rows.
        drafted_per_step: drafts of a row in a step; None drafts what is accepted, which is one
            less than `tokens_per_step`.
        mask_s: host time of one mask, part of `step_s`; under a grammar every token has one.
        host_s: what the host does in a step besides masks, whether the device computes meanwhile
            or not; part of `step_s`.
    """

    step_s: float = setting(0.02, "seconds of a decode step", low=0, high=1e6)
    ttft_s: float = setting(0.05, "seconds of a prefill", low=0, high=1e6)
    tokens_per_step: int = setting(1, "tokens a row gets in a decode step", low=1, high=64)
    drafted_per_step: int | None = setting(None, "drafts a row and step", low=0, high=64)
    mask_s: float = setting(0.0, "seconds of one mask", low=0, high=1e6)
    host_s: float = setting(0.0, "seconds of the host in a step, masks aside", low=0, high=1e6)
    noise: float = setting(0.0, "deviation of the log of a turn's time", low=0, high=10)
    step_noise: float = setting(0.0, "deviation of the log of a step's time", low=0, high=10)
    drift_per_trial: float = setting(0.0, "log of the time, a trial", low=-1, high=1)
    outlier_rate: float = setting(0.0, "share of turns slowed down", low=0, high=1)
    outlier_factor: float = setting(2.0, "how many times as long they take", low=0.01, high=100)
    peak_bytes: int | None = setting(None, "memory of a trial", low=0, high=2**60)

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def tok_s(self) -> float:
        """Tokens a second of one row in decode steps, undisturbed."""
        return self.tokens_per_step / self.step_s


@dataclass(slots=True)
class _Row:
    request: Request
    ids: tuple[int, ...]
    is_cut: bool
    emitted: int = 0
    steps: int = 0


@dataclass(slots=True)
class Metronome:
    """Decodes known replies at a known pace; the surface that `harness.trials.drive` uses.

    A wave's rows all get their first token in one prefill step; decode steps follow. A row ends in
    the step that has room for its end token, as rows of an engine do.

    Args:
        reply: the text of a request's reply, cut at its budget; one token a character.
        slowness: what the times of this trial are multiplied by.
        rng: draws the noise of steps.
        lane: the lane that completions tell.
        on_step: told of each step, behind it.
    """

    pace: Pace
    clock: PacedClock
    reply: Callable[[Request], str]
    max_rows: int = 1
    slowness: float = 1.0
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    lane: str = "serial"
    on_step: OnStep | None = None
    last_step: StepReport | None = None
    _waiting: dict[str, _Row] = field(default_factory=dict)
    _live: dict[str, _Row] = field(default_factory=dict)
    _done: dict[str, Completion] = field(default_factory=dict)
    _submitted: int = 0

    @property
    def has_work(self) -> bool:
        """True while a row waits or decodes."""
        return bool(self._waiting or self._live)

    def submit(self, request: Request) -> str:
        """Queue a request."""
        self._submitted += 1
        request_id = request.request_id or f"metronome-{self._submitted}"
        text = self.reply(request)
        ids = tuple(map(ord, text[: request.max_tokens]))
        self._waiting[request_id] = _Row(request, ids, is_cut=len(text) >= request.max_tokens)
        return request_id

    def step(self) -> list[TokenEvent]:
        """Take the time of one step, and return what it emitted."""
        started_s = self.clock()
        if self._waiting:
            self._live |= self._waiting
            new, self._waiting = self._waiting, {}
            return self._advance(new, 1, self.pace.ttft_s, started_s, StepKind.PREFILL)
        pace = self.pace
        return self._advance(
            self._live, pace.tokens_per_step, pace.step_s, started_s, StepKind.DECODE
        )

    def completion(self, request_id: str) -> Completion:
        """Return the record of a finished row, once."""
        return self._done.pop(request_id)

    def _advance(
        self,
        rows: Mapping[str, _Row],
        width: int,
        seconds: float,
        started_s: float,
        kind: StepKind,
    ) -> list[TokenEvent]:
        num_rows = len(rows)
        events = [
            event
            for request_id, row in list(rows.items())
            for event in self._emit(request_id, row, width, kind)
        ]
        noise = self.rng.lognormvariate(0, self.pace.step_noise) if self.pace.step_noise else 1.0
        slowness = self.slowness * noise
        ended_s = started_s + seconds * slowness
        committed = sum(event.token_id is not None for event in events)
        masked = sum(row.request.constraint is not None for row in rows.values()) * width
        mask_s = masked * self.pace.mask_s
        host_s = mask_s + self.pace.host_s * slowness
        self.last_step = StepReport(
            kind=kind,
            rows=num_rows,
            max_rows=self.max_rows,
            positions=num_rows * width,
            tokens=num_rows * width,
            prompt_tokens=0,
            committed=committed,
            draft_s=0.0,
            mask_s=mask_s,
            mask_positions=masked,
            started_s=started_s,
            ended_s=ended_s,
            wait_s=max(0.0, ended_s - started_s - host_s),
        )
        # Nothing but the wait is left to do: what is done in a step is part of its time.
        over_s = self.clock.wait_until(ended_s)
        if self.on_step is not None:
            self.on_step(self.last_step, over_s)
        return events

    def _emit(self, request_id: str, row: _Row, width: int, kind: StepKind) -> list[TokenEvent]:
        row.steps += kind is StepKind.DECODE
        start = row.emitted
        new = row.ids[start : start + width]
        row.emitted += len(new)
        events = [
            TokenEvent(request_id, token, chr(token), start + place)
            for place, token in enumerate(new)
        ]
        is_over = row.emitted == len(row.ids)
        if is_over and row.is_cut:
            events[-1] = replace(events[-1], finish_reason=FinishReason.LENGTH)
            self._finish(request_id, row, FinishReason.LENGTH)
        elif is_over and len(new) < width:
            end = FinishReason.STOP
            events.append(TokenEvent(request_id, None, "", row.emitted, finish_reason=end))
            self._finish(request_id, row, end)
        return events

    def _finish(self, request_id: str, row: _Row, reason: FinishReason) -> None:
        del self._live[request_id]
        accepted = self.pace.tokens_per_step - 1
        drafted = self.pace.drafted_per_step
        drafted = accepted if drafted is None else max(drafted, accepted)
        self._done[request_id] = Completion(
            request_id=request_id,
            prompt_tokens=len(row.request.prompt_ids),
            token_ids=row.ids,
            text="".join(map(chr, row.ids)),
            finish_reason=reason,
            provenance=(Provenance.SAMPLED,) * len(row.ids),
            lane=self.lane,
            lane_reason="the metronome has one lane",
            target_calls=row.steps,
            drafted_by_position=(row.steps,) * drafted,
            accepted_by_position=(row.steps,) * accepted,
            conformance=None if row.request.constraint is None else "enforced",
        )


def usual_answer(job: TrialJob, prompt: Prompt) -> str:
    """Return the document a prompt expects, else a text that fills any budget."""
    if prompt.expected is not None:
        return json.dumps(prompt.expected)
    text = f"{prompt.id}: {SENTENCE}"
    return (text * (1 + job.max_tokens // len(text)))[: job.max_tokens]


class MetronomeTarget:
    """A target whose cells have known speeds.

    Args:
        speeds: paces by canonical cell name.
        seed: of the disturbances.
        clock: None makes a virtual one.
        autocorrelation: of the noise from one trial to the next, 0 to 1 (excluded).
        answer: what cells reply; the same whatever the cell, or identity fails.
        on_step: told of each step of measured requests.
    """

    def __init__(
        self,
        speeds: Mapping[str, Pace],
        seed: int = 0,
        clock: PacedClock | None = None,
        *,
        autocorrelation: float = 0.0,
        answer: Answer = usual_answer,
        on_step: OnStep | None = None,
    ) -> None:
        self.speeds = dict(speeds)
        self.clock: PacedClock = VirtualClock() if clock is None else clock
        self.answer = answer
        self.on_step = on_step
        self.disturbances = Disturbances(seed, autocorrelation)
        self._rng = random.Random(f"steps/{seed}")
        self._warm: set[tuple[str, str]] = set()

    def pace(self, cell: Cell) -> Pace:
        """Return the pace of a cell.

        Raises:
            SettingError: neither it nor its cell without the variant has one.
        """
        name = cell.name
        found = self.speeds.get(name) or self.speeds.get(name.partition("@")[0])
        if found is None:
            known = ", ".join(sorted(self.speeds)) or "none"
            raise SettingError(f"cell {name!r} has no pace; give one beside those of {known}")
        return found

    def open(self, model: str) -> ModelRow:
        """Any name is a model."""
        return ModelRow(name=model, digest=f"metronome of {model}")

    def check(self, cell: Cell, workload: Workload) -> None:
        """See that the cell has a pace."""
        self.pace(cell)

    def run(self, job: TrialJob, on_tokens: OnTokens) -> TrialRecord:
        """Run a trial, its first one on a workload behind a warm-up that nothing disturbs."""
        pace = self.pace(job.cell)
        warm_up = self._warm_up(pace, job)
        engine = self._engine(pace, job, job.prompts, self._next_factor(pace, job))
        engine.on_step = self.on_step
        done = self._drive(engine, job, job.prompts, job.max_tokens, on_tokens)
        rows = reply_rows(job, job.prompts, done.served, start=len(warm_up))
        trial = replace(
            filled_trial(job.trial, rows, done.tally, done.wall_s),
            peak_mlx_bytes=pace.peak_bytes,
            peak_rss_bytes=pace.peak_bytes,
        )
        return TrialRecord(
            trial=_with_replay(trial, job, pace, engine.slowness, rows),
            requests=(*warm_up, *rows),
            accepts=accept_rows(trial, [served.completion for served in done.served]),
        )

    def judge(self, parting: Parting) -> Sequence[DivergenceRow]:
        """Say nothing: a parting is a fault here."""
        return ()

    def weigh(self, reply: SampledReply) -> LawRow:
        """Say that nothing speaks against the law."""
        return LawRow(
            trial_id=reply.row.trial_id,
            position=reply.row.position,
            draws=reply.draws,
            impossible_at=None,
            evidence={"0.5": 0.0},
        )

    def close(self) -> None:
        """Nothing is held."""

    def _next_factor(self, pace: Pace, job: TrialJob) -> float:
        return self.disturbances.next_factor(pace, 1 / job.num_turns)

    def _warm_up(self, pace: Pace, job: TrialJob) -> list[RequestRow]:
        key = (job.cell.name, job.workload.name)
        if key in self._warm:
            return []
        self._warm.add(key)
        prompts = warm_up_prompts(job)
        engine = self._engine(pace, job, prompts, slowness=1.0)
        done = self._drive(engine, job, prompts, WARM_UP_TOKENS, ignore_tokens)
        return reply_rows(job, prompts, done.served, "warmup")

    def _engine(
        self, pace: Pace, job: TrialJob, prompts: Sequence[Prompt], slowness: float
    ) -> Metronome:
        return Metronome(
            pace=pace,
            clock=self.clock,
            reply=lambda request: self.answer(job, prompts[int(request.request_id)]),
            max_rows=job.cell.rows,
            slowness=slowness,
            rng=self._rng,
            lane=job.cell.lane_taken,
        )

    def _drive(
        self,
        engine: Metronome,
        job: TrialJob,
        prompts: Sequence[Prompt],
        max_tokens: int,
        on_tokens: OnTokens,
    ) -> Drive:
        requests = [
            Request(
                request_id=f"{place}",
                prompt_ids=tuple(map(ord, prompt.messages[-1]["content"])),
                max_tokens=max_tokens,
                constraint=constraint_of(job.cell, prompt),
                sampling=sampling_of(job, prompt),
            )
            for place, prompt in enumerate(prompts)
        ]
        return drive(engine, requests, job.cell.rows, self.clock, on_tokens)


def _with_replay(
    trial: TrialRow, job: TrialJob, pace: Pace, slowness: float, rows: Sequence[RequestRow]
) -> TrialRow:
    """Add what the replay of the first reply would tell, where a grammar is on."""
    if not (job.cell.key.has("grammar") and job.wants_replay):
        return trial
    tokens = (rows[0].completion_tokens or 0) if rows else 0
    masked_s = tokens * pace.step_s * slowness
    return replace(
        trial,
        replay_tokens=tokens,
        replay_plain_s=masked_s - tokens * pace.mask_s * slowness,
        replay_masked_s=masked_s,
        replay_mask_s=tokens * pace.mask_s * slowness,
    )
