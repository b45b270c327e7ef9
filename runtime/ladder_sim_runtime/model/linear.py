"""Modules with weights that every kind of layer is made of: RMSNorm and linear layers.

Shapes: B batch, T new tokens, D width, N output features, F input features.
"""

import torch
from torch import Tensor, nn

from ladder_sim_runtime.model import kernels


class RMSNorm(nn.Module):
    """Root-mean-square norm of the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight_D = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        return kernels.norm(x_BTD, self.weight_D, self.eps)

    def with_other(self, x_BTD: Tensor, other: "RMSNorm", y_BTF: Tensor) -> tuple[Tensor, Tensor]:
        """Return the norm of `x_BTD`, and another norm of `y_BTF`, from one kernel."""
        return kernels.norm_both(x_BTD, y_BTF, self.weight_D, other.weight_D, self.eps)


class Linear(nn.Module):
    """A linear layer; a call may use some of its rows only."""

    def __init__(self, features: int, inputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight_NF = nn.Parameter(torch.empty(features, inputs))
        # zeros: only some of the rows stacked in one matrix may have biases
        self.bias_N = nn.Parameter(torch.zeros(features)) if bias else None

    def forward(self, x_BTF: Tensor, rows: slice = slice(None)) -> Tensor:
        bias_N = None if self.bias_N is None else self.bias_N[rows]
        return kernels.linear(x_BTF, self.weight_NF[rows], bias_N)
