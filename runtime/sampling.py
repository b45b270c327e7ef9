"""Choose next tokens: greedily or by chance, the same on every rank."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ladder_sim.errors import UsageError
from runtime.comm.base import Communicator
from runtime.model import kernels
from runtime.model.wiring import Wiring

# colder, the logits over it are infinite, and the choice is the most likely token anyway
_COLDEST = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How the next token is chosen."""

    temperature: float = 0.0
    """Logits are divided by it; 0: the most likely token."""
    top_k: int = 0
    """Number of most likely tokens to draw from; 0: all."""
    top_p: float = 1.0
    """Draw from the most likely tokens with this total probability."""
    seed: int = 0
    """Of the draws."""

    def __post_init__(self) -> None:
        if self.temperature != 0 and not _COLDEST <= self.temperature < float("inf"):
            raise UsageError(f"temperature is {self.temperature}: must be 0, or from {_COLDEST} up")
        if self.top_k < 0:
            raise UsageError(f"top_k is {self.top_k}: must be 0 or more")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p is {self.top_p}: must be above 0 and at most 1")


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
