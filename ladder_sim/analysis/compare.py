"""One scenario on several clusters, or under several stacks."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from ladder_sim.answer import Listed
from ladder_sim.display.document import Notes
from ladder_sim.errors import LadderSimError, UnknownNameError, UsageError
from ladder_sim.prediction import Predictions, predict
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario, formerly_a_dict, point_asked
from ladder_sim.specs.scenario_warnings import DECISIVE, Caution
from ladder_sim.specs.stack import StackSpec
from ladder_sim.sweeps.grid import scenario_at
from ladder_sim.sweeps.price import PRICE_CAVEAT, check_price, token_price
from ladder_sim.values import typed


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One cluster or stack, and its predictions."""

    name: str
    """As typed."""
    scenario: Scenario
    """With this cluster or stack."""
    predictions: Predictions
    """Predictions by variant."""
    usd_per_gpu_hour: float | None
    """Price of a GPU for an hour; None if no price was given."""

    def token_price(self, variant: str) -> float | None:
        """Return the US dollars for a million new tokens; None without a price."""
        if self.usd_per_gpu_hour is None:
            return None
        return token_price(self.usd_per_gpu_hour, self.scenario.plan.gpus, self.predictions[variant].tokens_per_s.value)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Comparison(Listed[Candidate]):
    """One scenario on several clusters, or under several stacks: a sequence."""

    shown_by = "compare.ComparisonReport"
    parts = "candidates"

    candidates: tuple[Candidate, ...]
    """In the order asked for."""
    left_out: tuple[str, ...] = ()
    """Names on which the scenario cannot run, each with the reason."""

    @property
    def notes(self) -> Notes:
        """What the reader should know: which stacks share tables, and each prediction's notes."""
        return Notes(
            confidences={each.name: each.predictions.confidence for each in self.candidates},
            about=tuple(_cautions(self.candidates)),
        )


@formerly_a_dict
@typed()
def compare(
    scenario: Scenario | None = None,
    names: Sequence[str] = (),
    variants: str | Sequence[str] | None = None,
    *,
    usd_per_gpu_hour: Sequence[float] = (),
    profile: str | None = None,
    ignore_memory: bool = False,
    **fields: Any,
) -> Comparison:
    """Predict the same scenario on several clusters, or under several stacks.

    Parameters
    ----------
    scenario
        Everything else; or its arguments as keywords.
    names
        Clusters or stacks, by catalog id or file; at least two.
    variants, profile, ignore_memory
        As in `predict`.
    usd_per_gpu_hour
        Prices, one for all or one for each; none: no prices.

    Returns
    -------
    Comparison
        A sequence of `Candidate`, one for each name on which the scenario can run, in their order, with its
        `Predictions`; `left_out` has the others.

    Raises
    ------
    UsageError
        There are fewer than two names, two mean the same, or prices do not match them.
    UnknownNameError
        A name is neither a cluster nor a stack.
    LadderSimError
        The scenario can run on none of them.

    Examples
    --------
    >>> for candidate in compare(Scenario(model="70b"), ["h100-sxm", "h200-sxm"], "ladder"):
    ...     print(candidate.name, f"{1e3 * candidate.predictions['ladder'].tpot_s:.1f} ms")
    h100-sxm 9.7 ms
    h200-sxm 7.8 ms
    """
    point = point_asked(scenario, fields)
    if isinstance(names, str) or len(names) < 2:
        raise UsageError("need at least two clusters or stacks to compare", hint="name two clusters or two stacks")
    prices: list[float | None] = [check_price(price) for price in usd_per_gpu_hour]
    if len(prices) not in (0, 1, len(names)):
        raise UsageError(f"{len(prices)} prices for {len(names)} names", hint="give one price, or one for each")
    of_each = prices if len(prices) == len(names) else (prices or [None]) * len(names)
    kinds = {name: kind_of(name) for name in names}
    if len(set(kinds.values())) > 1:
        raise UsageError(
            f"{', '.join(f'{name} is a {kind}' for name, kind in kinds.items())}",
            hint="compare clusters with clusters, stacks with stacks",
        )
    wirings = [variants] if isinstance(variants, str) else variants
    candidates: list[Candidate] = []
    left_out: list[str] = []
    for name, price in zip(names, of_each, strict=True):
        try:
            there = scenario_at({**point, kinds[name]: name})
            predictions = predict(there, wirings, profile=profile, ignore_memory=ignore_memory)
        except LadderSimError as error:
            error.message = f"{name}: {error.message}"
            if len(left_out) == len(names) - 1:
                raise
            left_out.append(error.message)
            continue
        alike = [each.name for each in candidates if each.scenario == there]
        if alike:
            raise UsageError(f"{alike[0]} and {name} are one {kinds[name]}", hint="name each once")
        candidates.append(Candidate(name=name, scenario=there, predictions=predictions, usd_per_gpu_hour=price))
    return Comparison(tuple(candidates), tuple(left_out))


def _cautions(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Yield warnings on what is modelled alike, stacks that share tables, what cannot be compared, and prices."""
    for one, other in combinations(candidates, 2):
        if _unnamed(one.scenario) == _unnamed(other.scenario):
            yield Caution(f"nothing in the model tells {one.name} from {other.name}: their figures are equal", DECISIVE)
    sharing = [each for each in candidates if each.scenario.stack.shares_gemms]
    if len({each.scenario.stack for each in sharing}) > 1:
        *others, last = (each.name for each in sharing)
        names = f"{', '.join(others)} and {last}"
        own = len({each.predictions.confidence.profile for each in sharing}) == len(sharing)
        shared, rest = ("GEMMs", "; attention and all-reduce are each engine's own") if own else ("kernels", "")
        yield (
            f"{names} share {shared}: the same measured tables price them, so the comparison says nothing about which "
            f"engine's {shared} are faster{rest}"
        )
    if len({each.scenario.stack.name for each in candidates}) > 1:
        yield (
            "stacks are not ranked: the rates of two engines have separate errors, so that their ratio, unlike a "
            "speedup, is less certain than either"
        )
    if any(each.usd_per_gpu_hour is not None for each in candidates):
        yield PRICE_CAVEAT


def _unnamed(scenario: Scenario) -> Scenario:
    """Return a scenario whose cluster and stack have the same names as any other."""
    return scenario.having(cluster=replace(scenario.cluster, name="one"), stack=replace(scenario.stack, name="one"))


def kind_of(name: str) -> str:
    """Whether a name or file is a ``"cluster"`` or a ``"stack"``."""
    if name.endswith(".toml"):
        return "stack" if isinstance(catalog.cluster_or_stack(name), StackSpec) else "cluster"
    for kind, read in (("cluster", catalog.cluster), ("stack", catalog.stack)):
        with suppress(UnknownNameError):
            read(name)
            return kind
    raise UnknownNameError("cluster or stack", name, (*catalog.cluster_names(), *catalog.stack_names()))
