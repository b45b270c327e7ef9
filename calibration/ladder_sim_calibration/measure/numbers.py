"""Random operands: with equal numbers few bits change, so that a GPU takes less power and multiplies faster."""

import functools
import math

import torch

DTYPE = torch.bfloat16
# numbers that are drawn; larger tensors repeat them. Odd, so that rows of a power of two do not
DRAWN = 2**22 - 1
SEED = 0


def normal(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return a tensor of normally distributed numbers, equal for equal shapes."""
    elements, drawn = math.prod(shape), _drawn(device)
    numbers = drawn[:elements].clone() if elements <= DRAWN else drawn.repeat(-(-elements // DRAWN))[:elements]
    return numbers.view(shape)


@functools.cache
def _drawn(device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(SEED)
    return torch.randn(DRAWN, generator=generator, device=device).to(DTYPE)
