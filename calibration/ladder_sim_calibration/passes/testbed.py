"""A model on this machine's CPU whose requests are timed, with any wiring over any interconnect."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from statistics import fmean

import torch

from ladder_sim.costs.in_place import OpKey
from ladder_sim.graph.ops import Phase
from ladder_sim.graph.pass_kernels import pass_ops
from ladder_sim.specs.scenario import Scenario
from ladder_sim_calibration.passes.observations import PHASES, scenario_of
from ladder_sim_calibration.passes.timers import OverlapTime, message, time_kernels, time_overlap
from ladder_sim_runtime.assemble import assemble
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.config import EngineConfig, ModelConfig
from ladder_sim_runtime.model.wiring import Wiring, lay_out
from ladder_sim_runtime.runs import Times

# what CPUs compute in
DTYPE = torch.float32
# of weights and prompts
SEED = 0
# from the issue of one message during a pass to the next, in multiples of its time alone
MESSAGE_DISTANCE = 1.5


class Testbed:
    """One rank's shard of a scenario's model, with its prompt and its cache; `comm` connects the ranks."""

    # not a test, whatever its name suggests to pytest
    __test__ = False

    def __init__(self, scenario: Scenario, comm: Communicator) -> None:
        self.scenario, self.comm = scenario, comm
        work = scenario.workload
        self._generator = assemble(
            ModelConfig.of(scenario.model),
            _engine(scenario),
            comm,
            device=torch.device("cpu"),
            dtype=DTYPE,
            batch=work.batch,
            prompt=work.prompt,
            gen=work.gen,
            seed=SEED,
        )

    def request(self, variant: str, comm: Communicator) -> Times:
        """Time one request over `comm`, on the slowest rank."""
        wiring = self._set_up(scenario_of(self.scenario, variant), comm)
        self.comm.barrier()
        start_s = time.perf_counter()
        self._generator.prefill(wiring)
        first_s = time.perf_counter()
        for step in range(1, self.scenario.workload.gen):
            self._generator.decode(wiring, step)
        own = torch.tensor([first_s - start_s, time.perf_counter() - first_s], dtype=torch.float64)
        return Times(*self.comm.slowest(own).tolist())

    def compute_only(self) -> Times:
        """Time one request without communication."""
        return self.request("upper-bound", Communicator(self.comm.size))

    def kernels(self, scenario: Scenario) -> Mapping[Phase, list[tuple[OpKey, float]]]:
        """Time every kernel of a request of a scenario without communication."""
        wiring = self._set_up(scenario, Communicator(self.comm.size))
        self.comm.barrier()
        return {
            phase: [
                kernel
                for step, run in enumerate(self._passes(wiring, phase), start=int(phase == "decode"))
                for kernel in time_kernels(run, pass_ops(scenario, phase, scenario.workload.prompt + step))
            ]
            for phase in PHASES
        }

    def overlap(self, phase: Phase, size_bytes: float, message_s: float) -> OverlapTime:
        """Time all-reduces and a pass without communication at the same time, on the slowest rank.

        Parameters
        ----------
        phase
            Of the pass.
        size_bytes, message_s
            An all-reduce, and how long it takes alone.
        """
        phase_s = self.compute_only()[PHASES.index(phase)]
        scenario = scenario_of(self.scenario, "upper-bound")
        wiring = self._set_up(scenario, Communicator(self.comm.size))
        # decode steps go on from a prefill
        self._generator.prefill(wiring)
        passes = self._passes(wiring, phase)
        alone_s = phase_s / len(passes)
        kernels = sum(op.stream == "compute" for op in pass_ops(scenario, phase, scenario.workload.prompt))
        distance = math.ceil(MESSAGE_DISTANCE * message_s / (alone_s / kernels))
        due = range(0, max(1, kernels - distance + 1), distance)
        each = [time_overlap(run, alone_s, self.comm, message(size_bytes), due) for run in passes]
        own = torch.tensor([fmean(column) for column in zip(*each, strict=True)], dtype=torch.float64)
        return OverlapTime(*self.comm.slowest(own).tolist())

    def _set_up(self, scenario: Scenario, comm: Communicator) -> Wiring:
        """Take over a scenario's engine and a communicator; returns its wiring."""
        model, spec = self._generator.model, scenario.model
        model.engine, model.comm = _engine(scenario), comm
        return lay_out(scenario.variant, spec.layers, spec.ladder_layers)

    def _passes(self, wiring: Wiring, phase: Phase) -> list[Callable[[], None]]:
        """Return the forward passes of a request in one phase, to be called in order."""
        if phase == "prefill":
            return [partial(self._generator.prefill, wiring)]
        return [partial(self._generator.decode, wiring, step) for step in range(1, self.scenario.workload.gen)]


def _engine(scenario: Scenario) -> EngineConfig:
    stack = scenario.stack
    same = {field.name: getattr(stack, field.name) for field in fields(EngineConfig) if hasattr(stack, field.name)}
    split = {"sharded_lm_head": stack.vocab_parallel, "sharded_embedding": stack.vocab_parallel}
    return EngineConfig(**{**same, **split, "techniques": scenario.techniques.chosen})
