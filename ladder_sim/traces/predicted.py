"""A predicted forward pass as a trace."""

from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.graph.ops import CollectiveShape, Phase
from ladder_sim.prediction import resolve_profile
from ladder_sim.simulate.passes import Engine, simulate
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
    step = simulate(scenario, phase, context, costs, engine=engine, keep=scenario.model.layers)
    plan, timeline = step.simulated
    distinct = step.distinct(plan)
    ops = [distinct[like] for like in plan.same_as]
    launches = len(timeline.end_s) - len(ops)
    collectives = [
        Collective(message_bytes=op.shape.message_bytes, group="tp", ranks=scenario.tp)
        if isinstance(op.shape, CollectiveShape)
        else None
        for op in ops
    ]
    return from_timeline(
        timeline, [*["launch"] * launches, *(op.kind for op in ops)], [*[None] * launches, *collectives]
    )
