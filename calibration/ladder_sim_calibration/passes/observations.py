"""What passes on this machine show: to fit a profile to, and to compare predictions with."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import numpy as np

from ladder_sim.costs import in_place
from ladder_sim.costs.in_place import OpKey
from ladder_sim.costs.lookup import Curve
from ladder_sim.graph.ops import Op
from ladder_sim.graph.pass_kernels import pass_ops
from ladder_sim.kernels import CollectiveShape, Phase
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.techniques import Techniques
from ladder_sim.wirings.names import canonical
from ladder_sim_runtime.runs import RequestTimes

# of the float32 activations that CPUs compute with
ELEMENT_BYTES = 4.0
PHASES: tuple[Phase, Phase] = ("prefill", "decode")


class OnLink(NamedTuple):
    """A variant on a link."""

    link: str
    """Name of the interconnect."""
    variant: str
    """Residual wiring, maybe with techniques: "standard+token-split:2"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Seconds of everything that was measured, in order, usually one value per round."""

    scenario: Scenario
    """What ran."""
    links: tuple[str, ...]
    """Names of the interconnects."""
    calibration_link: str
    """Interconnect whose requests of standard a profile is fitted to."""
    emulated: Mapping[str, Curve]
    """Emulated links: seconds of an all-reduce by message bytes."""
    requests: dict[OnLink, list[RequestTimes]] = field(default_factory=lambda: defaultdict(list))
    """Requests of every variant on every link."""
    compute_only: list[RequestTimes] = field(default_factory=list)
    """Requests without communication."""
    kernels: Mapping[Phase, dict[OpKey, list[float]]] = field(
        default_factory=lambda: {phase: defaultdict(list) for phase in PHASES}
    )
    """Kernels of requests without communication, timed in their place: the upper bound's, and others that it lacks."""
    collectives: dict[tuple[str, float], list[float]] = field(default_factory=lambda: defaultdict(list))
    """Collectives on a real link, by kind and message bytes."""
    overlaps: dict[float, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """Seconds of an all-reduce during a pass and how much longer the pass takes, on a real link, by message bytes."""
    load: list[float] = field(default_factory=list)
    """Load average of the machine after each round."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Machine, versions, and everything of what ran that times depend on."""

    def request(self, run: OnLink) -> RequestTimes:
        """Return the median request of a run."""
        return RequestTimes(*(median(column) for column in zip(*self.requests[run], strict=True)))

    def at_pace(self, run: OnLink) -> RequestTimes:
        """Return the median request of a run at the pace that the machine has in requests without communication.

        A shared machine changes its pace from round to round; within a round it is nearly the same for both.
        """
        both = (np.array(times).reshape(len(self.load), -1, 2) for times in (self.compute_only, self.requests[run]))
        without_s, with_s = (np.median(times, axis=1) for times in both)
        longer_s = np.median(with_s - without_s, axis=0)
        return RequestTimes(*(np.median(self.compute_only, axis=0) + longer_s).tolist())


def steps(scenario: Scenario, phase: Phase) -> range:
    """Return the numbers of a request's passes, counted from its prefill."""
    return range(1) if phase == "prefill" else range(1, scenario.workload.gen)


def scenario_of(scenario: Scenario, variant: str) -> Scenario:
    """Return the scenario with a variant and techniques as `OnLink` names them."""
    wiring, _, techniques = variant.partition("+")
    return scenario.having(variant=canonical(wiring), techniques=Techniques.of(techniques or "none"))


def name_of(scenario: Scenario) -> str:
    """Return the name by which `OnLink` calls the variant and techniques of a scenario."""
    return "+".join((scenario.variant, *scenario.techniques.chosen))


def ops_of(scenario: Scenario, variant: str, phase: Phase, step: int | None = None) -> Iterable[Op]:
    """Return the ops of a pass; by default of the prefill or the first decode step."""
    number = step if step is not None else int(phase == "decode")
    return pass_ops(scenario_of(scenario, variant), phase, scenario.workload.prompt + number)


def kernels_of(scenario: Scenario) -> set[tuple[Phase, OpKey]]:
    """Return the kernels of a request: phase, kind and shape of each."""
    return {
        (phase, (op.kind, op.shape))
        for phase in PHASES
        for step in steps(scenario, phase)
        for op in pass_ops(scenario, phase, scenario.workload.prompt + step)
        if op.stream == "compute"
    }


def all_reduces(scenario: Scenario, phase: Phase) -> list[Op]:
    """Return the all-reduces of a pass of standard; the last is of activations, as are all of the largest size."""
    return [op for op in ops_of(scenario, "standard", phase) if op.kind == "all_reduce"]


def message_bytes(op: Op) -> float:
    """Return the bytes of a collective on a CPU."""
    if not isinstance(op.shape, CollectiveShape):
        raise TypeError(f"{op.name} is not a collective")
    return in_place.message_bytes(op.shape, ELEMENT_BYTES)
