"""Rotary wavelengths of a config.json: their base, and how long ones are stretched."""

import math
from dataclasses import dataclass

from ladder_sim.errors import UsageError
from ladder_sim.hf.fields import MAXIMA, Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's stretching of long rotary wavelengths."""

    factor: float
    """Wavelengths longer than the original context are multiplied by it."""
    low_freq_factor: float
    """Wavelengths above original context / this are stretched in full."""
    high_freq_factor: float
    """Wavelengths below original context / this stay as they are."""
    original_positions: int
    """Context of the first training, tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """YaRN's stretching of long rotary wavelengths (arXiv 2309.00071)."""

    factor: float
    """Wavelengths that turn less than `beta_slow` times in the original context are multiplied by it."""
    original_positions: int
    """Context of the first training, tokens."""
    beta_fast: float
    """Wavelengths that turn more often in the original context stay as they are."""
    beta_slow: float
    """Wavelengths that turn less often in it are stretched in full."""
    amplitude: float
    """Factor of cosines and sines."""
    score_scale: float
    """Latent attention's scores are multiplied by it."""


def read_rope(fields: Fields, max_positions: int | None) -> tuple[float, RopeScaling | Yarn | float | None]:
    """Return the base of the wavelengths, and how long ones are stretched, or by which factor all are.

    Fields are in `rope_parameters` since transformers 5, before that in several places. `max_positions` is the longest
    context of the training; None: the config does not say it. Raises UsageError if a number is impossible, or no code
    stretches wavelengths so.
    """
    scaling = fields.config.get("rope_parameters") or fields.config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise fields.error("rope_scaling", "must be an object", "download or export the file again")
    rope = Fields({"rope_theta": fields.config.get("rope_theta"), **scaling}, fields.source)
    return rope.number("rope_theta", 10000.0), _stretched(rope, max_positions)


def _stretched(rope: Fields, max_positions: int | None) -> RopeScaling | Yarn | float | None:
    kind = rope.config.get("rope_type", rope.config.get("type", "default"))
    # dynamic: stretched beyond `max_position_embeddings`, where no context ends
    if kind == "default" or (kind == "dynamic" and max_positions):
        return None
    if kind == "linear":
        return rope.number("factor", 1.0)
    if kind == "yarn":
        return _yarn(rope, max_positions)
    if kind != "llama3":
        raise UsageError(f"{rope.source}: rope_type is {kind!r}: only llama3, yarn, linear and dynamic are implemented")
    return RopeScaling(
        factor=rope.number("factor", 8.0),
        low_freq_factor=rope.number("low_freq_factor", 1.0),
        high_freq_factor=rope.number("high_freq_factor", 4.0),
        original_positions=_original_positions(rope, 8192),
    )


def _original_positions(rope: Fields, default: int | None) -> int:
    return rope.size("original_max_position_embeddings", MAXIMA["max_positions"], default=default)


def _yarn(rope: Fields, max_positions: int | None) -> Yarn:
    original = _original_positions(rope, max_positions)
    factor = rope.number("factor", max(max_positions or 0, original) / original)

    def magnitude(key: str) -> float:
        # some files write 0 where others leave it out
        share = rope.number(key, 1.0) if rope.config.get(key) else 0.0
        return 0.1 * share * math.log(max(factor, 1.0)) + 1.0

    given = rope.config.get("mscale") and rope.config.get("mscale_all_dim")
    implied = magnitude("mscale") / magnitude("mscale_all_dim") if given else 0.1 * math.log(max(factor, 1.0)) + 1.0
    return Yarn(
        factor=factor,
        original_positions=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        amplitude=rope.number("attention_factor", implied),
        score_scale=magnitude("mscale_all_dim") ** 2,
    )
