"""What adapting a model to another wiring costs, and after how many served tokens it has paid."""

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property

from ladder_sim.answer import Prediction, Predictions
from ladder_sim.confidence import Interval
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.errors import InfeasibleError, UsageError
from ladder_sim.graph.variants import parse
from ladder_sim.prediction import predict, resolve_profile
from ladder_sim.quality.published import published, quality_of
from ladder_sim.simulate.passes import Engine
from ladder_sim.simulate.training import TrainingStep, training_step
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.signatures import typed
from ladder_sim.specs.stack import StackSpec

# tokens of a sequence: an assumption, as Llama 3 was trained (arXiv 2407.21783, table 4)
SEQUENCE = 8192
# most GPUs that are tried if none are given
MOST_GPUS = 1024
# of GPU-hours, in the logarithm: judgement, no training step was compared
COST_WIDTH = math.log(1.5)


@dataclass(frozen=True, kw_only=True, eq=False)
class Adaptation:
    """The price of a wiring, and what it saves."""

    scenario: Scenario
    """The model as it is served."""
    training: Scenario
    """The plan on which it is trained."""
    step: TrainingStep
    """With the wiring."""
    standard: TrainingStep
    """On the same GPUs."""
    tokens: float
    """To train on."""
    published_tokens: str
    """Model and wiring that was adapted with so many; empty: they were given."""
    serving: Prediction
    """Of the wiring."""
    serving_standard: Prediction

    @property
    def training_gain(self) -> float:
        """How many times as fast a training step is as standard's."""
        return self.standard.seconds / self.step.seconds

    @property
    def gpu_hours(self) -> Interval:
        """That adapting takes."""
        return Interval.around(self.step.gpu_hours(self.tokens), COST_WIDTH)

    def dollars(self, usd_per_gpu_hour: float) -> Interval:
        """What they cost."""
        return Interval.around(usd_per_gpu_hour * self.step.gpu_hours(self.tokens), COST_WIDTH)

    @cached_property
    def break_even_tokens(self) -> Interval:
        """New tokens to serve until the GPU-hours saved are those of adapting; infinite: it saves none."""
        own = self.scenario.plan.gpus / self.serving_standard.rate / 3600
        gain, cost = self.serving.speedup, self.gpu_hours

        def after(hours: float, gained: float) -> float:
            return hours / (own * (1 - 1 / gained)) if gained > 1 else math.inf

        return Interval(
            value=after(cost.value, gain.value), low=after(cost.low, gain.high), high=after(cost.high, gain.low)
        )

    def days(self, tokens_per_s: float | None = None) -> Interval:
        """Until then, at so many new tokens a second; by default those that standard serves on its GPUs."""
        per_day = 86_400 * (tokens_per_s or self.serving_standard.rate)
        tokens = self.break_even_tokens
        return Interval(value=tokens.value / per_day, low=tokens.low / per_day, high=tokens.high / per_day)


@typed()
def adaptation(
    scenario: Scenario,
    variant: str,
    *,
    tokens: float | None = None,
    gpus: int | None = None,
    sequence: int = SEQUENCE,
    profile: str | None = None,
    ignore_memory: bool = False,
    engine: Engine = "fast",
    predictions: Predictions | None = None,
) -> Adaptation:
    """Predict what it costs to adapt a model to a wiring, and after how many served tokens that has paid.

    Training is in bf16, with Adam, at the tensor-parallel degree of the scenario, inside a node.

    Parameters
    ----------
    scenario
        The model as it is to be served.
    variant
        Residual wiring.
    tokens
        To train on; by default those of the published adaptation.
    gpus
        To train on; by default as few replicas as fit, in powers of two.
    sequence
        Tokens of a training sequence.
    profile, engine
        As in `ladder_sim.predict`, of serving and training.
    ignore_memory
        Likewise, of the serving alone.
    predictions
        Of the serving, if there are any.

    Raises
    ------
    MemoryFitError
        A training step does not fit.
    UsageError
        The wiring needs no training, a number is not above 0, the model has experts or latent attention, or the GPUs
        make no whole replicas.

    Examples
    --------
    >>> from ladder_sim import Scenario
    >>> price = adaptation(Scenario.of(model="8b", stack="vllm", concurrency=64), "hybrid-ladder:16")
    >>> price.tokens, price.standard.gpus
    (3000000000.0, 8)
    """
    quality = quality_of(variant)
    if quality is None:
        raise UsageError(f"'{variant}' needs no training: must be another wiring", hint="for example 'ladder'")
    source = ""
    if tokens is None:
        tokens, source = _published_tokens(variant)
    if not 0 < tokens < 1e15:
        raise UsageError(f"tokens {tokens:g}: must be above 0 and below 1e15", hint="e.g. --tokens 3e9")
    if sequence < 1:
        raise UsageError(
            f"sequence {sequence}: must be above 0", hint="tokens to train on at a time, e.g. --sequence 8192"
        )
    training, steps = _steps(scenario, ("standard", quality.wiring), gpus, sequence, profile, engine)
    names = ["standard", quality.wiring]
    served = predictions or predict(scenario, names, profile=profile, ignore_memory=ignore_memory, engine=engine)
    return Adaptation(
        scenario=scenario,
        training=training,
        step=steps[1],
        standard=steps[0],
        tokens=tokens,
        published_tokens=source,
        serving=served[quality.wiring],
        serving_standard=served["standard"],
    )


def _published_tokens(variant: str) -> tuple[float, str]:
    """Most tokens with which a pretrained model was adapted to a wiring of the family, else to any; and which."""
    rows = [row for row in published() if row.tokens and not row.recipe.startswith("from scratch")]
    family = [row for row in rows if parse(row.wiring).family is parse(variant).family]
    row = max(family or rows, key=lambda each: each.tokens)
    return row.tokens, f"{row.wiring} of {row.model}"


def _steps(
    scenario: Scenario, variants: tuple[str, ...], gpus: int | None, sequence: int, profile: str | None, engine: Engine
) -> tuple[Scenario, list[TrainingStep]]:
    tp = scenario.ranks_per_node
    if gpus is not None and (gpus < tp or gpus % tp):
        raise UsageError(f"gpus {gpus} at TP {tp}: must be a multiple of {tp}", hint=f"e.g. --gpus {8 * tp}")
    count = gpus or tp
    while True:
        training = _trained(scenario, tp, count, sequence)
        costs = KernelCosts(training, resolve_profile(training, profile))
        try:
            return training, [training_step(training, name, costs, engine=engine) for name in variants]
        except InfeasibleError:
            if gpus is not None or 2 * count > MOST_GPUS:
                raise
        count *= 2


def _trained(scenario: Scenario, tp: int, gpus: int, sequence: int) -> Scenario:
    """The scenario in which it is trained."""
    cluster, replicas = scenario.cluster, gpus // tp
    return dataclasses.replace(
        scenario,
        stack=_training_stack(),
        nodes=-(-replicas // (cluster.gpus_per_node // tp)),
        plan=dataclasses.replace(scenario.plan, tp=tp, pp=1, ep=1, attention_dp=1, dp=replicas),
        workload=dataclasses.replace(
            scenario.workload,
            batch=replicas,
            concurrency=None,
            arrivals="steady",
            prompt=sequence,
            gen=1,
            dtype="bf16",
            kv_dtype="bf16",
        ),
    )


def _training_stack() -> StackSpec:
    """What runs training: kernels of prompts, NCCL, every logit, add and norm apart, parts of the vocabulary.

    Start-up of collectives, launches and the rate that tensor cores keep up are those of vLLM's prefill: no training
    was measured.
    """
    return dataclasses.replace(
        catalog.stack("vllm"),
        name="training",
        engine="",
        allreduce="nccl",
        prefill_logits="all",
        residual_add="apart",
    )
