"""What a cost model promises: for every op a time, an error bar, where both come from, and its demand on the GPU."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from ladder_sim.costs.hardware import Hardware
from ladder_sim.des.shared import NOTHING, Demand, Number, any_true
from ladder_sim.graph.ops import Op

# best first: interpolated within measurements of this GPU and this link; continued beyond them, or a formula fitted to
# them; measured elsewhere, or at sizes far from this one, and carried over by the ratio of the formulas; datasheet only
Source = Literal["measured", "fitted", "transferred", "roofline"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimate:
    """One op, alone on its GPU; numbers, or arrays of one value per configuration."""

    seconds: Number
    """Best estimate."""
    error: Number
    """90 % interval: a factor of 1 + error either way."""
    source: Source
    """Where the time comes from; of several configurations, the first one's."""
    slowed_s: Number = 0.0
    """Part of `seconds` that a GEMM takes longer because prompts keep the tensor cores busy (`GemmShape.duty`)."""
    algorithm: str = ""
    """What a collective runs, e.g. "multimem"; of most configurations."""
    inline: Number = 0.0
    """1 for a collective that engines issue among their kernels if nothing overlaps it."""
    demand: Demand = NOTHING
    """What it takes of the GPU while it runs."""
    wake_s: Number = 0.0
    """Seconds from a collective's end until a kernel that has waited for it runs on."""

    def at_duty(self, duty: Number) -> "Estimate":
        """Return the estimate where tensor cores are busy for the share `duty` of the time."""
        if not any_true(self.slowed_s > 0.0):
            return self
        slowed_s = duty * self.slowed_s
        return replace(self, seconds=self.seconds - self.slowed_s + slowed_s, slowed_s=slowed_s)


class CostModel(Protocol):
    """Anything that knows how long ops take on one scenario's hardware and stack."""

    @property
    def hardware(self) -> Hardware:
        """Figures behind the times."""

    def estimates(self, ops: Sequence[Op]) -> Sequence[Estimate]: ...
