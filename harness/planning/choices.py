"""What a person chooses for a run: cells, models, workloads, and how much to measure.

Imports nothing heavy: the command line makes its flags from these fields.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import check_settings, setting
from engine.errors import SettingError, UnknownNameError
from harness.cells.cell import CORE_CELLS
from harness.cells.name import check_url
from harness.sampling import Sampling

DEFAULT_MODELS = ("smollm2-135m",)
DEFAULT_WORKLOADS = ("short-chat", "json-extract", "long-form")
DEFAULT_PRESET = "quick"
GATE_PRESET = "gate"
GATE_CELLS = tuple(f"{name}@draft_budgets=fixed" if "spec" in name else name for name in CORE_CELLS)
GATE_WORKLOADS = ("json-extract",)
"""What `fm gate --base` measures when nothing is named: free text and documents on one workload.
How much is drafted follows no measured times there, so that its counts are the same each time."""

TARGETS = {
    "in-process": "engines in this process",
    "http": "fm serve in children, as its clients see it",
}
"""What runs the cells -> what that is; a URL is a target too."""

MAX_TAG = 100

URL_SCHEMES = ("http://", "https://")


@dataclass(frozen=True, slots=True)
class Preset:
    """How much a run measures; `max_tokens` None leaves each workload its own."""

    blocks: int
    prompts: int
    max_tokens: int | None


PRESETS: dict[str, Preset] = {
    "smoke": Preset(1, 2, 32),
    "quick": Preset(3, 3, 64),
    "gate": Preset(7, 4, 80),
    "quote": Preset(10, 32, None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a person chose for a run; None takes the preset's value."""

    cells: tuple[str, ...] = CORE_CELLS
    models: tuple[str, ...] = DEFAULT_MODELS
    workloads: tuple[str, ...] = DEFAULT_WORKLOADS
    preset: str = DEFAULT_PRESET
    target: str = "in-process"
    blocks: int | None = setting(None, "passes over all cells", low=1, high=1000)
    prompts: int | None = setting(None, "prompts a trial", low=1, high=100_000)
    max_tokens: int | None = setting(None, "token cap of free-running cells", low=1, high=1_000_000)
    temperature: float = setting(0.0, "of every request; 0 takes likeliest tokens", low=0, high=100)
    seed: int = setting(
        0, "of the prompt choice, the shuffles and the draws", low=0, high=2**63 - 1
    )
    base: str = setting("", "commit whose code runs every cell once more, beside this one's")
    tag: str = setting("", "words kept with the run, to find it by")

    def __post_init__(self) -> None:
        check_settings(self)
        if self.preset not in PRESETS:
            raise UnknownNameError("preset", self.preset, PRESETS)
        if self.target not in TARGETS and not self.is_remote:
            raise UnknownNameError("target", self.target, [*TARGETS, "http://HOST:PORT/v1"])
        if self.base and self.is_remote:
            raise SettingError(
                f"the target {self.target} runs no code of a base; drop --base or --target"
            )
        if self.is_remote:
            check_url(self.target, "the target")
        if len(self.tag) > MAX_TAG or not self.tag.isprintable():
            raise SettingError(
                f"tag is {self.tag[:80]!r}; it must be one line of {MAX_TAG} characters at most"
            )
        for what, names in (("model", self.models), ("workload", self.workloads)):
            if not all(names) or not names:
                raise SettingError(f"no {what} is named in {','.join(names)!r}; give at least one")

    @property
    def is_remote(self) -> bool:
        """True when the target is a server that somebody else runs."""
        return self.target.startswith(URL_SCHEMES)

    def sampling(self) -> Sampling:
        """Return how every request is sampled."""
        return Sampling(self.temperature, self.seed)

    def amounts(self) -> Preset:
        """Return the preset with the overrides applied."""
        preset = PRESETS[self.preset]
        return Preset(
            blocks=self.blocks or preset.blocks,
            prompts=self.prompts or preset.prompts,
            max_tokens=self.max_tokens or preset.max_tokens,
        )
