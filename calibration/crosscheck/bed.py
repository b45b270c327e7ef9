"""A model on this machine's CPU whose requests are timed, one wiring and one interconnect after the other."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from statistics import fmean
from typing import TypeVar

import torch

from calibration.crosscheck.observations import PHASES, Times
from calibration.crosscheck.timers import BesideTime, KernelTime, message, time_beside, time_kernels
from ladder_sim.graph.build import build
from ladder_sim.graph.ops import Phase, StepGraph
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import StackSpec
from runtime.assemble import assemble
from runtime.comm.base import Alone, Communicator
from runtime.config import EngineConfig, ModelConfig
from runtime.model.wiring import Wiring, lay_out

# what CPUs compute in
DTYPE = torch.float32
# of weights and prompts
SEED = 0
# from one message beside a pass to the next, in times that it takes alone
APART = 1.5
_Config = TypeVar("_Config", EngineConfig, ModelConfig)


class Bed:
    """One rank's shard, with its prompt and its cache.

    Parameters
    ----------
    scenario
        Model, workload, stack and tensor-parallel degree.
    comm
        The ranks.
    threads
        CPU threads of this rank.
    """

    def __init__(self, scenario: Scenario, comm: Communicator, threads: int) -> None:
        torch.set_num_threads(threads)
        self.scenario, self.comm = scenario, comm
        work = scenario.workload
        self._generator = assemble(
            _shared(ModelConfig, scenario.model),
            _shared(EngineConfig, scenario.stack),
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
        self._generator.model.comm = comm
        wiring = self._wiring(variant)
        self.comm.barrier()
        start_s = time.perf_counter()
        self._generator.prefill(wiring)
        first_s = time.perf_counter()
        for step in range(1, self.scenario.workload.gen):
            self._generator.decode(wiring, step)
        own = torch.tensor([first_s - start_s, time.perf_counter() - first_s], dtype=torch.float64)
        return Times(*self.comm.slowest(own).tolist())

    def alone(self) -> Times:
        """Time one request that communicates nothing."""
        return self.request("upper-bound", Alone(self.comm.size))

    def kernels(self, *, fused: bool) -> Mapping[Phase, list[KernelTime]]:
        """Time every kernel of such a request in place, its adds fused into norms or not: wirings differ in that."""
        model = self._generator.model
        scenario = replace(self.scenario, stack=replace(self.scenario.stack, fused_residual_add=fused))
        own, model.engine, model.comm = model.engine, _shared(EngineConfig, scenario.stack), Alone(self.comm.size)
        wiring = self._wiring("upper-bound")
        self.comm.barrier()
        prefill = time_kernels(partial(self._generator.prefill, wiring), _graph(scenario, "prefill"))
        decode: list[KernelTime] = []
        for step in range(1, self.scenario.workload.gen):
            graph = _graph(scenario, "decode", step)
            decode += time_kernels(partial(self._generator.decode, wiring, step), graph)
        model.engine = own
        return {"prefill": prefill, "decode": decode}

    def beside(self, messages: Mapping[Phase, tuple[float, float]]) -> dict[Phase, BesideTime]:
        """Time all-reduces and such a request beside each other, on the slowest rank.

        Parameters
        ----------
        messages
            Bytes of an all-reduce in each phase, and seconds it takes alone.
        """
        pass_s, wiring = self.alone(), self._wiring("upper-bound")
        steps = range(1, self.scenario.workload.gen)
        passes: Mapping[Phase, list[Callable[[], None]]] = {
            "prefill": [partial(self._generator.prefill, wiring)],
            "decode": [partial(self._generator.decode, wiring, step) for step in steps],
        }
        found = {}
        for phase, seconds in zip(PHASES, pass_s, strict=True):
            if not passes[phase]:
                # of one new token there is no decode
                continue
            size_bytes, message_s = messages[phase]
            alone_s = seconds / len(passes[phase])
            kernels = sum(op.stream == "compute" for op in _graph(self.scenario, phase).ops())
            apart = math.ceil(APART * message_s / (alone_s / kernels))
            due = range(0, max(1, kernels - apart + 1), apart)
            each = [time_beside(run, alone_s, self.comm, message(size_bytes), due) for run in passes[phase]]
            own = torch.tensor([fmean(column) for column in zip(*each, strict=True)], dtype=torch.float64)
            found[phase] = BesideTime(*self.comm.slowest(own).tolist())
        return found

    @torch.inference_mode()
    def wide_gemm(self, phase: Phase) -> float:
        """Time of the GEMM that holds QKV and gate/up projections, over that of the two apart.

        Only `parallel` runs it, and no pass of `parallel` is calibrated on. Every layer's weights take their turn, so
        that they are as cold as in a pass.
        """
        work = self.scenario.workload
        tokens = (work.batch, work.prompt if phase == "prefill" else 1)
        n_BTD = torch.ones(*tokens, self.scenario.model.hidden, dtype=DTYPE)
        self.comm.barrier()
        layers = self._generator.model.layers
        start_s = time.perf_counter()
        for layer in layers:
            layer.qkv_up(n_BTD, layer.qkv_rows)
            layer.qkv_up(n_BTD, layer.up_rows)
        middle_s = time.perf_counter()
        for layer in layers:
            layer.qkv_up(n_BTD)
        return (time.perf_counter() - middle_s) / (middle_s - start_s)

    def _wiring(self, variant: str) -> Wiring:
        spec = self.scenario.model
        return lay_out(variant, spec.layers, spec.ladder_layers)


def _shared(config: type[_Config], spec: ModelSpec | StackSpec) -> _Config:
    """The runtime's form of a spec: the fields that both have."""
    return config(**{field.name: getattr(spec, field.name) for field in fields(config) if hasattr(spec, field.name)})


def _graph(scenario: Scenario, phase: Phase, step: int = 0) -> StepGraph:
    return build(replace(scenario, variant="upper-bound"), phase, scenario.workload.prompt + step)
