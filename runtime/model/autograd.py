"""Collectives under autograd, whether or not the ranks' residual streams are equal.

Every rank computes the same loss, but for the upper bound, whose gradients are not defined. Of a tensor in the residual
stream a rank has the part of the gradient that comes through its own stream; the gradient is the sum of these parts. So
the conjugate of an all-reduce is an all-reduce, and what every rank computes alike from the stream, as an unsplit LM
head, passes an equal share back. Weights of embedding and norms, which all ranks hold, get the sum. One inside a block
that several ranks hold, such as a key/value head, gets each rank's part.

Megatron-LM (arXiv 1909.08053, section 3) sums before each block instead, which needs equal residual streams.
"""

from typing import Any

import torch
from torch import Tensor

from runtime.comm.base import Communicator


def shared(x: Tensor, comm: Communicator) -> Tensor:
    """A tensor that all ranks hold: a sum, a weight, embedded tokens; backward, the ranks' gradients are summed."""
    return _apply(_Share, x, comm)


def repeated(x: Tensor, comm: Communicator) -> Tensor:
    """Pass `x` to what every rank computes alike; backward, a rank takes its share of the gradient."""
    return _apply(_Repeat, x, comm)


def gathered(shard: Tensor, comm: Communicator) -> Tensor:
    """Every rank's logits, concatenated; backward, each rank takes its own columns."""
    result: Tensor = _Gather.apply(shard, comm)  # type: ignore[no-untyped-call]
    return result


def _apply(function: Any, x: Tensor, comm: Communicator) -> Tensor:
    """Forward, nothing."""
    if comm.size == 1 or not torch.is_grad_enabled():
        return x
    result: Tensor = function.apply(x, comm)
    return result


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, comm: Communicator) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Communicator], output: Tensor) -> None:
        ctx.comm = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        grad = grads[0].clone()
        ctx.comm.all_reduce(grad, blocking=True).wait()
        return grad, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], x: Tensor, comm: Communicator) -> tuple[Tensor, int]:
        """Of ranks that are a dimension of one process's tensors: their sum's gradient, and no change."""
        sum_x = x.sum(in_dims[0], keepdim=True)
        return x.detach() + (sum_x - sum_x.detach()), in_dims[0]


class _Repeat(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, comm: Communicator) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Communicator], output: Tensor) -> None:
        ctx.ranks = inputs[1].size

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        return grads[0] / ctx.ranks, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: Tensor, comm: Communicator) -> Tensor:
        ctx.rank, ctx.width = comm.rank, shard.shape[-1]
        return comm.all_gather(shard)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        return grads[0].narrow(-1, ctx.rank * ctx.width, ctx.width).contiguous(), None
