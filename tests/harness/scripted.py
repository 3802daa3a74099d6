"""A target that answers at once with scripted ids and speeds, and a clock that only it moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from engine.errors import FmError
from harness.cells.cell import Cell
from harness.sampling import stored
from harness.store import DivergenceRow, LawRow, ModelRow, RequestRow, TrialRecord
from harness.trials.target import OnTokens, Parting, SampledReply, TrialJob
from harness.workloads.workload import Prompt, Workload

Answer = Callable[[TrialJob, Prompt], tuple[int, ...]]


def agreeing(job: TrialJob, prompt: Prompt) -> tuple[int, ...]:
    """Every cell answers a prompt alike."""
    return (len(prompt.id), 1, 2, 3)


@dataclass(slots=True)
class Scripted:
    """Runs trials without a model.

    Args:
        answer: ids of a reply.
        speeds: seconds a trial takes, by cell name; 1 second where none is given.
        before: called with each job before it is answered; may raise.
        broken: models that cannot be opened, with the error.
        gap: what the oracle says of a parting; None says nothing.
        takes_turns: as a side of `fm gate --base`.

    Attributes:
        ran: trials that it was through with.
        turns: trials and which of their turns it ran.
    """

    answer: Answer = agreeing
    speeds: dict[str, float] = field(default_factory=dict)
    before: Callable[[TrialJob], None] = lambda job: None
    broken: dict[str, FmError] = field(default_factory=dict)
    gap: float | None = None
    takes_turns: bool = True
    now_s: float = 0.0
    ran: list[str] = field(default_factory=list)
    turns: list[tuple[str, int]] = field(default_factory=list)
    judged: list[Parting] = field(default_factory=list)
    weighed: list[SampledReply] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    def open(self, model: str) -> ModelRow:
        if model in self.broken:
            raise self.broken[model]
        self.opened.append(model)
        return ModelRow(name=model, digest=f"digest of {model}")

    def check(self, cell: Cell, workload: Workload) -> None:
        """Everything can run."""

    def run(self, job: TrialJob, on_tokens: OnTokens) -> TrialRecord:
        self.before(job)
        self.turns.append((job.trial.trial_id, job.turn))
        if job.turn == job.num_turns - 1:
            self.ran.append(job.trial.trial_id)
        seconds = self.speeds.get(job.cell.name, 1.0) / job.num_turns
        self.now_s += seconds
        rows = tuple(self._row(job, place, prompt) for place, prompt in enumerate(job.prompts))
        tokens = sum(row.completion_tokens or 0 for row in rows)
        on_tokens(tokens)
        trial = replace(
            job.trial,
            status="done",
            wall_s=seconds,
            tokens=tokens,
            aggregate_tokens=tokens,
            aggregate_s=seconds,
            decode_steps=tokens,
            step_s=seconds,
            lane_taken=job.cell.lane_taken,
        )
        return TrialRecord(trial=trial, requests=rows)

    def judge(self, parting: Parting) -> Sequence[DivergenceRow]:
        self.judged.append(parting)
        if self.gap is None:
            return []
        return [
            DivergenceRow(
                trial_id=parting.trial_id,
                prompt_id=parting.prompt.id,
                reference=parting.reference,
                position=0,
                gap=self.gap,
            )
        ]

    def weigh(self, reply: SampledReply) -> LawRow:
        self.weighed.append(reply)
        return LawRow(
            trial_id=reply.row.trial_id,
            position=reply.row.position,
            draws=reply.draws,
            impossible_at=None,
            evidence={"0.5": 0.0},
        )

    def close(self) -> None:
        """Nothing is held."""

    def _row(self, job: TrialJob, place: int, prompt: Prompt) -> RequestRow:
        ids = self.answer(job, prompt)
        params = job.sampling.params(job.trial.block, prompt.id)
        return RequestRow(
            trial_id=job.trial.trial_id,
            position=place,
            prompt_id=prompt.id,
            finish_reason="stop",
            completion_tokens=len(ids),
            token_ids=ids,
            ttft_s=0.1,
            last_token_s=0.5,
            e2e_s=0.5,
            lane_taken=job.cell.lane_taken,
            lane_reason="scripted",
            seed=params.seed,
            sampling=stored(params),
            conformance="ok" if prompt.schema else None,
        )
