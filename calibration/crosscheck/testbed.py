"""A model on this machine's CPU whose requests are timed, with any wiring over any interconnect."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from statistics import fmean
from typing import TypeVar

import torch

from calibration.crosscheck.observations import PHASES, Times
from calibration.crosscheck.timers import OverlapTime, message, time_kernels, time_overlap
from ladder_sim.costs.recorded import OpKey
from ladder_sim.errors import UsageError
from ladder_sim.graph.build import StepGraph, build
from ladder_sim.graph.ops import Phase
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import StackSpec
from runtime.assemble import assemble
from runtime.comm.base import Alone, Communicator
from runtime.config import EngineConfig, ModelConfig
from runtime.kinds import Experts, Latent
from runtime.model.wiring import Wiring, lay_out

# what CPUs compute in
DTYPE = torch.float32
# of weights and prompts
SEED = 0
# from the issue of one message during a pass to the next, in multiples of its time alone
MESSAGE_DISTANCE = 1.5
_Config = TypeVar("_Config", EngineConfig, ModelConfig)


class Testbed:
    """One rank's shard of a scenario's model, with its prompt and its cache; `comm` connects the ranks."""

    # not a test, whatever its name suggests to pytest
    __test__ = False

    def __init__(self, scenario: Scenario, comm: Communicator) -> None:
        self.scenario, self.comm = scenario, comm
        work = scenario.workload
        self._generator = assemble(
            model_config(scenario.model),
            _config_of(EngineConfig, scenario.stack),
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

    def compute_only(self) -> Times:
        """Time one request without communication."""
        return self.request("upper-bound", Alone(self.comm.size))

    def kernels(self, *, fused: bool) -> Mapping[Phase, list[tuple[OpKey, float]]]:
        """Time every kernel of a request without communication, its residual adds fused into norms or not.

        Wirings differ in whether adds can be fused.
        """
        model = self._generator.model
        scenario = replace(self.scenario, stack=replace(self.scenario.stack, fused_residual_add=fused))
        engine, model.engine = model.engine, _config_of(EngineConfig, scenario.stack)
        model.comm = Alone(self.comm.size)
        self.comm.barrier()
        times = {
            phase: [
                kernel
                for step, run in enumerate(self._passes(phase), start=int(phase == "decode"))
                for kernel in time_kernels(run, _graph(scenario, phase, step))
            ]
            for phase in PHASES
        }
        model.engine = engine
        return times

    def overlaps(self, messages: Mapping[Phase, tuple[float, float]]) -> dict[Phase, OverlapTime]:
        """Time all-reduces and a request without communication at the same time, on the slowest rank.

        Parameters
        ----------
        messages
            Bytes of an all-reduce in each phase, and seconds it takes alone.
        """
        times = {}
        for phase, phase_s in zip(PHASES, self.compute_only(), strict=True):
            passes = self._passes(phase)
            if not passes:
                # a single new token has no decode
                continue
            size_bytes, message_s = messages[phase]
            alone_s = phase_s / len(passes)
            kernels = sum(op.stream == "compute" for op in _graph(self.scenario, phase).ops())
            distance = math.ceil(MESSAGE_DISTANCE * message_s / (alone_s / kernels))
            due = range(0, max(1, kernels - distance + 1), distance)
            each = [time_overlap(run, alone_s, self.comm, message(size_bytes), due) for run in passes]
            own = torch.tensor([fmean(column) for column in zip(*each, strict=True)], dtype=torch.float64)
            times[phase] = OverlapTime(*self.comm.slowest(own).tolist())
        return times

    @torch.inference_mode()
    def wide_gemm(self, phase: Phase) -> float:
        """Time of the GEMM that holds QKV and gate/up projections, over that of the two apart; 1 if no layer has it.

        Only `parallel` runs it, and no pass of `parallel` is calibrated on. All layers' weights are used in turn, so
        that they are as cold as in a pass.
        """
        layers = [layer for layer in self._generator.model.layers if layer.is_wide]
        if not layers:
            return 1.0
        work = self.scenario.workload
        tokens = (work.batch, work.prompt if phase == "prefill" else 1)
        n_BTD = torch.ones(*tokens, self.scenario.model.hidden, dtype=DTYPE)
        self.comm.barrier()
        start_s = time.perf_counter()
        for layer in layers:
            layer.inputs(n_BTD, slice(layer.mlp_rows.start))
            layer.inputs(n_BTD, layer.mlp_rows)
        middle_s = time.perf_counter()
        for layer in layers:
            layer.inputs(n_BTD)
        return (time.perf_counter() - middle_s) / (middle_s - start_s)

    def _passes(self, phase: Phase) -> list[Callable[[], None]]:
        """The passes of a request of the upper bound."""
        wiring = self._wiring("upper-bound")
        if phase == "prefill":
            return [partial(self._generator.prefill, wiring)]
        return [partial(self._generator.decode, wiring, step) for step in range(1, self.scenario.workload.gen)]

    def _wiring(self, variant: str) -> Wiring:
        spec = self.scenario.model
        return lay_out(variant, spec.layers, spec.ladder_layers)


def model_config(spec: ModelSpec) -> ModelConfig:
    """The runtime's form of a model; which experts it would choose does not matter, but how many.

    Raises
    ------
    UsageError
        It has parts that the runtime has not.
    """
    unknown = {
        "norms behind its blocks": spec.post_norms,
        "attention sinks": spec.attention_sinks,
        "norms over all heads": spec.qk_norm == "all",
        "norms without weights": spec.qk_norm == "weightless",
    }
    if parts := [part for part, there in unknown.items() if there]:
        raise UsageError(
            f"{spec.name} has {' and '.join(parts)}, which real passes here do not run", hint="choose another --model"
        )
    experts = latent = None
    if spec.experts:
        experts = Experts(
            count=spec.experts,
            top_k=spec.experts_per_token,
            intermediate=spec.expert_intermediate,
            shared=spec.shared_intermediate,
            dense_layers=spec.dense_layers,
        )
    if spec.kv_lora_rank:
        latent = Latent(
            q_rank=spec.q_lora_rank,
            kv_rank=spec.kv_lora_rank,
            rope_dim=spec.rope_head_dim,
            value_dim=spec.value_head_dim,
            interleaved=True,
        )
        spec = replace(spec, kv_heads=spec.heads, head_dim=spec.nope_head_dim + spec.rope_head_dim)
    return _config_of(ModelConfig, spec, qk_norm=spec.qk_norm == "heads", experts=experts, latent=latent)


def _config_of(config: type[_Config], spec: ModelSpec | StackSpec, **others: object) -> _Config:
    """The runtime's form of a spec: the fields that both have, and others."""
    same = {field.name: getattr(spec, field.name) for field in fields(config) if hasattr(spec, field.name)}
    return config(**same | others)


def _graph(scenario: Scenario, phase: Phase, step: int = 0) -> StepGraph:
    return build(replace(scenario, variant="upper-bound"), phase, scenario.workload.prompt + step)
