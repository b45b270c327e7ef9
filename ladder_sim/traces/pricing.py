"""What an all-reduce would cost on an interconnect of the catalog."""

from collections.abc import Callable

from ladder_sim.costs.model import KernelCosts
from ladder_sim.costs.profile import load_profile
from ladder_sim.graph.ops import CollectiveShape, Op
from ladder_sim.specs.scenario import Scenario


def all_reduce_price(scenario: Scenario) -> Callable[[float], float]:
    """Seconds of an all-reduce by its message's bytes, over a scenario's ranks and links, measured where they were."""
    measured = load_profile(scenario.cluster.profile) if scenario.cluster.profile else None
    costs = KernelCosts(scenario, measured)

    def seconds(message_bytes: float) -> float:
        op = Op(name="all_reduce", kind="all_reduce", shape=CollectiveShape(message_bytes=message_bytes))
        return float(costs.estimates([op])[0].seconds)

    return seconds
