"""Whether both engines give the same times over the whole catalog.

Predicts every model on every cluster with every stack and variant, on the fewest nodes that hold the model, event by
event and in one vectorised pass, and prints the worst relative difference of any of the compared times. Exits 1 if it
exceeds the bound.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ladder_sim import Scenario, predict
from ladder_sim.errors import LadderSimError
from ladder_sim.specs import catalog

# relative; both compute the same, so differences are rounding
BOUND = 0.01
VARIANTS = ("standard", "parallel", "ladder", "hybrid-ladder:8", "desync:2", "upper-bound")
# larger nodes are cut to eight, as models' heads are
MAX_GPUS_PER_NODE = 8
NODES = (1, 2, 4)
# requests served together, and tokens of each prompt
BATCH, PROMPT = 16, 1024


class Difference(NamedTuple):
    """The worst of one scenario."""

    relative: float
    """Of the larger value; of the request's time for sums that may vanish."""
    where: str
    """Variant and figure."""


def main() -> int:
    began_s = time.perf_counter()
    worst, worst_scenario, count = Difference(0.0, ""), "", 0
    for name, scenario in feasible():
        count += 1
        largest = difference(scenario)
        if largest.relative >= worst.relative:
            worst, worst_scenario = largest, name
    if not count:
        print("no scenario of the catalog is feasible")
        return 1
    took_s = time.perf_counter() - began_s
    print(f"{count} scenarios x {len(VARIANTS)} variants in {took_s:.0f} s")
    print(f"worst relative difference {worst.relative:.1e} (bound {BOUND:g}): {worst_scenario}, {worst.where}")
    return 0 if worst.relative <= BOUND else 1


def feasible() -> Iterator[tuple[str, Scenario]]:
    """Every model, cluster and stack, on the fewest nodes that hold the model; those that none hold are left out."""
    for model in catalog.model_names():
        for cluster in catalog.cluster_names():
            for stack in catalog.stack_names():
                scenario = fitting(model, cluster, stack, BATCH, PROMPT)
                if scenario is not None:
                    yield f"{model} on {cluster} with {stack}", scenario


def fitting(model: str, cluster: str, stack: str, batch: int, prompt: int) -> Scenario | None:
    """One prefill and one decode step of a scenario that fits its memory."""
    per_node = min(catalog.cluster(cluster).gpus_per_node, MAX_GPUS_PER_NODE)
    for nodes in NODES:
        degrees = [
            tp
            for tp in catalog.model(model).tp_degrees(nodes * per_node)
            if tp == nodes * per_node or (nodes == 1 and tp < per_node)
        ]
        if not degrees:
            continue
        try:
            scenario = Scenario(
                model=model,
                cluster=cluster,
                gpus_per_node=per_node,
                stack=stack,
                nodes=nodes,
                tp=degrees[-1],
                batch=batch,
                prompt=prompt,
                gen=2,
            )
            predict(scenario, ["standard"])
        except LadderSimError:
            continue
        return scenario
    return None


def difference(scenario: Scenario, variants: Sequence[str] = VARIANTS) -> Difference:
    """Return the worst relative difference between the engines, over every variant and figure."""
    fast = predict(scenario, variants, engine="fast")
    des = predict(scenario, variants, engine="des")
    worst = Difference(0.0, "nothing differs")
    for variant in variants:
        vectorised, by_event = fast[variant], des[variant]
        pairs = {
            "ttft_s": (vectorised.ttft_s, by_event.ttft_s, by_event.ttft_s),
            "tpot_s": (vectorised.tpot_s or 0.0, by_event.tpot_s or 0.0, by_event.tpot_s or 1.0),
        }
        for name in ("comm_s", "exposed_comm_s", "slowed_s"):
            sums = (getattr(prediction.breakdown, name) for prediction in (vectorised, by_event))
            pairs[name] = (*sums, by_event.request_s)
        for figure, (value, expected, scale) in pairs.items():
            relative = abs(value - expected) / scale
            if relative > worst.relative:
                worst = Difference(relative, f"{variant} {figure}: {value:.9g} and {expected:.9g}")
    return worst


if __name__ == "__main__":
    sys.exit(main())
