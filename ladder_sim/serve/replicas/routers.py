"""Which replica a request goes to."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Literal

from ladder_sim.serve.engine.answer import Answer
from ladder_sim.serve.engine.replica import Replica

Router = Literal["round-robin", "least-loaded", "prefix-aware"]
Choose = Callable[[Sequence[Replica], Answer], Replica]

# a replica that has a request's beginning may have so many more requests than the least loaded one
MOST_MORE = 16


def _round_robin() -> Choose:
    turns = count()
    return lambda replicas, answer: replicas[next(turns) % len(replicas)]


def _least_loaded() -> Choose:
    return lambda replicas, answer: min(replicas, key=lambda replica: replica.load)


def _prefix_aware() -> Choose:
    def choose(replicas: Sequence[Replica], answer: Answer) -> Replica:
        least = min(replica.load for replica in replicas)
        near = [replica for replica in replicas if replica.load <= least + MOST_MORE]
        return max(near, key=lambda replica: (replica.cached(answer), -replica.load))

    return choose


# each call begins anew. In turn; the one with the fewest requests; among those with few, the one that has most of it
ROUTERS: Mapping[Router, Callable[[], Choose]] = {
    "round-robin": _round_robin,
    "least-loaded": _least_loaded,
    "prefix-aware": _prefix_aware,
}
