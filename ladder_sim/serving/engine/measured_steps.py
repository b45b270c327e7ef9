"""Times of steps as a running engine logged them, from a file of `ladder-sim calibrate fit-steps`."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from ladder_sim.errors import SpecError
from ladder_sim.serving.engine.scheduler import SchedulerSpec
from ladder_sim.serving.steps.mix import Line, Mix, MixTimes, StepLimits
from ladder_sim.specs.reading import read_table
from ladder_sim.system.files import Schema, read_toml, shown_path
from ladder_sim.values import Limits, Seconds, check_fields

# of the file
SCHEMA = Schema()

_Count = Annotated[int, Limits(1, 1e9)]
_TIMES = ("step_s", "prompt_token_s", "decode_token_s", "context_token_s", "between_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSteps:
    """How long steps of one engine take, linear in what they run, and how it schedules.

    Raises
    ------
    SpecError
        A field breaks a rule.
    """

    engine: str
    """What ran, e.g. "vllm 0.32.0, TP 2"."""
    steps: _Count
    """How many were fitted."""
    error: Annotated[float, Limits(0, 10)]
    """Half of them are within this share of the fit."""
    step_s: Seconds
    """Seconds of a step, whatever it runs."""
    prompt_token_s: Seconds
    """Seconds of each new token of a prompt."""
    decode_token_s: Seconds
    """Seconds of each token that is decoded, drafted ones included."""
    context_token_s: Seconds
    """Seconds of each token that decoding requests read."""
    between_s: Seconds
    """From the end of a step to the next one, where the log's times end with the model's."""
    frontend_s: Seconds
    """Seconds of a request until the scheduler has it: HTTP, and the tokens of its text."""
    step_tokens: _Count
    """Most new tokens of a step."""
    step_requests: _Count
    """Most requests that run at a time."""
    kv_tokens: _Count
    """Tokens that the KV cache holds."""
    block_tokens: _Count
    """Tokens of each block of the KV cache."""
    context: _Count
    """Tokens of the longest request."""
    prefix_cache: bool
    """Requests use what others that began alike left in the KV cache."""
    ahead: bool
    """The next step is scheduled while one runs."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.block_tokens > self.kv_tokens:
            raise SpecError(
                f"block_tokens {self.block_tokens}: must be at most kv_tokens, {self.kv_tokens}",
                hint="give the tokens of one block and of the whole KV cache",
            )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file of a fit."""
        table = read_toml(path, SCHEMA, what="a file of `ladder-sim calibrate fit-steps`")
        return read_table(cls, table, where=shown_path(path))

    @property
    def spec(self) -> SchedulerSpec:
        """How the engine schedules."""
        same = ("step_tokens", "step_requests", "block_tokens", "prefix_cache", "ahead", "frontend_s")
        return SchedulerSpec(
            kv_blocks=self.kv_tokens // self.block_tokens, **{name: getattr(self, name) for name in same}
        )

    @property
    def limits(self) -> StepLimits:
        """The largest step."""
        return StepLimits(self.step_requests, self.step_tokens, self.context)

    def of_mix(self, mix: Mix, duty: float = 0.0) -> float:
        """Return the seconds of a step, as measured: the GPU's power limit is in what was measured."""
        return (
            self.step_s
            + self.between_s
            + self.prompt_token_s * mix.chunk
            + self.decode_token_s * (mix.decoding + mix.drafted)
            + self.context_token_s * mix.context
        )

    def line(self, mix: Mix) -> Line:
        """Return the seconds of a step that decodes, and of those after it."""
        return Line(self.of_mix(mix), self.context_token_s * mix.decoding, self.limits.context)

    def slower(self, factor: float) -> Self:
        """Return the step times, each `factor` times as long."""
        return dataclasses.replace(self, **{name: factor * getattr(self, name) for name in _TIMES})


@dataclass(frozen=True, slots=True)
class RewiredSteps:
    """Measured steps as another residual wiring would take them: by the ratio of simulated ones."""

    measured: MixTimes
    """Times of the engine's steps, with the standard wiring."""
    standard: MixTimes
    """Simulated, with that wiring."""
    other: MixTimes
    """Simulated, with the other one."""

    @property
    def limits(self) -> StepLimits:
        return self.other.limits

    def of_mix(self, mix: Mix, duty: float = 0.0) -> float:
        return self.measured.of_mix(mix, duty) * self.other.of_mix(mix, duty) / self.standard.of_mix(mix, duty)

    def line(self, mix: Mix) -> Line:
        # a ratio of lines is none
        return Line(self.of_mix(mix), 0.0, 1)

    def slower(self, factor: float) -> Self:
        return dataclasses.replace(self, other=self.other.slower(factor))
