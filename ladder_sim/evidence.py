"""What the predictions of a scenario rest on: measurements, and what the reader should know."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ladder_sim.costs.memory import MemoryUse
from ladder_sim.costs.model import KernelCosts
from ladder_sim.intervals import PredictionErrors
from ladder_sim.requests import Request
from ladder_sim.specs.scenario import Scenario
from ladder_sim.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What the predictions of a scenario rest on."""

    profile: str
    # name of the measured profile, or "none"
    measured_fraction: float
    # share of standard's request time that comes from in-range measurements of this GPU and this fabric
    warnings: tuple[str, ...]
    # what the reader should know, one sentence each


class Evidence:
    """What the variants of a scenario have in common; each part is worked out when it is first asked for.

    Parameters
    ----------
    scenario
        What was predicted.
    requests
        Its simulated requests by variant, standard among them.
    costs
        What their times rest on.
    memory
        Of one GPU.
    profile_name
        Of the measured profile, or what stands for none.
    """

    def __init__(
        self,
        scenario: Scenario,
        requests: Mapping[str, Request],
        costs: KernelCosts,
        memory: MemoryUse,
        profile_name: str,
    ) -> None:
        self.scenario, self._requests, self._costs, self._memory = scenario, requests, costs, memory
        self._profile_name = profile_name
        self.errors = PredictionErrors(scenario, requests, costs.profile)

    @cached_property
    def provenance(self) -> Provenance:
        """Profile, measured share and warnings."""
        standard = self._requests["standard"]
        measured_s = math.fsum(
            seconds for (source, _), seconds in standard.totals("sources_s").items() if source == "measured"
        )
        return Provenance(
            profile=self._profile_name,
            measured_fraction=measured_s / standard.seconds,
            warnings=tuple(_warnings(self.scenario, self._costs, self._memory)),
        )


def _warnings(scenario: Scenario, costs: KernelCosts, memory: MemoryUse) -> list[str]:
    profile = costs.profile
    warnings = list(scenario.warnings())
    if profile is None:
        warnings.append("no measured profile: every time is a datasheet roofline")
    elif not costs.measured_here:
        warnings.append(
            f"profile '{profile.name}' was measured on {profile.gpu}, whose GPU or in-node link has other figures: its "
            "times are carried over by the ratio of the formulas"
        )
    elif not profile.is_of(scenario.cluster.gpu.name):
        warnings.append(
            f"profile '{profile.name}' is said to be of {profile.gpu}, but was measured on "
            f"'{profile.environment['device']}'"
        )
    transfer = profile.transfer if profile else None
    if profile and transfer and transfer.stack == scenario.stack.name and transfer.base != profile.tables_of:
        warnings.append(
            f"stack '{transfer.stack}' was fitted to runs on {transfer.base}; its figures are taken over unchanged"
        )
    if not memory.fits:
        warnings.append(
            f"does not fit: needs {format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)} per GPU"
        )
    if scenario.nodes_used > 1 and scenario.stack.allreduce not in ("nccl", "auto"):
        warnings.append(f"all-reduce '{scenario.stack.allreduce}' works inside a node only: across nodes NCCL is used")
    return warnings
