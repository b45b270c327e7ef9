"""What `advise` returns: options, the best trade-offs among them, and what became of the others."""

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ladder_sim.answer import Answer
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.display.document import Notes
from ladder_sim.display.labels import load_label
from ladder_sim.prediction import Prediction, Predictions, own_variant, predict
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario

Objective = Literal["tpot", "ttft", "tokens_per_s", "tokens_per_gpu"]
Outcome = Literal["front", "dominated", "max_tpot", "max_ttft"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Option:
    """One way to run the model."""

    variant: str
    scenario: Scenario = field(repr=False)
    """What `predict` takes for the same figures, on the nodes that its plan needs."""
    ttft_s: float
    tpot_s: float
    """Time per further token; TTFT if there is one token only."""
    tokens_per_s: float
    """Throughput of all requests together, new tokens per second."""
    memory_bytes: float
    """Memory of one GPU that the option takes."""
    usd_per_Mtoken: float | None
    """US dollars for a million new tokens; None: no price was given."""

    @property
    def plan(self) -> Plan:
        """How the model is spread over GPUs."""
        return self.scenario.plan

    @property
    def requests(self) -> int:
        """Requests of the static batch, or in flight."""
        return self.scenario.workload.in_flight

    @property
    def tokens_per_gpu(self) -> float:
        """Tokens per second and GPU."""
        return self.tokens_per_s / self.plan.gpus

    def __str__(self) -> str:
        return f"{self.variant}, {self.plan}, {load_label(self.scenario.workload)}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unfit:
    """A plan that cannot run its requests."""

    scenario: Scenario = field(repr=False)
    problem: str
    """Why; empty: it needs more memory than a GPU has."""
    memory_bytes: float
    """Memory of one GPU that the plan would take."""

    @property
    def missing_bytes(self) -> float:
        """Memory that a GPU lacks."""
        return self.memory_bytes - self.scenario.cluster.gpu.hbm_bytes

    def __str__(self) -> str:
        return f"{self.scenario.plan}, {load_label(self.scenario.workload)}"


# of options; the smallest is the best
RANKS: Mapping[Objective, Callable[[Option], float]] = {
    "tpot": lambda option: option.tpot_s,
    "ttft": lambda option: option.ttft_s,
    "tokens_per_s": lambda option: -option.tokens_per_s,
    "tokens_per_gpu": lambda option: -option.tokens_per_gpu,
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Advice(Answer):
    """The options, the best trade-offs among them, and why the others lost."""

    shown_by = "advise.AdviceReport"

    objective: Objective
    gpus: int
    """GPUs that may be used."""
    plans: int
    """Plans that were searched."""
    variants: tuple[str, ...]
    """Residual wirings that were searched."""
    loads: tuple[int, ...]
    """Batches, or numbers of requests in flight, that were searched."""
    max_tpot_s: float
    """The longest time per token allowed."""
    max_ttft_s: float
    """The longest time to first token allowed."""
    options: tuple[Option, ...] = field(repr=False)
    """Everything that fits the memory and the limits, best first."""
    front: tuple[Option, ...] = field(repr=False)
    """The Pareto front of time per token and tokens per GPU, fastest first."""
    beyond: tuple[Option, ...] = field(repr=False)
    """Plans with a variant whose TPOT or TTFT is above its bound."""
    unfit: tuple[Unfit, ...] = field(repr=False)
    """Plans that cannot run with so many requests, whatever the variant; the closest to fit first."""
    cautions: tuple[str, ...]
    """Why the best option may not be the best choice, serving first."""
    profile: str | CalibrationProfile | None
    """As given."""

    @property
    def best(self) -> Option:
        """The best option."""
        return self.options[0]

    @cached_property
    def best_by_variant(self) -> dict[str, Option]:
        """The best of each variant, best first."""
        best: dict[str, Option] = {}
        for option in self.options:
            best.setdefault(option.variant, option)
        return best

    @cached_property
    def predictions(self) -> Mapping[Option, Prediction]:
        """Of the best of each variant and of the front: the same figures, with intervals."""
        shown = dict.fromkeys([*self.best_by_variant.values(), *self.front])
        return {option: self.predictions_of(option.scenario)[option.variant] for option in shown}

    @cached_property
    def _predicted(self) -> dict[Scenario, Predictions]:
        return {}

    def predictions_of(self, scenario: Scenario) -> Predictions:
        """Predict the variants of a plan and load."""
        if scenario not in self._predicted:
            self._predicted[scenario] = predict(scenario, list(self.variants), profile=self.profile)
        return self._predicted[scenario]

    @property
    def best_own(self) -> Option | None:
        """The best option of the wiring that the model's weights have; None: there is none."""
        return self.best_by_variant.get(own_variant(self.best.scenario.model))

    @property
    def notes(self) -> Notes:
        """The cautions, and what the reader should know about the predictions that are shown."""
        confidences = {
            self.place(option.scenario): prediction.confidence for option, prediction in self.predictions.items()
        }
        return Notes(confidences=confidences, about=self.cautions)

    def place(self, scenario: Scenario) -> str:
        """Return a plan as text, with its load where several loads were searched."""
        load = f", {load_label(scenario.workload)}" if len(self.loads) > 1 else ""
        return f"{scenario.plan}{load}"

    def dominating(self, option: Option) -> Option | None:
        """Return the option of the Pareto front that is no slower and serves no less per GPU; None if it is one."""
        if option in self.front:
            return None
        return self.front[bisect.bisect_right([each.tpot_s for each in self.front], option.tpot_s) - 1]

    def outcome(self, option: Option) -> Outcome:
        """Return what became of an option: it is on the front, dominated, or exceeds a bound."""
        if option.tpot_s > self.max_tpot_s:
            return "max_tpot"
        if option.ttft_s > self.max_ttft_s:
            return "max_ttft"
        return "front" if option in self.front else "dominated"


def pareto_front(options: Sequence[Option]) -> tuple[Option, ...]:
    """Return the options that no other beats in both time per token and tokens per GPU, fastest first."""
    front: list[Option] = []
    for option in sorted(options, key=lambda option: (option.tpot_s, -option.tokens_per_gpu)):
        if not front or option.tokens_per_gpu > front[-1].tokens_per_gpu:
            front.append(option)
    return tuple(front)
