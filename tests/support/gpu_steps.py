"""What a tiny model of the runtime computes on a device: in recorded steps, on ranks together, and when it ends."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ladder_sim.wirings.layout import lay_out
from ladder_sim_calibration.measure.launches import PROMPT, STEPS, TINY_MODEL
from ladder_sim_runtime.assemble import assemble, device_of
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.comm.process_group import Degrees
from ladder_sim_runtime.comm.rendezvous import Place, connect
from ladder_sim_runtime.config import AllReduce, CommConfig, EngineConfig, ExecutionConfig, ModelConfig
from ladder_sim_runtime.device import DEVICES

BATCH = 2
# a second, at 2 GHz
SLEEP_CYCLES = 2_000_000_000
# wirings that compute the same on any number of ranks: they wait for every sum, for one of two, and for those of the
# block before the last
TOGETHER = ("standard", "parallel", "ladder")


def equal_tokens(device: str) -> tuple[int, int]:
    """How many tokens of replayed steps are those of eager ones, and how many there are."""
    where = {"device": torch.device(device), "dtype": torch.bfloat16}
    recorded = ExecutionConfig(cuda_graphs="on", prefill_cuda_graphs="on")
    eager = _tokens(TINY_MODEL, EngineConfig(), Communicator(), ["ladder"], **where)
    replayed = _tokens(TINY_MODEL, EngineConfig(), Communicator(), ["ladder"], execution=recorded, **where)
    return int((eager == replayed).sum()), eager.numel()


def equal_together(comm: Communicator) -> tuple[int, int]:
    """How many tokens of all ranks together are those of one alone, and how many there are.

    In float32, so that the order of a sum chooses no token; steps are replayed where there are graphs.
    """
    shape = replace(TINY_MODEL, heads=2 * comm.size, kv_heads=comm.size, intermediate=64 * comm.size)
    recorded = ExecutionConfig(cuda_graphs="auto", prefill_cuda_graphs="auto")
    how = {"device": device_of(comm), "dtype": torch.float32, "execution": recorded}
    alone, together = (
        _tokens(shape, EngineConfig(attention="math"), each, TOGETHER, **how) for each in (Communicator(), comm)
    )
    return int((alone == together).sum()), alone.numel()


def equal_by(kind: AllReduce) -> tuple[int, int]:
    """`equal_together` of the ranks of which this process is one, with a kind of all-reduce."""
    return equal_together(connect(CommConfig(allreduce=kind), Degrees(Place.from_environment().size)))


def _tokens(
    shape: ModelConfig, engine: EngineConfig, comm: Communicator, variants: Sequence[str], **how: Any
) -> Tensor:
    """New tokens of a request in every wiring."""
    generator = assemble(shape, engine, comm, batch=BATCH, prompt=PROMPT, gen=1 + STEPS, seed=0, **how)
    tokens = []
    for variant in variants:
        wiring = lay_out(variant, shape.layers)
        generator.prefill(wiring)
        for step in range(1, 1 + STEPS):
            generator.decode(wiring, step)
        tokens.append(generator.tokens().clone())
    return torch.stack(tokens)


def end_seen(device: str) -> tuple[bool, bool]:
    """Whether another thread takes a replayed graph to have ended while it runs, and after it.

    By that ranks end that hang in one.
    """
    here = DEVICES[device]
    here.recorded(lambda: torch.cuda._sleep(SLEEP_CYCLES), lambda: None)()
    is_done = here.mark()
    with ThreadPoolExecutor(1) as another:
        before = another.submit(is_done).result()
    torch.cuda.synchronize()
    return before, is_done()
