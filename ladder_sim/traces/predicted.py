"""A predicted forward pass as a trace."""

from typing import Literal

from ladder_sim.graph.ops import Phase
from ladder_sim.graph.shapes import CollectiveShape
from ladder_sim.prediction import simulation_inputs
from ladder_sim.simulate.passes import Engine, simulate
from ladder_sim.simulate.ranks import replicate_of_every_layer
from ladder_sim.specs.scenario import Scenario
from ladder_sim.traces.graph import Collective, TraceGraph
from ladder_sim.traces.replay import from_timeline


def predicted_step(
    scenario: Scenario,
    phase: Phase,
    *,
    profile: str | None = None,
    ignore_memory: bool = False,
    engine: Engine = "fast",
    jitter: float | Literal["measured"] = 0.0,
    seed: int = 0,
) -> TraceGraph:
    """Simulate every layer of one forward pass. A decode step attends to the prompt and half of the new tokens.

    Arguments are those of `ladder_sim.prediction.predict`. With jitter the trace holds every rank, else one for all.
    """
    costs, _, uneven = simulation_inputs(scenario, profile, ignore_memory=ignore_memory, jitter=jitter, seed=seed)
    workload = scenario.workload
    context = workload.prompt + (workload.gen // 2 if phase == "decode" else 0)
    step = simulate(scenario, phase, context, costs, engine=engine, keep=scenario.model.layers)
    schedule, timeline = replicate_of_every_layer(step, scenario.plan.tp, uneven) if uneven.sigma else step.simulated
    distinct = step.distinct(schedule)
    ops = [distinct[like] for like in schedule.layout.same_as]
    ranks = scenario.plan.tp if uneven.sigma else 1
    launches = len(timeline.end_s) // ranks - len(ops)
    collectives = [
        Collective(message_bytes=op.shape.message_bytes, group="tp", ranks=scenario.plan.tp)
        if isinstance(op.shape, CollectiveShape)
        else None
        for op in ops
    ]
    kinds = [*["launch"] * launches, *(op.kind for op in ops)]
    return from_timeline(timeline, kinds * ranks, [*[None] * launches, *collectives] * ranks)
