"""Shapes of ops with the sizes of one model, DeepSeek-V3, where a test does not care."""

from typing import Any

from ladder_sim.kernels import BmmShape, MlaShape, MoeShape


def moe_shape(**sizes: Any) -> MoeShape:
    """Its experts, whole, in bf16."""
    of_model = {"tokens": 1, "hidden": 7168, "width": 2048, "experts": 256, "top_k": 8}
    return MoeShape(**{**of_model, **sizes})


def mla_shape(**sizes: Any) -> MlaShape:
    """Its attention, whole, one new token."""
    widths = {"latent": 512, "rope": 64, "nope": 128, "value": 128}
    return MlaShape(**{"batch": 1, "q_len": 1, "kv_len": 1, "heads": 128, **widths, **sizes})


def bmm_shape(**sizes: Any) -> BmmShape:
    """The projection of its queries into the latent space, in bf16."""
    return BmmShape(**{"heads": 128, "m": 1, "n": 512, "k": 128, **sizes})
