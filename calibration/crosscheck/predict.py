"""Calibrates the simulator on observations, and predicts every run.

Calibrated on: kernels of passes without communication, collectives alone and during a pass, and standard on one link,
which shows what a computation loses by waiting. Everything else is predicted.
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
    scenario_of,
    steps,
)
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.lookup import Curve
from ladder_sim.costs.recorded import OpKey, Overlap, RecordedCosts
from ladder_sim.des import engine
from ladder_sim.des.program import Program, Stream, Task
from ladder_sim.errors import ProfileError
from ladder_sim.graph.ops import Phase
from ladder_sim.simulate.lower import COMM, COMPUTE
from ladder_sim.simulate.passes import simulate
from ladder_sim.simulate.request import decode_contexts
from ladder_sim.specs.scenario import Scenario

# of its time alone that a message takes after a computation, whatever noise makes of the difference
MIN_MESSAGE_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What predictions are based on."""

    scenario: Scenario
    """What runs."""
    kernels: Mapping[OpKey, float]
    """Seconds of every kernel."""
    links: Mapping[str, Mapping[str, Curve]]
    """By link and kind of collective: seconds by message bytes."""
    resume_s: Mapping[Phase, float]
    """From the end of a message until the computation that waited for it resumes, late and with cold caches."""
    overlaps: Mapping[float, Overlap]
    """How much messages of a real link and a computation slow each other, by message bytes."""

    @classmethod
    def of(cls, observed: Observations) -> "Calibration":
        """Calibrate on all observations but the runs that are predicted."""
        without_waits = cls(
            scenario=observed.scenario,
            kernels=_kernels(observed),
            links={name: _curves(observed, name) for name in observed.links},
            resume_s=dict.fromkeys(PHASES, 0.0),
            overlaps={},
        )
        run = Run(observed.calibration_link, "standard")
        predicted, measured = without_waits.predict(run), observed.request(run)
        resume_s, shares = {}, {}
        for phase, predicted_s, measured_s in zip(PHASES, predicted, measured, strict=True):
            messages = all_reduces(observed.scenario, phase)
            each_s = (measured_s - predicted_s) / len(messages) / max(1, len(steps(observed.scenario, phase)))
            resume_s[phase] = max(0.0, each_s)
            alone_s, _ = without_waits.links[run.link]["all_reduce"].seconds_at(message_bytes(messages[-1]))
            shares[phase] = max(MIN_MESSAGE_SHARE, 1.0 + min(0.0, each_s / float(alone_s)))
        if run.link in observed.emulated:
            return replace(without_waits, resume_s=resume_s)
        # a real link can be faster for ranks that come from a computation than for ranks that do nothing else: by the
        # same share for every message of a phase
        by_size = {
            message_bytes(op): shares[phase]
            for variant in {each.variant for each in observed.requests}
            for phase in PHASES
            for op in ops_of(observed.scenario, variant, phase)
            if op.stream == "comm" and op.kind != "broadcast"
        }
        curves = {
            kind: replace(alone, seconds=alone.seconds * [by_size.get(size, 1.0) for size in alone.size_bytes.tolist()])
            for kind, alone in without_waits.links[run.link].items()
        }
        return replace(
            without_waits,
            resume_s=resume_s,
            links={run.link: curves},
            overlaps=dict(_overlaps(observed, curves["all_reduce"])),
        )

    def predict(self, run: Run) -> Times:
        """Predict one request; raises ProfileError if the calibration lacks the link, or an op of the run."""
        if run.link not in self.links:
            raise ProfileError(f"the calibration has no link '{run.link}'", hint="leave out --calibration")
        scenario = scenario_of(self.scenario, run.variant)
        costs = RecordedCosts(
            Hardware.stated(scenario),
            scenario.cluster.gpu.sms,
            self.kernels,
            self.links[run.link],
            element_bytes=ELEMENT_BYTES,
            overlaps=self.overlaps,
        )

        def pass_s(phase: Phase, kv_len: int) -> float:
            # the vectorised engine cannot share a processor as recorded costs do
            _, program = simulate(scenario, phase, kv_len, costs, engine="des").lowered(scenario.model.layers)
            timeline = engine.run(_with_resume_time(program, self.resume_s[phase]))
            return float(timeline.end_s.max())

        workload = scenario.workload
        contexts = decode_contexts(workload.prompt, workload.gen, static_cache=scenario.stack.static_cache)
        decode_s = sum(float(times) * pass_s("decode", int(kv_len)) for kv_len, times in contexts)
        return Times(pass_s("prefill", workload.prompt), decode_s)


def _with_resume_time(program: Program, resume_s: float) -> Program:
    """The same program, but kernels resume `resume_s` after the end of a message they waited for; the link does not."""
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


def _kernels(observed: Observations) -> dict[OpKey, float]:
    """Medians of every kernel, scaled so that the upper bound's add up to a pass whose kernels are not timed."""
    known: dict[OpKey, float] = {}
    for phase, phase_s in zip(PHASES, zip(*observed.compute_only, strict=True), strict=True):
        if not observed.kernels[phase]:
            # a single new token has no decode
            continue
        medians = {key: median(seconds) for key, seconds in observed.kernels[phase].items()}
        passes = [ops_of(observed.scenario, "upper-bound", phase, step) for step in steps(observed.scenario, phase)]
        total_s = sum(medians[op.kind, op.shape] for ops in passes for op in ops if op.stream == "compute")
        for key, seconds in medians.items():
            known.setdefault(key, seconds * median(phase_s) / total_s if total_s else seconds)
    return known


def _overlaps(observed: Observations, all_reduce: Curve) -> Iterator[tuple[float, Overlap]]:
    for size_bytes, times in observed.overlaps.items():
        message_s, lost_s = (median(column) for column in zip(*times, strict=True))
        alone_s, _ = all_reduce.seconds_at(size_bytes)
        slowed = max(0.0, message_s / float(alone_s) - 1.0)
        yield size_bytes, Overlap(core_share=float(np.clip(lost_s / message_s, 0.0, 1.0)), slowed=slowed)


def _curves(observed: Observations, link: str) -> dict[str, Curve]:
    all_reduce = observed.emulated.get(link)
    if all_reduce is not None:
        # as the runtime emulates them
        half = replace(all_reduce, seconds=0.5 * all_reduce.seconds)
        return {"all_reduce": all_reduce, **dict.fromkeys(("all_gather", "reduce_scatter", "broadcast"), half)}
    curves = {}
    for kind in {kind for kind, _ in observed.collectives}:
        points = sorted((size, median(times)) for (name, size), times in observed.collectives.items() if name == kind)
        sizes, seconds = np.array(points).T
        curves[kind] = Curve(size_bytes=sizes, seconds=seconds)
    return curves
