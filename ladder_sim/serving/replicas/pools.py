"""Pools of replicas: those that serve, and those that run prompts for them (disaggregated prefill)."""

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple, Self

from ladder_sim.costs.memory import kv_bytes
from ladder_sim.serving.engine.replica import Replica, SimulatedReplica
from ladder_sim.serving.engine.scheduler import SchedulerSpec
from ladder_sim.serving.steps.mix import MixTimes
from ladder_sim.specs.scenario import Scenario


class Sizes(NamedTuple):
    """How many replicas each pool has."""

    serving: int
    """Number of replicas that decode, and run prompts if no others do."""
    prefill: int
    """Number of replicas that run prompts only."""

    @property
    def groups(self) -> int:
        """Equal groups of both into which they can be split."""
        return gcd(*self)

    @property
    def group(self) -> "Sizes":
        """One of these."""
        return Sizes(self.serving // self.groups, self.prefill // self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Replicas that are alike."""

    times: MixTimes
    """Times of the replicas' steps."""
    spec: SchedulerSpec
    """How each schedules."""
    replicas: int = 1
    """How many there are."""
    gpus: int = 1
    """Number of GPUs of all replicas together."""
    replica: type[Replica] = SimulatedReplica
    """What each is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Replicas that run prompts for others, and the link over which the KV cache gets there.

    Each GPU sends its part to one of the other replica, all at the same time.
    """

    pool: Pool
    """The replicas."""
    latency_s: float
    """Latency of a transfer of the KV cache."""
    bandwidth_Bps: float
    """Bandwidth of one GPU for transfers."""
    gpu_bytes: Callable[[int], float]
    """What one GPU sends or receives of the KV cache of so many tokens, where that is more."""

    @classmethod
    def between(cls, pool: Pool, scenario: Scenario, decode: Scenario, gpus: int) -> Self:
        """Return replicas of `scenario` that run prompts for those of `decode`, in one node if their `gpus` fit it."""
        cluster = scenario.cluster
        tier = cluster.intra if gpus <= cluster.gpus_per_node else cluster.inter

        def gpu_bytes(tokens: int) -> float:
            return max(float(kv_bytes(side, tokens)) for side in (scenario, decode))

        return cls(pool=pool, latency_s=tier.allreduce_floor_s, bandwidth_Bps=tier.bandwidth_Bps, gpu_bytes=gpu_bytes)

    def seconds(self, tokens: int) -> float:
        """Return the seconds that sending the KV cache of a prompt takes."""
        return self.latency_s + self.gpu_bytes(tokens) / self.bandwidth_Bps
