"""From a cross-check's calibrating observations to the simulator's prediction of every run.

Calibrated on the kernels of the upper bound, one GEMM of parallel's, collectives alone, and standard on one link, which
says what a computation loses by waiting. Everything else is predicted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from calibration.crosscheck.observations import (
    ELEMENT_BYTES,
    PHASES,
    Observations,
    Run,
    Times,
    all_reduces,
    message_bytes,
    ops_of,
    steps,
)
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.lookup import Curve
from ladder_sim.costs.recorded import OpKey, Overlap, RecordedCosts
from ladder_sim.des import engine
from ladder_sim.des.program import Program, Stream, Task
from ladder_sim.graph.ops import GemmShape, Phase
from ladder_sim.simulate.lower import COMM, COMPUTE
from ladder_sim.simulate.passes import simulate
from ladder_sim.simulate.request import decode_contexts
from ladder_sim.specs.scenario import Scenario

# of a core that a message takes: the simulator lets only what takes some of a processor be slowed there
LEAST_SHARE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What predictions rest on."""

    scenario: Scenario
    """What runs."""
    kernels: Mapping[OpKey, float]
    """Seconds of every kernel."""
    links: Mapping[str, Mapping[str, Curve]]
    """Seconds by message bytes of every kind of collective, by link."""
    resume_s: Mapping[Phase, float]
    """From the end of a message to the computation that waited for it: to wake up, and caches that have gone cold."""
    beside: Mapping[float, Overlap]
    """What messages of a real link and a computation cost each other, by message bytes."""

    @classmethod
    def of(cls, found: Observations) -> "Calibration":
        """Calibrate on what may be calibrated on."""
        unhindered = cls(
            scenario=found.scenario,
            kernels=_kernels(found),
            links={name: _curves(found, name) for name in found.seen},
            resume_s=dict.fromkeys(PHASES, 0.0),
            beside={},
        )
        run = Run(next(name for name, seen in found.seen.items() if seen), "standard")
        predicted, measured = unhindered.predict(run), found.request(run)
        resume_s, quicker_s = {}, {}
        for phase, before_s, after_s in zip(PHASES, predicted, measured, strict=True):
            messages = all_reduces(found.scenario, phase)
            each_s = (after_s - before_s) / len(messages) / max(1, len(steps(found.scenario, phase)))
            resume_s[phase] = max(0.0, each_s)
            quicker_s[message_bytes(messages[-1])] = min(0.0, each_s)
        if run.link in found.tables:
            return replace(unhindered, resume_s=resume_s)
        # ranks that come from a computation may find a real link quicker than ranks that do nothing else
        curves = unhindered.links[run.link]
        alone = curves["all_reduce"]
        seconds = alone.seconds + np.array([quicker_s.get(size, 0.0) for size in alone.size_bytes.tolist()])
        quicker = replace(alone, seconds=seconds)
        return replace(
            unhindered,
            resume_s=resume_s,
            links={run.link: {**curves, "all_reduce": quicker}},
            beside=dict(_beside(found, quicker)),
        )

    def predict(self, run: Run) -> Times:
        """One request."""
        scenario = replace(self.scenario, variant=run.variant)
        costs = RecordedCosts(
            Hardware.stated(scenario),
            scenario.cluster.gpu.sms,
            self.kernels,
            self.links[run.link],
            element_bytes=ELEMENT_BYTES,
            overlaps=self.beside,
        )

        def pass_s(phase: Phase, kv_len: int) -> float:
            _, program = simulate(scenario, phase, kv_len, costs).lowered(scenario.model.layers)
            timeline = engine.run(_resuming(program, self.resume_s[phase]))
            return float(timeline.end_s.max())

        workload = scenario.workload
        contexts = decode_contexts(workload.prompt, workload.gen, static_cache=scenario.stack.static_cache)
        decode_s = sum(times * pass_s("decode", kv_len) for kv_len, times in contexts)
        return Times(pass_s("prefill", scenario.workload.prompt), decode_s)


def _resuming(program: Program, resume_s: float) -> Program:
    """The same program, but kernels go on a little after the end of a message they waited for; the link does not."""
    tasks = list(program.tasks)
    resumed: dict[int, int] = {}
    for number, task in enumerate(program.tasks):
        if task.stream == COMM:
            resumed[number] = len(tasks)
            tasks.append(Task(f"resume after {task.name}", len(program.streams), resume_s, (number,)))
    for number, task in enumerate(program.tasks):
        if task.stream == COMPUTE:
            tasks[number] = task._replace(after=tuple(resumed.get(before, before) for before in task.after))
    return replace(program, tasks=tuple(tasks), streams=(*program.streams, Stream(name="resume")))


def _kernels(found: Observations) -> dict[OpKey, float]:
    """Medians of every kernel, levelled so that a whole pass takes what it takes when nobody looks at its kernels."""
    known: dict[OpKey, float] = {}
    for phase, alone_s in zip(PHASES, zip(*found.alone, strict=True), strict=True):
        if not found.kernels[phase]:
            # of one new token there is no decode
            continue
        medians = {key: median(seconds) for key, seconds in found.kernels[phase].items()}
        passes = [ops_of(found.scenario, "upper-bound", phase, step) for step in steps(found.scenario, phase)]
        total_s = sum(medians[op.kind, op.shape] for ops in passes for op in ops if op.stream == "compute")
        for key, seconds in medians.items():
            known.setdefault(key, seconds * median(alone_s) / total_s if total_s else seconds)
        for op in ops_of(found.scenario, "parallel", phase):
            if isinstance(op.shape, GemmShape) and (op.kind, op.shape) not in known:
                others = [one for one in ops_of(found.scenario, "standard", phase) if one.layer == op.layer]
                apart_s = sum(known[one.kind, one.shape] for one in others if one.name.endswith((".qkv", ".up")))
                known[op.kind, op.shape] = apart_s * median(found.wide_gemm[phase])
    return known


def _beside(found: Observations, alone: Curve) -> Iterator[tuple[float, Overlap]]:
    for phase in found.beside:
        message_s, lost_s = (median(column) for column in zip(*found.beside[phase], strict=True))
        size_bytes = message_bytes(all_reduces(found.scenario, phase)[0])
        alone_s, _ = alone.seconds_at(size_bytes)
        slowed = max(0.0, message_s / float(alone_s) - 1.0)
        yield size_bytes, Overlap(core_share=float(np.clip(lost_s / message_s, LEAST_SHARE, 1.0)), slowed=slowed)


def _curves(found: Observations, link: str) -> dict[str, Curve]:
    table = found.tables.get(link)
    if table is not None:
        # as the runtime emulates them
        half = Curve(size_bytes=table.size_bytes, seconds=0.5 * table.seconds)
        return {"all_reduce": table, "all_gather": half, "broadcast": half}
    curves = {}
    for kind in {kind for kind, _ in found.collectives}:
        points = sorted((size, median(took)) for (name, size), took in found.collectives.items() if name == kind)
        sizes, seconds = np.array(points).T
        curves[kind] = Curve(size_bytes=sizes, seconds=seconds)
    return curves
