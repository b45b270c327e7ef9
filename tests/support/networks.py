"""Collectives of scenarios, by size, and what they are drawn from."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from ladder_sim.costs.collectives.network import Network
from ladder_sim.costs.estimate import CollectiveTimes
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario

LATENCY = st.floats(1e-7, 1e-3)
BANDWIDTH = st.floats(1e9, 2e12)
MESSAGE = st.floats(1, 2**34)
# the range of nccl-tests: 8 bytes to 16 GiB
SIZES = 2.0 ** np.arange(3, 35)


# NCCL of a version that is not stated, as those of public logs
GPT_FAST = catalog.stack("gpt-fast")
ANY_NCCL = replace(GPT_FAST, own_allreduce=replace(GPT_FAST.own_allreduce, nccl=""))


def scenario(**fields: object) -> Scenario:
    return Scenario(**{"model": "405b", "stack": ANY_NCCL, **fields})


def network(profile: CalibrationProfile | None, **fields: object) -> Network:
    own = scenario(**fields)
    return Network(own, profile, Hardware.of(own))


def times(
    sizes: np.ndarray, profile: CalibrationProfile | None, *, kind: str = "all_reduce", **fields: object
) -> CollectiveTimes:
    return network(profile, **fields).times(kind, np.asarray(sizes, np.float64))


def one_by_one(sizes: np.ndarray, profile: CalibrationProfile | None, **fields: object) -> np.ndarray:
    """Seconds, the algorithm chosen for each size by itself."""
    chosen = network(profile, **fields)
    return np.array([chosen.times("all_reduce", np.array([size])).seconds[0] for size in sizes])
