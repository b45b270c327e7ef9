"""What a model that does not fit needs its memory for, and the changes with which it fits."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from ladder_sim.costs.memory import MemoryUse, memory_use
from ladder_sim.errors import MemoryFitError, PartitionError, UsageError
from ladder_sim.specs import catalog
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.scenario import Scenario
from ladder_sim.units import format_bytes

# arguments of `Scenario`, and the values with which a model fits
Change = Mapping[str, Any]


def fit_error(
    scenario: Scenario,
    memory: MemoryUse,
    *,
    flags: Mapping[str, str] | None = None,
    more: str | None = None,
    otherwise: str = "",
) -> MemoryFitError:
    """Return the error of a model that does not fit, with the parts of the memory and the ways out.

    `flags` are those of a command that calls an argument otherwise, by argument; `more` of one that searches degrees,
    with which it fits on more GPUs, empty if none does (by default those of `more_gpus`). `otherwise` says what to do
    without a change; it may be empty.
    """
    gpu = scenario.cluster.gpu
    gibibytes = f"{memory.capacity_bytes / 2**30:.1f} GiB"
    message = (
        f"{scenario.model.name} needs {format_bytes(memory.total_bytes)} per GPU at {scenario.plan} ({memory.parts}), "
        f"and {gpu.name} has {format_bytes(memory.capacity_bytes)} ({gibibytes})"
    )
    here = [_typed(change, flags or {}) for change in same_gpus(scenario) if more is None or "tp" not in change]
    if more is None:
        more = _typed(more_gpus(scenario) or {}, flags or {})
    ways = [f"on these GPUs {' or '.join(here)} fits"] if here else []
    ways += [f"on more GPUs {more} fits"] if more else []
    ways += [otherwise] if otherwise else []
    if not here and not more:
        ways.insert(0, "no other degree, precision, stack or batch of the catalog fits")
    return MemoryFitError(message, hint="; ".join(ways))


def same_gpus(scenario: Scenario) -> list[Change]:
    """Return changes with which the model fits the same GPUs: single ones, else a precision with a stack."""
    fitting = [change for change in _single(scenario) if _fits(scenario, change)]
    return fitting or [
        change
        for precision in _precisions(scenario)
        for stack in _stacks(scenario)
        if _fits(scenario, change := {**precision, **stack})
    ]


def more_gpus(scenario: Scenario) -> Change | None:
    """Return the smallest TP degree at which the model fits on more nodes, with those nodes; None if none does."""
    fitting = smallest_fitting_tp(scenario)
    if fitting is None or (nodes := _nodes(scenario, fitting)) <= scenario.nodes:
        return None
    return {"nodes": nodes, "tp": fitting}


def smallest_fitting_tp(scenario: Scenario) -> int | None:
    """Return the smallest TP degree at which the model fits, on as many nodes as needed; None if there is none."""
    return next((tp for tp in scenario.model.tp_degrees(scenario.model.heads) if _fits(scenario, {"tp": tp})), None)


def _nodes(scenario: Scenario, tp: int) -> int:
    return dataclasses.replace(scenario.plan, tp=tp).nodes(scenario.cluster.gpus_per_node)


def _single(scenario: Scenario) -> Iterator[Change]:
    smallest = smallest_fitting_tp(scenario)
    if smallest is not None and smallest > scenario.plan.tp and _nodes(scenario, smallest) <= scenario.nodes:
        yield {"tp": smallest}
    yield from _precisions(scenario)
    yield from _stacks(scenario)
    low, high = 0, scenario.workload.batch
    while high - low > 1 and "workload.batch" not in scenario.settings:
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(scenario, {"batch": middle}) else (low, middle)
    if low:
        yield {"batch": low}


def _precisions(scenario: Scenario) -> Iterator[Change]:
    gpu = scenario.cluster.gpu
    if gpu.fp8_flops > gpu.bf16_flops and "workload.dtype" not in scenario.settings:
        yield {"dtype": "fp8"}


def _stacks(scenario: Scenario) -> Iterator[Change]:
    """Yield the other stacks that can run the workload, unless figures of this one were set by hand."""
    if scenario.set_by_hand("stack."):
        return
    for name in catalog.stack_names():
        able = scenario.workload.concurrency is None or catalog.stack(name).serves
        if able and name != scenario.stack.name:
            yield {"stack": name}


def _fits(scenario: Scenario, change: Change) -> bool:
    """Whether the model fits with a change of degree, stack or workload, on as many nodes as that takes."""
    given = dict(change)
    try:
        plan = dataclasses.replace(scenario.plan, tp=given.pop("tp", scenario.plan.tp))
        changed = scenario.having(
            plan=plan,
            nodes=max(scenario.nodes, plan.nodes(scenario.cluster.gpus_per_node)),
            stack=catalog.stack(given.pop("stack")) if "stack" in given else scenario.stack,
            workload=dataclasses.replace(scenario.workload, **given),
        )
    except (UsageError, PartitionError):
        # no plan, or no request for each group
        return False
    return memory_use(changed).fits


def _typed(change: Change, flags: Mapping[str, str]) -> str:
    return " ".join(f"{flags.get(name, ARGUMENTS[name].flag)} {value}" for name, value in change.items())
