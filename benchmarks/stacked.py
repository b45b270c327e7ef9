"""Many small models of one shape trained at once: seeds, and the ranks of each, as dimensions of one process's tensors.

A kernel is launched once for all of them. On GPUs a step is recorded, and replayed by one launch.

Shapes: N seeds, R ranks, B batch, T tokens of a sequence and the one after them.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from runtime import device
from runtime.checkpoint.weights import fill
from runtime.comm.base import DONE, Alone, Handle
from runtime.config import EngineConfig, ModelConfig
from runtime.model.decoder import Decoder
from runtime.model.wiring import Wiring
from runtime.training.config import TrainingConfig
from runtime.training.loop import BETAS, EPS, first_weights, learning_rate
from runtime.training.loss import next_token


class StackedRanks(Alone):
    """Ranks under `torch.func.vmap`."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(size)
        self.rank = rank

    def all_reduce(self, x: Tensor, *, blocking: bool = False) -> Handle:
        if self.size > 1:
            x.copy_(_Sum.apply(x))  # type: ignore[no-untyped-call]
        return DONE


class _Sum(torch.autograd.Function):
    """Of a tensor that every rank has one of."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, None]:
        return x.sum(in_dims[0]), None


class Stack:
    """Models that differ in their seeds.

    Parameters
    ----------
    shape, wiring
        Of each.
    config
        Schedule and optimiser.
    seeds
        Of the first weights.
    ranks
        Tensor-parallel degree of each.
    where
        GPU or CPU.
    """

    def __init__(
        self,
        shape: ModelConfig,
        wiring: Wiring,
        config: TrainingConfig,
        seeds: Sequence[int],
        ranks: int,
        where: torch.device,
    ) -> None:
        self._wiring, self._config, self._ranks = wiring, config, ranks
        # of fused kernels vmap makes a loop, which a GPU cannot record
        engine = EngineConfig(prefill_logits="all", attention="math" if where.type == "cuda" else "flash")
        with where:
            self._model = Decoder(shape, engine, StackedRanks(0, ranks), config.context).requires_grad_(False)
        parts: dict[str, list[Tensor]] = {name: [] for name, _ in self._model.named_parameters()}
        for seed in seeds:
            for rank in range(ranks):
                model = Decoder(shape, engine, StackedRanks(rank, ranks), config.context)
                fill(model, first_weights(seed, shape))
                for name, weight in model.named_parameters():
                    parts[name].append(weight.detach())
        self.weights = {
            name: torch.stack(each).unflatten(0, (len(seeds), ranks)).to(where).requires_grad_()
            for name, each in parts.items()
        }
        self._tokens_NBT = torch.zeros(len(seeds), config.batch, config.context + 1, dtype=torch.long, device=where)
        self.loss_N = torch.zeros(len(seeds), device=where)
        self._rate = torch.tensor(config.lr, device=where)
        self._optimizer = self._adamw()
        self._run = self._step

    def record(self) -> None:
        """Replay the steps from now on; before the first one, on GPUs alone."""
        first = [weight.detach().clone() for weight in self.weights.values()]

        @torch.no_grad()
        def reset() -> None:
            for weight, before in zip(self.weights.values(), first, strict=True):
                weight.copy_(before)
            for moments in self._optimizer.state.values():
                for moment in moments.values():
                    moment.zero_()

        self._run = device.kind_of(self._rate).recorded(self._step, reset)

    def step(self, step: int, tokens_NBT: Tensor) -> None:
        """Learn from a batch for each seed; `loss_N` has the losses."""
        self._tokens_NBT.copy_(tokens_NBT, non_blocking=True)
        self._rate.fill_(learning_rate(step, self._config))
        self._run()

    @torch.no_grad()
    def held_out(self, windows_BT: Tensor) -> Tensor:
        """Mean of -log p of the same sequences, N."""
        parts = windows_BT.to(self._rate.device).split(self._config.batch)
        sums = [self._losses(part_BT.expand(len(self.loss_N), -1, -1)) * len(part_BT) for part_BT in parts]
        return torch.stack(sums).sum(0) / len(windows_BT)

    def _step(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        loss_N = self._losses(self._tokens_NBT)
        # every rank has a loss of its own, all equal
        (loss_N.sum() * self._ranks).backward()
        self._clip()
        self._optimizer.step()
        self.loss_N.copy_(loss_N.detach())

    def _losses(self, tokens_NBT: Tensor) -> Tensor:
        """The ranks' mean, N."""

        def loss(weights: dict[str, Tensor], tokens_BT: Tensor) -> Tensor:
            logits_BTV = functional_call(self._model, weights, (tokens_BT[:, :-1], self._wiring))
            return next_token(logits_BTV, tokens_BT[:, 1:])

        # torch.compile knows no vmap; a loop over fused kernels is what is wanted
        with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            loss_NR: Tensor = vmap(vmap(loss, (0, None)))(self.weights, tokens_NBT)
        return loss_NR.mean(1)

    def _gradients(self) -> Iterator[tuple[Tensor, float]]:
        """Each with the share of its ranks in the gradient of the whole model: what all hold counts once."""
        for name, weight in self.weights.items():
            is_whole = weight.dim() == 3 or name in ("embedding_VD", "lm_head_VD")
            if weight.grad is not None:
                yield weight.grad, 1 / self._ranks if is_whole else 1.0

    def _clip(self) -> None:
        squares = [share * gradient.square().flatten(1).sum(1) for gradient, share in self._gradients()]
        factor_N = (self._config.clip / (torch.stack(squares).sum(0).sqrt() + 1e-6)).clamp(max=1.0)
        for gradient, _ in self._gradients():
            gradient.mul_(factor_N.view(-1, *[1] * (gradient.dim() - 1)))

    def _adamw(self) -> torch.optim.AdamW:
        matrices = [weight for weight in self.weights.values() if weight.dim() > 3]
        others = [weight for weight in self.weights.values() if weight.dim() == 3]
        groups = [
            {"params": matrices, "weight_decay": self._config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        can_record = self._rate.is_cuda
        return torch.optim.AdamW(groups, lr=self._rate, betas=BETAS, eps=EPS, foreach=can_record, capturable=can_record)
