"""What the page's queries ask of the simulator; results are kept for the views that share them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from math import ceil, log2
from typing import NamedTuple

import numpy as np

from ladder_sim.analysis.versus import Option, Versus, versus
from ladder_sim.confidence import Interval
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.display.labels import field_title
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.state import TABS, State
from ladder_sim.prediction import Prediction, Predictions, own_variant, predict, resolve_profile
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.scenario_warnings import used_settings
from ladder_sim.specs.techniques import NO_TECHNIQUES
from ladder_sim.sweeps.axes import axis, used_value, value_at
from ladder_sim.sweeps.evaluate import SweepOptions
from ladder_sim.sweeps.executors import serial
from ladder_sim.sweeps.grid import Grid
from ladder_sim.sweeps.run import run
from ladder_sim.sweeps.table import SweepTable
from ladder_sim.units import step_for, unit_of
from ladder_sim.wirings.names import NO_COMMUNICATION

# the technique of the first picture, which most engines have and which keeps answers: the others are a click away
TECHNIQUE = "fused-norm"
# a figure goes from the scenario's value divided by this to that multiplied by it
REACH = 16.0
# first and last of whole numbers that double
_DOUBLED = {
    "nodes": (1, 16),
    "batch": (1, 256),
    "concurrency": (1, 512),
    "prompt": (128, 32_768),
    "gen": (16, 4096),
}
# results of each kind that are kept
KEPT = 256
KEEP, RETRAIN, LIMIT = "Keep your weights", "Retrain", "Limit"


class Row(NamedTuple):
    """One option of the first picture."""

    name: str
    group: str
    gain: Interval
    """Speedup over standard without techniques of its own."""
    prediction: Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A query, ready to be simulated."""

    state: State
    scenario: Scenario
    profile: CalibrationProfile | None
    """Profile that predictions are based on; None for the roofline."""
    served_settings: frozenset[str]
    """Settings that requests at the question's rate depend on; the prediction may use fewer."""

    @property
    def link(self) -> str:
        """The tier that the all-reduce waits for: "inter" if it crosses nodes, else "intra"."""
        return "inter" if self.scenario.crosses_nodes else "intra"

    @property
    def along(self) -> tuple[str, ...]:
        """Fields that the gains are drawn along, a chart each."""
        return (self.state.along,) if self.state.along else (f"{self.link}.bandwidth_Bps", self.floor)

    @property
    def floor(self) -> str:
        """The all-reduce floor of the busiest link."""
        return f"{self.link}.allreduce_floor_s"

    @property
    def across(self) -> str:
        """Field of the map, to the right."""
        return self.state.across or self.scenario.workload.load_field

    @property
    def up(self) -> str:
        """Field of the map, upwards."""
        return self.state.up or self.floor

    def current(self, name: str) -> float:
        """Return a field's value in this scenario; raise UsageError if it is not given."""
        value = used_value(self.scenario, name, self.profile)
        if value is None:
            raise UsageError(f"{field_title(name)} is empty here", hint="enter a number first, or choose another field")
        return float(value)

    def scanned(self, name: str, count: int) -> str:
        """Return the values of a field to scan, about `count`, as a sweep's flag takes them.

        Raises UsageError if the field is 0, which has no multiples.
        """
        if name == "tp":
            return ",".join(map(str, self.scenario.tp_degrees()))
        middle = self.current(name)
        if name in _DOUBLED:
            low, high = _DOUBLED[name]
            # beyond the scenario's own value
            return f"{low}:{max(high, 2 ** ceil(log2(middle)))}:x2"
        if middle <= 0.0:
            raise UsageError(f"{field_title(name)} is 0 here", hint="choose another field, or a number above 0")
        if isinstance(value_at(self.scenario, name), int):
            spread = np.geomspace(max(middle / REACH, 1.0), middle * REACH, 9)
            return ",".join(str(int(value)) for value in np.unique(np.round(spread)))
        scale, unit = step_for(middle, unit_of(name))
        low_text, high_text = (f"{middle * end / scale:.4g}" for end in (1.0 / REACH, REACH))
        return f"{low_text}:{high_text}:x{REACH ** (2.0 / (count - 1)):.4g}{unit}"


# no slots: rows have intervals, which take as long as predictions
@dataclass(frozen=True, kw_only=True)
class Answer(Setup):
    """A checked query with its scenario and the predictions for it."""

    predictions: Predictions
    """Predictions by variant, as of `predict`; standard is the first."""
    compared: Versus | None
    """The same wirings with and without `TECHNIQUE`; None: the question has techniques of its own, or one rank."""

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Options of the first picture: what keeps the weights, what needs others, and the limit."""
        own = own_variant(self.scenario.model)

        def group(variant: str) -> str:
            return LIMIT if variant == NO_COMMUNICATION else KEEP if variant in ("standard", own) else RETRAIN

        rows = [Row(name, group(name), each.speedup, each) for name, each in self.predictions.items()]
        rows += [Row(each.name, group(each.prediction.variant), each.gain, each.prediction) for each in self.improved]
        order = (KEEP, RETRAIN, LIMIT)
        return tuple(sorted(rows, key=lambda row: (order.index(row.group), -row.gain.value)))

    @property
    def improved(self) -> Iterator[Option]:
        """The shown wirings with `TECHNIQUE`."""
        options = self.compared.options.values() if self.compared else ()
        return (each for each in options if each.changes and each.prediction.variant in self.predictions)

    @cached_property
    def best(self) -> Prediction | None:
        """The wiring that gains most of those that can be run; None: standard is the only one."""
        rewired = [each for name, each in self.predictions.items() if name not in ("standard", NO_COMMUNICATION)]
        return max(rewired, key=lambda each: each.request_speedup, default=None)

    @property
    def chosen(self) -> Prediction:
        """The variant that maps and sensitivities are about; the last one if it is not shown."""
        return self.predictions.get(self.state.variant) or list(self.predictions.values())[-1]


class Queries:
    """Results of queries, for one explorer; `allowlist` is what they may name."""

    def __init__(self, allowlist: Allowlist) -> None:
        self.allowlist = allowlist
        # of each object, so that one explorer's results are not another's
        for name in ("setup", "answer", "predictions"):
            setattr(self, name, lru_cache(maxsize=KEPT)(getattr(self, name)))

    def state(self, query: object) -> State:
        """Return the state of a query, read and checked."""
        self.allowlist.check_unchanged()
        return State.parse(query, self.allowlist)

    def question(self, query: object) -> str:
        """Return what of a query predictions depend on, written in one way."""
        return replace(self.state(query), view=TABS[0]).query(pins=False)

    def setup(self, query: str) -> Setup:
        """Return the scenario of a query, and the profile for it."""
        state = self.state(query)
        scenario = state.scenario(self.allowlist)
        profile = resolve_profile(scenario, state.how(self.allowlist)["profile"])
        return Setup(state=state, scenario=scenario, profile=profile, served_settings=self._served(state))

    def _served(self, state: State) -> frozenset[str]:
        if state.rate is None:
            return frozenset()
        try:
            return used_settings(state.under_load().scenario(self.allowlist))
        except LadderSimError:
            # the view of requests under load says why it has no answer
            return frozenset()

    def answer(self, query: str) -> Answer:
        """Return the predictions of a query."""
        setup = self.setup(query)
        state, scenario = setup.state, setup.scenario
        names, how = state.names(scenario), state.how(self.allowlist)
        compared = None
        if scenario.techniques == NO_TECHNIQUES and scenario.plan.ranks > 1:
            rewired = [name for name in names if name not in ("standard", NO_COMMUNICATION)]
            compared = versus(scenario, rewired or ["standard"], TECHNIQUE, **how)
            predictions = Predictions({name: compared.plain[name] for name in names})
        else:
            predictions = predict(scenario, names, **how)
        given = {each.name: getattr(setup, each.name) for each in fields(setup)}
        return Answer(**given, predictions=predictions, compared=compared)

    def predictions(self, query: str) -> Predictions:
        """Return exactly what `predict` returns for a query."""
        setup = self.setup(query)
        return predict(setup.scenario, setup.state.names(setup.scenario), **setup.state.how(self.allowlist))

    def sweep(self, setup: Setup, variants: tuple[str, ...], axes: Mapping[str, str]) -> SweepTable:
        """Return a sweep of a scenario, with intervals along one field; the first of two fields varies slowest."""
        along = {name: axis(name, text) for name, text in axes.items()}
        values = {name: each.values for name, each in along.items()}
        grid = Grid({**setup.state.point(self.allowlist, *axes), **values}, variants)
        how = setup.state.how(self.allowlist, elsewhere=True)
        table = run(grid, SweepOptions(variants=grid.variants, intervals=len(axes) == 1, **how), serial)
        table = replace(table, units={name: along[name].unit for name in table.varied})
        varied = tuple(axes)
        if set(varied) != set(table.varied) or table.varied == varied:
            return table
        # a sweep puts hardware figures last
        shape = [len(axis.values) for axis in grid.varied]
        columns = {name: values.reshape(shape).T.ravel() for name, values in table.columns.items()}
        return replace(table, columns=columns, varied=varied)
