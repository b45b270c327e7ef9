"""What a cost model promises: for every op a time, an error bar, and where both come from."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from ladder_sim.graph.ops import Op, StepGraph

Source = Literal["measured", "fitted", "transferred", "roofline"]
# best first: interpolated within measurements of this GPU and this link; continued beyond them, or a formula fitted to
# them; measured elsewhere and carried over by the ratio of the formulas; datasheet only


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """How long an op takes when nothing else runs beside it."""

    seconds: float
    # best estimate
    low_s: float
    # lower end of the 90 % interval
    high_s: float
    # upper end of the 90 % interval
    source: Source
    # what it rests on

    @property
    def in_range(self) -> bool:
        """Within the measurements it rests on."""
        return self.source == "measured"

    @classmethod
    def within(cls, seconds: float, error: float, *, source: Source) -> "Estimate":
        """An estimate whose 90 % interval is a factor of ``1 + error`` either way."""
        return cls(seconds=seconds, low_s=seconds / (1 + error), high_s=seconds * (1 + error), source=source)


class CostModel(Protocol):
    """Anything that knows how long ops take on one scenario's hardware and stack."""

    def estimate(self, op: Op) -> Estimate:
        """Time of one op, alone on its GPU."""
        ...


def annotate(graph: StepGraph, costs: CostModel) -> None:
    """Store ``estimate`` on every node of `graph`."""
    for op in graph.ops():
        graph.nodes[op.name]["estimate"] = costs.estimate(op)


def estimates(graph: StepGraph) -> Iterable[tuple[Op, Estimate]]:
    """Every op of an annotated graph with its estimate, in issue order."""
    for _, node in graph.nodes(data=True):
        yield node["op"], node["estimate"]
