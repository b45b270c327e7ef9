"""Cosines and sines of rotary embeddings.

Shapes: S positions, K rotated channels of a head, C = K / 2 pairs of them.

References
----------
RoFormer, arXiv 2104.09864; YaRN, arXiv 2309.00071. The other stretching of long wavelengths is Llama 3.1's (Hugging
Face ``rope_type: llama3``).
"""

import math

import torch
from torch import Tensor

from ladder_sim.hf.config import RopeScaling, Yarn
from ladder_sim_runtime.config import ModelConfig


def rope_table(config: ModelConfig, positions: int) -> Tensor:
    """Return the cosines and sines of every position and channel, 2 x S x K, float32.

    A channel is multiplied by its cosine, and its pair, half a head away, by its sine, which for the first half of the
    channels is negative.
    """
    channels = config.rope_head_dim if config.latent else config.head_dim
    exponent = torch.arange(0, channels, 2, dtype=torch.float32) / channels
    frequency, amplitude = config.rope_theta**-exponent, 1.0
    match config.rope_scaling:
        case float() as factor:
            frequency = frequency / factor
        case RopeScaling() as scaling:
            turns = scaling.original_positions * frequency / (2 * torch.pi)
            low, high = scaling.low_freq_factor, scaling.high_freq_factor
            kept = ((turns - low) / (high - low)).clamp(0, 1)
            frequency = frequency * (kept + (1 - kept) / scaling.factor)
        case Yarn() as yarn:
            kept = _kept_by_yarn(yarn, channels, config.rope_theta)
            frequency = frequency * (kept + (1 - kept) / yarn.factor)
            amplitude = yarn.amplitude
    angle_SC = torch.outer(torch.arange(positions, dtype=torch.float32), frequency)
    cos_SC, sin_SC = angle_SC.cos(), angle_SC.sin()
    return torch.stack((torch.cat((cos_SC, cos_SC), -1), torch.cat((-sin_SC, sin_SC), -1))) * amplitude


def _kept_by_yarn(yarn: Yarn, channels: int, theta: float) -> Tensor:
    """Return, by pair of channels, 1 where its wavelength stays, 0 where it is stretched, a ramp in between."""

    def pair(turns: float) -> float:
        """Return the pair of channels, as a fraction, that turns `turns` times in the original context."""
        return channels * math.log(yarn.original_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(pair(yarn.beta_fast)), 0)
    last = min(math.ceil(pair(yarn.beta_slow)), channels - 1)
    # as in transformers: a ramp of no width is a step
    ramp = (torch.arange(channels // 2, dtype=torch.float32) - first) / max(last - first, 0.001)
    return 1 - ramp.clamp(0, 1)
