"""Costs that a test writes down by the names of ops, and a stack that adds nothing to them."""

import dataclasses
from collections.abc import Mapping, Sequence

from ladder_sim.costs.estimate import Estimate
from ladder_sim.costs.hardware import Hardware
from ladder_sim.graph.ops import Op
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import StackSpec

# periods kept by the shortcut over equal layers: none is left out
EVERY_LAYER = 10**6


def bare_stack(*, wait_s: float = 0.0, launch_s: float = 0.0, fused: bool = True) -> StackSpec:
    return dataclasses.replace(
        catalog.stack("gpt-fast"),
        stream_wait_s=wait_s,
        collective_launch_s=launch_s,
        residual_add="fused" if fused else "compiled",
    )


class NamedCosts:
    """Gives each op the time of the first entry that its name ends in, nothing to all others."""

    def __init__(self, seconds: Mapping[str, float], stack: StackSpec | None = None) -> None:
        self.seconds = seconds
        scenario = Scenario(model="8b", stack=stack or bare_stack(), overrides={"cluster.rank_skew": "0"})
        self.hardware = Hardware.of(scenario)

    def estimates(self, ops: Sequence[Op]) -> list[Estimate]:
        return [Estimate(seconds=self.time_of(op), error=0.1, source="measured") for op in ops]

    def time_of(self, op: Op) -> float:
        return next((seconds for ending, seconds in self.seconds.items() if op.name.endswith(ending)), 0.0)


def blocks(attention_s: float, mlp_s: float, all_reduce_s: float) -> NamedCosts:
    """A time per block and per all-reduce; everything else takes none."""
    return NamedCosts({".o": attention_s, ".down": mlp_s, ".all_reduce": all_reduce_s})
