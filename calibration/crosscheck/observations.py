"""What a cross-check has measured: for calibration, and to compare predictions with."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

from ladder_sim.costs.lookup import Curve
from ladder_sim.costs.recorded import OpKey
from ladder_sim.graph.build import STATE_BYTES, build
from ladder_sim.graph.ops import CollectiveShape, Op, Phase
from ladder_sim.specs.scenario import Scenario

# of float32 activations, which CPUs compute with
ELEMENT_BYTES = 4.0
PHASES: tuple[Phase, Phase] = ("prefill", "decode")


class Times(NamedTuple):
    """Seconds of one request."""

    prefill_s: float
    """Until the first new token."""
    decode_s: float
    """All later ones."""


class Run(NamedTuple):
    """What a request ran on."""

    link: str
    """Name of the interconnect."""
    variant: str
    """Residual wiring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Times in the order they were taken, one for each round; seconds."""

    scenario: Scenario
    """What ran."""
    tables: Mapping[str, Curve]
    """Links that are emulated: an all-reduce's seconds by message bytes."""
    seen: Mapping[str, bool]
    """Links by name, and whether standard on them is calibrated on."""
    requests: dict[Run, list[Times]] = field(default_factory=lambda: defaultdict(list))
    """By what ran."""
    alone: list[Times] = field(default_factory=list)
    """Upper bound without any link."""
    kernels: Mapping[Phase, dict[OpKey, list[float]]] = field(
        default_factory=lambda: {phase: defaultdict(list) for phase in PHASES}
    )
    """Kernels of such requests, in place."""
    wide_gemm: dict[Phase, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Time of parallel's QKV and gate/up GEMM over that of the two apart."""
    collectives: dict[tuple[str, float], list[float]] = field(default_factory=lambda: defaultdict(list))
    """Real ones, by kind and message bytes."""
    beside: dict[Phase, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """Seconds of a real all-reduce beside a pass, and what the pass lost to it."""
    load: list[float] = field(default_factory=list)
    """Processes that wanted to run, each round."""

    def request(self, run: Run) -> Times:
        """Median request of a run."""
        return Times(*(median(column) for column in zip(*self.requests[run], strict=True)))


def steps(scenario: Scenario, phase: Phase) -> range:
    """Numbers of a request's passes, counted from its prefill."""
    return range(1) if phase == "prefill" else range(1, scenario.workload.gen)


def ops_of(scenario: Scenario, variant: str, phase: Phase, step: int | None = None) -> Iterable[Op]:
    """Ops of a pass; by default of the prefill or of the first decode step."""
    number = step if step is not None else int(phase == "decode")
    return build(replace(scenario, variant=variant), phase, scenario.workload.prompt + number).ops()


def all_reduces(scenario: Scenario, phase: Phase) -> list[Op]:
    """Of a pass of standard: all of the same size."""
    return [op for op in ops_of(scenario, "standard", phase) if op.kind == "all_reduce"]


def message_bytes(op: Op) -> float:
    """What a collective carries on a CPU: a graph counts activations of 2 bytes, and token ids as they are."""
    if not isinstance(op.shape, CollectiveShape):
        raise TypeError(f"{op.name} is no collective")
    return op.shape.message_bytes * (1.0 if op.kind == "broadcast" else ELEMENT_BYTES / STATE_BYTES)
