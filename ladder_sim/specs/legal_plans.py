"""The plans on which a model can run with so many GPUs."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.techniques import Techniques

# fields of a plan: arguments of a scenario
DEGREES = tuple(field.name for field in dataclasses.fields(Plan))
# each takes milliseconds
MAX_PLANS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """Plans that keep all rules but that of memory."""

    legal: tuple[Plan, ...]
    unused: Mapping[str, str]
    """Degrees that were asked for and are in none of them, e.g. "ep 3", and why."""


def without_plan(arguments: Mapping[str, Any], **more: Any) -> Scenario:
    """Return a scenario whose plan does not matter, of the fewest ranks that its techniques split all-reduces among."""
    splits = Techniques.of(arguments.get("technique", "none")).splitting
    return Scenario(**arguments, **more, tp=2 if splits else 1)


def legal_plans(base: Scenario, gpus: int, given: Mapping[str, Sequence[Any]]) -> Plans:
    """Return every plan for a model on at most `gpus` GPUs; raise an error for none, or over `MAX_PLANS`.

    `base` has the most requests; its own plan does not matter. `given` are values of degrees to choose from. By default
    TP takes every degree that divides the model and EP every one that divides the ranks of a stage and the experts; PP,
    attention-DP and DP take powers of two and divisors of `gpus`.

    Examples
    --------
    >>> base = Scenario(model="8b", batch=64)
    >>> [str(plan) for plan in legal_plans(base, 4, {"tp": [2, 4]}).legal]
    ['TP 2', 'TP 2, DP 2', 'TP 2, PP 2', 'TP 4']
    """
    values = {**_all_degrees(base, gpus), **given}
    legal: list[Plan] = []
    problems: dict[tuple[str, Any], LadderSimError] = {}
    last: LadderSimError | None = None
    for number, degrees in enumerate(_few_enough(values, gpus)):
        if number == MAX_PLANS:
            raise UsageError(
                f"{gpus} GPUs allow more than {MAX_PLANS:,} plans", hint="restrict the search, e.g. --tp 8 --pp 1,2,4"
            )
        try:
            plan = Plan(**degrees)
            base.having(plan=plan)
            legal.append(plan)
        except LadderSimError as error:
            if "ep" in given or degrees["ep"] == 1:
                last = error
            for name in given:
                problems[name, degrees[name]] = error
    restricted = " and ".join(f"{name} {', '.join(map(str, each))}" for name, each in given.items())
    if not legal and last is None:
        fewest = math.prod(min(values[name]) for name in ("tp", "attention_dp", "pp", "dp"))
        raise UsageError(
            f"no plan of {restricted} has {gpus} GPUs or less",
            hint=f"--gpus {fewest} is enough for the smallest, or use lower degrees",
        )
    if not legal and last is not None:
        raise UsageError(f"no plan with {restricted} on at most {gpus} GPUs: {last.message}", hint=last.hint)
    unused = {
        f"{name} {value}": problems[name, value].message
        if (name, value) in problems
        else f"needs more than {gpus} GPUs"
        for name, each in given.items()
        for value in each
        if all(getattr(plan, name) != value for plan in legal)
    }
    return Plans(legal=tuple(legal), unused=unused)


def _all_degrees(base: Scenario, gpus: int) -> dict[str, Sequence[Any]]:
    usual = [degree for degree in range(1, gpus + 1) if gpus % degree == 0 or degree & (degree - 1) == 0]
    # a dense model has none to spread
    alone: dict[str, Sequence[Any]] = {} if base.model.experts else {"ep": (1,), "attention_dp": (1,)}
    return {
        "tp": base.model.tp_degrees(gpus),
        "pp": [degree for degree in usual if degree <= base.model.layers],
        "attention_dp": usual,
        "dp": [degree for degree in usual if degree <= base.workload.in_flight],
        "sp": (False,),
        **alone,
    }


def _few_enough(values: Mapping[str, Sequence[Any]], gpus: int) -> Iterator[dict[str, Any]]:
    for tp, attention_dp in itertools.product(values["tp"], values["attention_dp"]):
        ranks = tp * attention_dp
        eps = values.get("ep") or [ep for ep in range(1, ranks + 1) if ranks % ep == 0]
        for pp, dp in itertools.product(values["pp"], values["dp"]):
            if ranks * pp * dp > gpus:
                continue
            for ep, sp in itertools.product(eps, values["sp"]):
                yield {"tp": tp, "pp": pp, "ep": ep, "attention_dp": attention_dp, "dp": dp, "sp": sp}
