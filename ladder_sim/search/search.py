"""Search for the best choice of wiring in each group of a model's layers.

What a group adds to a pass depends on its own choice and on what is on the way at its border: on the choices of the few
groups before it (`_memory`). Each such addition is the difference of two simulated models, with the group and those
before it as chosen, or without the group's choice, and all others standard. Of additive times, dynamic programming over
the borders finds the fastest candidates for any number of rewired layers. These are simulated whole, and further ones
as long as the error of the sums leaves open whether they are faster.
"""

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nsmallest
from itertools import accumulate, pairwise
from pathlib import Path

from ladder_sim.analysis.versus import wirings_for
from ladder_sim.answer import Answer
from ladder_sim.closed_loop.step import simulate_request
from ladder_sim.confidence.runs import is_faster
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.errors import UsageError
from ladder_sim.graph.ops import model_blocks
from ladder_sim.prediction import Predictions, predict, simulation_inputs
from ladder_sim.search.space import Chosen, Penalty, Space
from ladder_sim.specs.scenario import Scenario
from ladder_sim.wirings.names import FAMILIES, HYBRID, parse
from ladder_sim.wirings.rules import PARTS, WiringError

# candidates that are kept at a border for each state and number of rewired layers
_KEPT = 8
# groups before a border that are told apart at most: with each, there are so many times as many sums as choices
_MOST_MEMORY = 2
# share of a request that each change of choice must gain to be worth it: runs alike differ by more
_PER_CHANGE = 2e-4
Watch = Callable[[int, int], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A wiring that was simulated."""

    variant: str
    """Named wiring with the same rules, if there is one; else a wiring that is named after what its layers have."""
    layers: int
    """Number of rewired layers."""
    request_s: float
    """Time of a request, in seconds."""
    loss: tuple[Penalty, float] | None
    """Loss of quality, and what says it; None: the quality is unknown."""


# no slots: what follows from the fields is computed once
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SearchResult(Answer):
    """Wirings faster than all others that lose as little, or of which as few layers are rewired."""

    shown_by = "search.SearchReport"

    space: Space
    """What was searched."""
    known: Sequence[Candidate]
    """Pareto front of time and loss of quality for each metric, without standard."""
    unknown: Sequence[Candidate]
    """Pareto front of time and number of rewired layers, of wirings whose quality is unknown."""
    named: Sequence[str]
    """Named wirings that suit the model."""
    predictions: Predictions = field(repr=False)
    """Predictions of standard, of both fronts and of the named wirings."""
    simulated: int
    """Number of simulated candidates."""
    error: float
    """Largest relative error of a sum by which candidates were chosen."""
    file: Path | None = None
    """Wiring file that the best was written to; None: it was not."""

    @property
    def scenario(self) -> Scenario:
        """What the wirings are for."""
        return self.predictions.confidence.scenario

    @cached_property
    def best(self) -> Candidate | None:
        """The fastest of acceptable loss that is clearly faster than standard, else the fastest of unknown quality."""
        accepted = [each for each in self.known if each.loss and each.loss[1] <= self.space.most_lost]
        fastest = [min(front, key=lambda each: each.request_s) for front in (accepted, self.unknown) if front]
        clear = (each for each in fastest if is_faster(self.predictions[each.variant].speedup))
        return next(clear, fastest[0] if fastest else None)

    @property
    def best_named(self) -> str:
        """The fastest named wiring, whatever its quality."""
        return min(self.named, key=lambda name: self.predictions[name].request_s)


def search(
    scenario: Scenario,
    space: Space,
    *,
    profile: str | CalibrationProfile | None = None,
    ignore_memory: bool = False,
    watch: Watch = lambda done, total: None,
) -> SearchResult:
    """Find the fastest wirings of a model of those that a choice in each of its layers makes.

    Other arguments are those of `ladder_sim.predict`; the scenario's variant does not count. `watch` is given how many
    candidates were simulated, and about how many there are to simulate. Raises WiringError if no candidate is a model;
    MemoryFitError if the model does not fit its GPUs.
    """
    times = _Candidates(scenario, space, profile, ignore_memory=ignore_memory, watch=watch)
    error = _simulate(_fastest(times), times)
    # by metric, empty where the quality is unknown: losses or numbers of rewired layers, and candidates
    prices: dict[str, list[tuple[float, Chosen]]] = defaultdict(list)
    for chosen, request_s in times.of.items():
        if any(chosen) and math.isfinite(request_s):
            known = space.lost(chosen, scenario.model.layers)
            price = (known[0].metric, known[1]) if known else ("", times.rewired(chosen))
            prices[price[0]].append((price[1], chosen))
    if not prices:
        raise WiringError("no choice makes a model of these layers", hint='behind reduce = "none" there must be a sum')
    named, _ = wirings_for(scenario.model)
    fronts = {metric: [_candidate(times, each, named) for each in _front(times, at)] for metric, at in prices.items()}
    unknown = fronts.pop("", [])
    found = [each for front in fronts.values() for each in front]
    variants = ["standard", *(each.variant for each in (*found, *unknown)), *named]
    return SearchResult(
        space=space,
        known=found,
        unknown=unknown,
        named=named,
        predictions=predict(scenario, variants, profile=profile, ignore_memory=ignore_memory),
        simulated=len(times.of),
        error=error,
    )


class _Candidates:
    """Simulated times of candidates, and what a group of layers adds to them."""

    def __init__(
        self,
        scenario: Scenario,
        space: Space,
        profile: str | CalibrationProfile | None,
        *,
        ignore_memory: bool,
        watch: Watch,
    ) -> None:
        self.scenario, self.space, self._watch = scenario, space, watch
        self._costs, *_ = simulation_inputs(scenario, profile, ignore_memory=ignore_memory, jitter=0.0, seed=0)
        self.groups = space.groups(scenario.model.layers)
        self.choices = range(len(space.choices) + 1)
        self.standard: Chosen = (0,) * len(self.groups)
        self.of: dict[Chosen, float] = {
            self.standard: float(simulate_request(scenario, ["standard"], self._costs)["standard"].request_s)
        }

        # where what a group adds is simulated: at the first position with the same layers around it
        surroundings = [self._around(position) for position in range(len(self.groups))]
        self._like = [surroundings.index(each) for each in surroundings]
        self._expected = len({*surroundings}) * len(self.choices) ** (self.memory + 1) + 2 * len(self.groups)

    @cached_property
    def memory(self) -> int:
        """Groups before a border on whose choices it depends what is on the way there."""
        rules = (each for table in self.space.choices.values() for each in (table, *map(table.get, PARTS)) if each)
        late: int = max(rule.get("delay", 0) for rule in rules)
        return min(_MOST_MEMORY, max(1, math.ceil(late / 2 / self.space.group)))

    @cached_property
    def base_s(self) -> float:
        """Time of a request of standard with what rewiring any group changes in all of them, e.g. fused kernels."""
        distant = len(self.groups) - 2
        for choice in self.choices[1:] if distant > self.memory + 1 else ():
            first, second = ((*self.standard[:at], choice, *self.standard[at + 1 :]) for at in (0, distant))
            both = (choice, *second[1:])
            base_s = self.request_s(first) + self.request_s(second) - self.request_s(both)
            if math.isfinite(base_s):
                return base_s
        return self.of[self.standard]

    def request_s(self, chosen: Chosen) -> float:
        """Return the time of a request; infinite if the candidate is no model."""
        if chosen not in self.of:
            self._watch(len(self.of), max(len(self.of), self._expected))
            wiring = self.space.wiring(chosen, self.scenario.model.layers)
            try:
                self.of[chosen] = float(simulate_request(self.scenario, [wiring], self._costs)[wiring].request_s)
            except UsageError:
                self.of[chosen] = math.inf
        return self.of[chosen]

    def added_s(self, position: int, window: Chosen) -> float:
        """Return the seconds that the last choice of a window adds at a position, after those before it."""
        start = self._like[position] + 1 - len(window)
        (*before, last), after = window, self.standard[self._like[position] + 1 :]
        if not last:
            return 0.0
        with_s = self.request_s((*self.standard[:start], *before, last, *after))
        without_s = self.request_s((*self.standard[:start], *before, 0, *after)) if any(before) else self.base_s
        return with_s - without_s if math.isfinite(with_s) and math.isfinite(without_s) else math.inf

    def rewired(self, chosen: Chosen) -> int:
        """Return the number of layers of a candidate that are not standard."""
        return sum(len(group) for choice, group in zip(chosen, self.groups, strict=True) if choice)

    def _around(self, position: int) -> tuple[object, ...]:
        """Return what a model has around a group; None where it ends."""
        model, plan = self.scenario.model, self.scenario.plan
        kinds, stages = model_blocks(model).layers, plan.stages(model.layers)
        starts = set(accumulate(stages[:-1]))
        return tuple(
            tuple((kinds[layer], layer in starts) for layer in self.groups[at]) if 0 <= at < len(self.groups) else None
            for at in range(position - self.memory - 1, position + 2)
        )


def _fastest(times: _Candidates) -> list[list[tuple[float, Chosen]]]:
    """Return estimated times and candidates, best first, for each number of rewired layers, and at known places."""
    penalties = [times.space.penalties.get(name) for name in times.space.choices]
    anywhere = {number for number, each in enumerate(penalties, 1) if each and each.where == "any"}
    # state at a border: choices of the last groups; the choice of all rewired groups, if it loses as much in any place,
    # 0 if none is rewired, else -1; and the number of rewired layers
    labels: dict[tuple[Chosen, int, int], list[tuple[float, Chosen]]] = {((), 0, 0): [(times.base_s, ())]}
    for position, group in enumerate(times.groups):
        longer: dict[tuple[Chosen, int, int], list[tuple[float, Chosen]]] = defaultdict(list)
        for (before, alone, rewired), found in labels.items():
            for choice in times.choices:
                window = (*before, choice)
                added_s = times.added_s(position, window)
                if math.isfinite(added_s):
                    same = choice in anywhere and alone in (0, choice)
                    state = window[-times.memory :], (choice if same else -1) if choice else alone
                    added_s += _PER_CHANGE * times.base_s if before and choice != before[-1] else 0.0
                    longer[*state, rewired + (len(group) if choice else 0)] += [
                        (seconds + added_s, (*chosen, choice)) for seconds, chosen in found
                    ]
        labels = {state: nsmallest(_KEPT, found) for state, found in longer.items()}
    ends: dict[tuple[int, int], list[tuple[float, Chosen]]] = defaultdict(list)
    for (_, alone, rewired), found in labels.items():
        ends[alone, rewired] += found
    alike = [nsmallest(_KEPT, found) for (_, rewired), found in ends.items() if rewired]
    for number, penalty in enumerate(penalties, 1):
        if penalty and penalty.where != "any":
            for count in range(1, len(times.groups) + 1):
                having, rest = (number,) * count, times.standard[count:]
                alike.append([(math.nan, rest + having if penalty.where == "top" else having + rest)])
    return alike


def _simulate(alike: Sequence[Sequence[tuple[float, Chosen]]], times: _Candidates) -> float:
    """Simulate what may be the fastest of candidates alike; return the largest relative error of an estimate."""
    error = 0.0
    best = [math.inf] * len(alike)
    for rank in range(_KEPT):
        for number, found in enumerate(alike):
            # in the first round the error is not known yet
            if rank < len(found) and not found[rank][0] * (1.0 - error) > best[number]:
                estimate_s, chosen = found[rank]
                request_s = times.request_s(chosen)
                best[number] = min(best[number], request_s)
                if math.isfinite(estimate_s) and math.isfinite(request_s):
                    error = max(error, abs(estimate_s / request_s - 1.0))
    return error


def _front(times: _Candidates, prices: Sequence[tuple[float, Chosen]]) -> Iterator[Chosen]:
    """Yield the candidates, but standard, that are faster than all at as low a price; standard's is 0."""
    fastest_s = math.inf
    every = [(0.0, times.standard), *prices]
    for _, counted_s, chosen in sorted((price, counted(times.of[each], each), each) for price, each in every):
        if counted_s < fastest_s:
            fastest_s = counted_s
            if any(chosen):
                yield chosen


def counted(request_s: float, chosen: Chosen) -> float:
    """Return the time of a candidate by which it is chosen: with what its changes of choice must gain."""
    return request_s * (1.0 + _PER_CHANGE * sum(late != early for early, late in pairwise(chosen)))


def _candidate(times: _Candidates, chosen: Chosen, named: Sequence[str]) -> Candidate:
    """Return a candidate under the name of the named wiring with the same rules, if there is one."""
    model, layers = times.scenario.model, times.rewired(chosen)
    variant: str = times.space.wiring(chosen, model.layers)
    placed = parse(variant).place(model.layers)
    hybrids = (f"{HYBRID}{name}:{layers}" for name in named if parse(name).family.fits_hybrids)
    tails = (f"{name}:{layers}" for name, family in FAMILIES.items() if family.is_tail)
    for name in (*named, *hybrids, *tails):
        # a hybrid may have fewer layers than its family's parameter asks for
        with contextlib.suppress(UsageError):
            if not parse(name).family.head and parse(name).place(model.layers, model.ladder_layers) == placed:
                variant = name
                break
    loss = times.space.lost(chosen, model.layers)
    return Candidate(variant=variant, layers=layers, request_s=times.of[chosen], loss=loss)
