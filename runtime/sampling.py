"""Choose next tokens: greedily or by chance, the same on every rank."""

import torch
from torch import Tensor

from runtime.comm.base import Communicator
from runtime.model import kernels
from runtime.model.wiring import Wiring
from runtime.prepare import SamplingConfig


class Sampler:
    """Rank 0 chooses and broadcasts, so that all ranks stop at the same token despite different rounding."""

    def __init__(self, config: SamplingConfig, comm: Communicator) -> None:
        self._config, self._comm = config, comm
        # on the CPU: a GPU draws other numbers
        self._numbers = torch.Generator().manual_seed(config.seed)

    def __call__(self, logits_BTV: Tensor, _wiring: Wiring) -> Tensor:
        config = self._config
        if config.temperature == 0:
            token_B = kernels.greedy(logits_BTV)
        else:
            chance_B = torch.rand(len(logits_BTV), generator=self._numbers).to(logits_BTV.device)
            token_B = kernels.sample(logits_BTV, chance_B, config.temperature, config.top_k, config.top_p)
        if self._comm.size > 1:
            self._comm.broadcast(token_B)
        return token_B
