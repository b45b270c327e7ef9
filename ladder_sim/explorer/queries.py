"""What the page asks of the simulator, for one state; answers are kept for the views that share them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from ladder_sim.analysis.advise import CANDIDATES, Advice, advise
from ladder_sim.analysis.compare import Candidate
from ladder_sim.analysis.sensitivity import STEP, Sensitivity, sensitivity
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.errors import UsageError
from ladder_sim.explorer import quantities
from ladder_sim.explorer.allowlist import Known
from ladder_sim.explorer.state import State
from ladder_sim.prediction import Prediction, predict, resolve_profile
from ladder_sim.specs.scenario import Scenario
from ladder_sim.sweeps.evaluate import How
from ladder_sim.sweeps.executors import serial
from ladder_sim.sweeps.grid import Grid
from ladder_sim.sweeps.run import run
from ladder_sim.sweeps.table import SweepTable
from ladder_sim.validation.compare import Spread, compare, spread, unseen
from ladder_sim.validation.dataset import read_dataset

# answers of each kind
KEPT = 256
# tensor-parallel degrees of a Pareto front: more are no longer told apart
MOST_DEGREES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a query asks of the simulator."""

    state: State
    scenario: Scenario
    profile: CalibrationProfile | None
    """That predictions rest on."""

    @property
    def along(self) -> str:
        """Field of the curve."""
        return self.state.along or f"{quantities.busiest_link(self.scenario)}.latency_s"

    @property
    def across(self) -> str:
        """Field of the map, to the right."""
        return self.state.across or f"{quantities.busiest_link(self.scenario)}.bandwidth_Bps"

    @property
    def up(self) -> str:
        """Field of the map, upwards."""
        return self.state.up or f"{quantities.busiest_link(self.scenario)}.latency_s"

    def current(self, name: str) -> float:
        """A field's value."""
        return quantities.current(self.scenario, name, self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Asked):
    """The same with the predictions."""

    predictions: Mapping[str, Prediction]
    """By variant; standard is the first."""

    @property
    def chosen(self) -> Prediction:
        """The variant that the state is about; the last one if that is not shown."""
        return self.predictions.get(self.state.variant) or list(self.predictions.values())[-1]


class Answers:
    """Answers to queries, for one explorer.

    Parameters
    ----------
    known
        What queries may name.
    """

    def __init__(self, known: Known) -> None:
        self.known = known
        self.asked = _keeping(self._asked)
        self.found = _keeping(self._found)
        self.curve = _keeping(self._curve)
        self.map = _keeping(self._map)
        self.advice = _keeping(self._advice)
        self.sensitivity = _keeping(self._sensitivity)

    def state(self, query: object) -> State:
        """A query, read and checked."""
        return State.parse(query, self.known)

    def _asked(self, query: str) -> Asked:
        state = self.state(query)
        scenario = state.scenario(self.known)
        profile = resolve_profile(scenario, state.how(self.known)["profile"])
        return Asked(state=state, scenario=scenario, profile=profile)

    def _found(self, query: str) -> Found:
        asked = self.asked(query)
        state, scenario = asked.state, asked.scenario
        predictions = predict(scenario, state.names(scenario), **state.how(self.known))
        return Found(state=state, scenario=scenario, profile=asked.profile, predictions=predictions)

    def curve_grid(self, query: str) -> tuple[Grid, How]:
        """The sweep of the curve."""
        found = self.found(query)
        values = quantities.values(found.scenario, found.along, found.profile, quantities.CURVE_VALUES)
        return self._grid(found, tuple(found.predictions), {found.along: values})

    def map_grid(self, query: str) -> tuple[Grid, How]:
        """The sweep of the map.

        Raises
        ------
        UsageError
            Its axes are the same, or one has a single value.
        """
        found = self.found(query)
        across, up = found.across, found.up
        if across == up:
            raise UsageError("both axes of the map are the same", hint="take another field for one")
        axes = {
            name: quantities.values(found.scenario, name, found.profile, quantities.MAP_VALUES) for name in (up, across)
        }
        if min(map(len, axes.values())) < 2:
            raise UsageError("one axis of the map has one value", hint="take another field, or more GPUs")
        return self._grid(found, tuple(dict.fromkeys((found.state.variant, found.state.over))), axes)

    def _grid(self, found: Found, variants: tuple[str, ...], axes: Mapping[str, Any]) -> tuple[Grid, How]:
        grid = Grid({**found.state.point(self.known, *axes), **axes}, variants)
        return grid, How(variants=grid.variants, **found.state.how(self.known))

    def _curve(self, query: str) -> SweepTable:
        return run(*self.curve_grid(query), serial)

    def _map(self, query: str) -> SweepTable:
        grid, how = self.map_grid(query)
        table, found = run(grid, how, serial), self.found(query)
        if table.varied == (found.up, found.across):
            return table
        # a sweep puts hardware figures last, a map its upward axis first
        shape = [len(one.values) for one in grid.varied]
        turned = {name: values.reshape(shape).T.ravel() for name, values in table.columns.items()}
        return replace(table, columns=turned, varied=(found.up, found.across))

    def _advice(self, query: str) -> Advice:
        found = self.found(query)
        point = found.state.point(self.known, "tp", "batch")
        degrees = list(found.scenario.tp_degrees()[-MOST_DEGREES:])
        profile = found.state.how(self.known)["profile"]
        trained = [name for name in found.predictions if name != "upper-bound"]
        return advise({**point, "tp": degrees}, variants=trained or CANDIDATES, profile=profile)

    def _sensitivity(self, query: str) -> list[Sensitivity]:
        found = self.found(query)
        return sensitivity(found.scenario, [found.chosen.variant], profile=found.profile or "none", step=STEP)

    def candidates(self, state: State) -> list[Candidate]:
        """The pinned scenarios and the one at hand, with the variants that all of them show."""
        queries = {**dict(zip("AB", state.pins, strict=False)), "now": state.alone().query()}
        every = {name: self.found(self.state(query).alone().query()) for name, query in queries.items()}
        shared = [name for name in every["now"].predictions if all(name in one.predictions for one in every.values())]
        return [
            Candidate(
                name=name,
                scenario=one.scenario,
                predictions={variant: one.predictions[variant] for variant in shared},
                usd_per_gpu_hour=None,
            )
            for name, one in every.items()
        ]


def _keeping(answer: Callable[[str], Any]) -> Any:
    return lru_cache(maxsize=KEPT)(answer)


@cache
def validation_error(stack: str, *, p2p: bool) -> Spread | None:
    """Error of ladder's speedup against published runs of a stack that no fit has seen; None: there are none."""
    rows = [
        row
        for row in unseen(compare(read_dataset(), "protocol-b"))
        if row.measurement.configuration.stack == stack
        and row.measurement.configuration.p2p == p2p
        and row.measurement.variant == "ladder"
    ]
    return spread(row.speedup for row in rows)
