"""Steps of the runtime as CUDA graphs on a device: whether tokens are those of eager steps, and their end is seen."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from calibration.measure.launches import STEPS, TINY_MODEL, tiny_generator
from runtime.config import ExecutionConfig
from runtime.device import DEVICES
from runtime.model.wiring import lay_out

BATCH = 2
# a second, at 2 GHz
SLEEP_CYCLES = 2_000_000_000


def equal_tokens(device: str) -> tuple[int, int]:
    """How many tokens of replayed steps are those of eager ones, and how many there are."""
    eager = _tokens(device, ExecutionConfig())
    replayed = _tokens(device, ExecutionConfig(cuda_graphs="on", prefill_cuda_graphs="on"))
    return int((eager == replayed).sum()), eager.numel()


def _tokens(device: str, execution: ExecutionConfig) -> Tensor:
    generator = tiny_generator(torch.device(device), torch.bfloat16, batch=BATCH, execution=execution)
    wiring = lay_out("ladder", TINY_MODEL.layers)
    generator.prefill(wiring)
    for step in range(1, 1 + STEPS):
        generator.decode(wiring, step)
    return generator.tokens()


def end_seen(device: str) -> tuple[bool, bool]:
    """Whether another thread sees a replayed graph as ended: while it runs, and after it.

    Ranks that hang in a graph are found, and ended, in this way.
    """
    here = DEVICES[device]
    here.recorded(lambda: torch.cuda._sleep(SLEEP_CYCLES), lambda: None)()
    is_done = here.mark()
    with ThreadPoolExecutor(1) as another:
        before = another.submit(is_done).result()
    torch.cuda.synchronize()
    return before, is_done()
