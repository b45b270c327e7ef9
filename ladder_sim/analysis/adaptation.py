"""Price of adapting a model to another wiring, in GPU-hours, and after how many served tokens it has paid.

Training a dense model takes 6 FLOPs for each of its parameters and each token: 2 forward, 4 backward (arXiv 2204.02311,
appendix B, without attention). GPUs do them at a share of their bf16 peak, which large training runs published.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from ladder_sim.confidence import Interval
from ladder_sim.errors import UsageError
from ladder_sim.hf.feed_forward import Dense
from ladder_sim.prediction import Prediction, Predictions
from ladder_sim.quality.published import published, quality_of
from ladder_sim.wirings.names import parse

FLOPS_PER_PARAMETER_AND_TOKEN = 6
# share of the bf16 peak: 0.38 to 0.43 on 8,192 and 16,384 H100s (Llama 3, arXiv 2407.21783, table 4); the ends are of
# two other runs, 0.302 on A100s (Megatron-Turing NLG) and 0.462 on TPUs v4 (PaLM): arXiv 2204.02311, table 3, from
# memory, not checked there
UTILISATION = Interval(value=0.40, low=0.30, high=0.46)


@dataclass(frozen=True, kw_only=True, eq=False)
class Adaptation:
    """Price of one wiring for one model, next to what the wiring saves where the model is served."""

    tokens: float
    """Number of tokens to train on."""
    published_tokens: str
    """Wiring and model whose published adaptation took this many tokens; empty: the number was given."""
    serving: Prediction
    """Prediction of the wiring."""
    standard: Prediction
    """Prediction of standard, on the same GPUs."""

    @cached_property
    def gpu_hours(self) -> Interval:
        """GPU-hours of training, on GPUs of the kind that serve the model."""
        scenario = self.serving.confidence.scenario
        flops = FLOPS_PER_PARAMETER_AND_TOKEN * scenario.model.parameters * self.tokens
        hours = flops / scenario.cluster.gpu.bf16_flops / 3600
        return Interval(value=hours / UTILISATION.value, low=hours / UTILISATION.high, high=hours / UTILISATION.low)

    @cached_property
    def break_even_tokens(self) -> Interval:
        """Number of new tokens to serve until the GPU-hours saved equal those of training; infinite: none are saved."""
        hours_per_token = self.serving.confidence.scenario.plan.gpus / self.standard.rate / 3600
        gain, cost = self.serving.speedup, self.gpu_hours

        def after(hours: float, gained: float) -> float:
            return hours / (hours_per_token * (1 - 1 / gained)) if gained > 1 else math.inf

        return Interval(
            value=after(cost.value, gain.value), low=after(cost.low, gain.high), high=after(cost.high, gain.low)
        )


def adaptation(predictions: Predictions, variant: str, tokens: float | None = None) -> Adaptation:
    """Price the adaptation of a model to a wiring.

    Parameters
    ----------
    predictions
        Predictions of one scenario that include standard and the wiring.
    variant
        Residual wiring.
    tokens
        Number of tokens to train on; by default that of the published adaptation.

    Raises
    ------
    UsageError
        The wiring needs no training, or was not predicted; the model has experts; or `tokens` is not above 0.

    Examples
    --------
    >>> from ladder_sim import Scenario, predict
    >>> predictions = predict(Scenario(model="8b", stack="vllm", concurrency=64), ["standard", "hybrid-ladder:16"])
    >>> price = adaptation(predictions, "hybrid-ladder:16")
    >>> price.tokens, round(price.gpu_hours.value)
    (3000000000.0, 101)
    """
    quality = quality_of(variant)
    if quality is None:
        raise UsageError(f"'{variant}' needs no training: must be another wiring", hint="for example 'ladder'")
    for name in ("standard", quality.wiring):
        if name not in predictions:
            raise UsageError(f"no prediction of '{name}': the price is that of what is served", hint="predict both")
    model = predictions.confidence.scenario.model
    if not all(isinstance(kind.feed_forward, Dense) for kind in model.kinds):
        raise UsageError(
            f"model '{model.name}' has experts: must be dense", hint="the published utilisation is that of dense models"
        )
    source = ""
    if tokens is None:
        tokens, source = _published_tokens(quality.wiring)
    if not 0 < tokens < 1e15:
        raise UsageError(f"tokens {tokens:g}: must be above 0 and below 1e15", hint="for example 3e9")
    return Adaptation(
        tokens=tokens, published_tokens=source, serving=predictions[quality.wiring], standard=predictions["standard"]
    )


def _published_tokens(variant: str) -> tuple[float, str]:
    """Return the most tokens with which a model was adapted to a wiring of the family, else to any, and that model."""
    rows = [row for row in published() if row.tokens and not row.recipe.startswith("from scratch")]
    family = [row for row in rows if parse(row.wiring).family is parse(variant).family]
    row = max(family or rows, key=lambda each: each.tokens)
    return row.tokens, f"{row.wiring} of {row.model}"
