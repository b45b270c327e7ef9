"""Collectives under autograd: the conjugate functions of Megatron-LM (arXiv 1909.08053, section 3).

Around the column-parallel and row-parallel halves of a block, one all-reduces forward and the other backward. They
define gradients for wirings in which the ranks' residual streams are equal: all but desync and the upper bound. On each
rank a key/value head that several ranks hold gets the gradient of that rank's query heads; the head's is their sum.
"""

from typing import Any

import torch
from torch import Tensor

from runtime.comm.base import Communicator, Handle


def reduced(partial: Tensor, reduction: Handle) -> Tensor:
    """Wait for an all-reduce (in place) of `partial`; backward, the gradient is unchanged."""
    if not (torch.is_grad_enabled() and partial.requires_grad):
        reduction.wait()
        return partial
    result: Tensor = _Reduce.apply(partial, reduction)  # type: ignore[no-untyped-call]
    return result


def shared(x: Tensor, comm: Communicator) -> Tensor:
    """Pass `x` to this rank's columns; backward, the ranks' gradients are summed."""
    if comm.size == 1 or not (torch.is_grad_enabled() and x.requires_grad):
        return x
    result: Tensor = _Share.apply(x, comm)  # type: ignore[no-untyped-call]
    return result


def gathered(shard: Tensor, comm: Communicator) -> Tensor:
    """Every rank's logits, concatenated; backward, each rank takes its own columns."""
    result: Tensor = _Gather.apply(shard, comm)  # type: ignore[no-untyped-call]
    return result


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, reduction: Handle) -> Tensor:
        reduction.wait()
        return partial.view_as(partial)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        return grads[0], None


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Communicator) -> Tensor:
        ctx.comm = comm
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        grad = grads[0].clone()
        ctx.comm.all_reduce(grad).wait()
        return grad, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: Tensor, comm: Communicator) -> Tensor:
        ctx.rank, ctx.width = comm.rank, shard.shape[-1]
        return comm.all_gather(shard)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        return grads[0].narrow(-1, ctx.rank * ctx.width, ctx.width).contiguous(), None
