"""A predicted forward pass as a trace."""

from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.graph.ops import CollectiveShape, Op, Phase
from ladder_sim.prediction import resolve_profile
from ladder_sim.simulate.passes import ENGINES, Engine, simulate, timeline_of
from ladder_sim.specs.scenario import Scenario
from ladder_sim.traces.graph import Collective, TraceGraph
from ladder_sim.traces.replay import from_timeline


def predicted_step(
    scenario: Scenario, phase: Phase, *, profile: str | None = None, engine: Engine = "fast"
) -> TraceGraph:
    """Simulate every layer of one forward pass. A decode step attends to the prompt and half of the new tokens."""
    workload = scenario.workload
    context = workload.prompt + (workload.gen // 2 if phase == "decode" else 0)
    costs = KernelCosts(scenario, resolve_profile(scenario, profile))
    step = simulate(scenario, phase, context, costs)
    plan, program = step.lowered(scenario.model.layers)
    launches: list[Op | None] = [None] * (len(program.tasks) - len(plan.ops))
    ops = [*launches, *map(step.sizes.op, plan.ops)]
    timeline = timeline_of(program, ENGINES[engine](program))
    return from_timeline(
        timeline, ["launch" if op is None else op.kind for op in ops], [_collective(op, scenario.tp) for op in ops]
    )


def _collective(op: Op | None, tp: int) -> Collective | None:
    if op is None or not isinstance(op.shape, CollectiveShape):
        return None
    return Collective(message_bytes=op.shape.message_bytes, group="tp", ranks=tp)
