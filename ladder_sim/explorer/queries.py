"""What the page's queries ask of the simulator; results are kept for the views that share them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import numpy as np

from ladder_sim.analysis.advice import Advice
from ladder_sim.analysis.advise import BATCHES, CANDIDATES, advise
from ladder_sim.analysis.compare import Candidate, Comparison
from ladder_sim.analysis.sensitivity import Sensitivities, sensitivity
from ladder_sim.costs.profile import NO_PROFILE, CalibrationProfile
from ladder_sim.display.document import Notes
from ladder_sim.display.labels import field_title
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.explorer import background
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.background import VIEWS, Panel
from ladder_sim.explorer.serving import ServingResult, ServingView
from ladder_sim.explorer.state import State
from ladder_sim.explorer.worker import Worker
from ladder_sim.prediction import Prediction, Predictions, predict, resolve_profile
from ladder_sim.specs.arguments import keywords_of
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.scenario_warnings import used_settings
from ladder_sim.sweeps.axes import used_value, value_at
from ladder_sim.sweeps.evaluate import How
from ladder_sim.sweeps.executors import serial
from ladder_sim.sweeps.grid import Grid
from ladder_sim.sweeps.run import run
from ladder_sim.sweeps.table import SweepTable
from ladder_sim.validation.compare import Comparison as ComparedRun
from ladder_sim.validation.compare import ErrorStats, error_stats, unseen, validate

# a figure goes from the scenario's value divided by this to that multiplied by it
REACH = 16.0
CURVE_VALUES, MAP_VALUES = 41, 40
# first and last of whole numbers that double
_DOUBLED = {
    "nodes": (1, 16),
    "batch": (1, 256),
    "concurrency": (1, 512),
    "prompt": (128, 32_768),
    "gen": (16, 4096),
}


def busiest_link(scenario: Scenario) -> str:
    """Return the tier that the all-reduce waits for: "inter" if there are several nodes, else "intra"."""
    return "inter" if scenario.crosses_nodes else "intra"


def value_of(scenario: Scenario, name: str, profile: CalibrationProfile | None) -> float:
    """Return a field's value; raise UsageError if it is not given."""
    value = used_value(scenario, name, profile)
    if value is None:
        raise UsageError(f"{field_title(name)} is empty here", hint="enter a number first, or choose another field")
    return float(value)


def scanned(scenario: Scenario, name: str, profile: CalibrationProfile | None, count: int) -> list[float] | list[int]:
    """Return the values of a field to scan, ascending; raise UsageError if the field is 0: 0 has no multiples."""
    if name == "tp":
        return list(scenario.tp_degrees())
    if name in _DOUBLED:
        low, high = _DOUBLED[name]
        here = int(value_of(scenario, name, profile))
        doubled = [low]
        # beyond the scenario's own value
        while doubled[-1] < max(high, here):
            doubled.append(doubled[-1] * 2)
        return doubled
    middle = value_of(scenario, name, profile)
    if middle <= 0.0:
        raise UsageError(f"{field_title(name)} is 0 here", hint="choose another field, or set it to a number above 0")
    if isinstance(value_at(scenario, name), int):
        spread = np.geomspace(max(middle / REACH, 1.0), middle * REACH, 9)
        return [int(value) for value in np.unique(np.round(spread))]
    reals: list[float] = np.geomspace(middle / REACH, middle * REACH, count).tolist()
    return reals


# results of each kind that are kept
KEPT = 256
# tensor-parallel degrees of a Pareto front: more cannot be told apart
MAX_DEGREES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A query, ready to be simulated."""

    state: State
    scenario: Scenario
    profile: CalibrationProfile | None
    """Profile that predictions are based on; None for the roofline."""
    used: frozenset[str]
    """Settings that requests under load depend on."""

    @property
    def along(self) -> str:
        """Field of the curve."""
        return self.state.along or f"{busiest_link(self.scenario)}.allreduce_floor_s"

    @property
    def across(self) -> str:
        """Field of the map, to the right."""
        return self.state.across or self.scenario.workload.load_field

    @property
    def up(self) -> str:
        """Field of the map, upwards."""
        return self.state.up or f"{busiest_link(self.scenario)}.allreduce_floor_s"

    def current(self, name: str) -> float:
        """Return a field's value in this scenario; raise UsageError if it is not given."""
        return value_of(self.scenario, name, self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Setup):
    """A checked query with its scenario and the predictions for it."""

    predictions: Predictions
    """Predictions by variant; standard is the first."""

    @property
    def chosen(self) -> Prediction:
        """The variant that the state is about; the last one if that is not shown."""
        return self.predictions.get(self.state.variant) or list(self.predictions.values())[-1]

    @property
    def notes(self) -> Notes:
        """What the reader should know about the predictions, on a page that also has requests under load."""
        return Notes(confidences={"": self.predictions.confidence}, used=self.used)


class Queries:
    """Results of queries, for one explorer; `allowlist` is what they may name."""

    def __init__(self, allowlist: Allowlist) -> None:
        self.allowlist = allowlist
        self.worker: Worker[ServingResult] = Worker(ServingView(allowlist))

        # another process: its answers take seconds, those under load half a minute
        self.background: Worker[Panel] = Worker(partial(background.answer, allowlist))

        # of each object, so that one explorer's results are not another's
        for name in ("setup", "answer", "curve", "map", "advice", "sensitivity"):
            setattr(self, name, lru_cache(maxsize=KEPT)(getattr(self, name)))

    def state(self, query: object) -> State:
        """Return the state of a query, read and checked."""
        self.allowlist.check_unchanged()
        return State.parse(query, self.allowlist)

    def setup(self, query: str) -> Setup:
        """Return the scenario of a query, and the profile for it."""
        state = self.state(query)
        scenario = state.scenario(self.allowlist)
        profile = resolve_profile(scenario, state.how(self.allowlist)["profile"])
        return Setup(state=state, scenario=scenario, profile=profile, used=self._used(state))

    def answer(self, query: str) -> Answer:
        """Return the predictions of a query."""
        setup = self.setup(query)
        state, scenario = setup.state, setup.scenario
        predictions = predict(scenario, state.names(scenario), **state.how(self.allowlist))
        return Answer(state=state, scenario=scenario, profile=setup.profile, used=setup.used, predictions=predictions)

    def curve(self, query: str) -> SweepTable:
        """Return the sweep of every variant along one field."""
        return self._run(query, *self.curve_grid(query))

    def map(self, query: str) -> SweepTable:
        """Return the sweep of two variants over two fields; the upward one varies slowest."""
        grid, how = self.map_grid(query)
        table, answer = self._run(query, grid, how), self.answer(query)
        varied = answer.up, answer.across
        if table.varied == varied:
            return table
        # a sweep puts hardware figures last, a map its upward axis first
        shape = [len(axis.values) for axis in grid.varied]
        columns = {name: values.reshape(shape).T.ravel() for name, values in table.columns.items()}
        return replace(table, columns=columns, varied=varied)

    def advice(self, query: str) -> Advice:
        """Return the advice on every plan that fits and every batch or number of requests, with the Pareto front."""
        answer = self.answer(query)
        load = answer.scenario.workload.load_field
        point = answer.state.point(self.allowlist, "tp", "batch", "concurrency")
        degrees = list(answer.scenario.tp_degrees()[-MAX_DEGREES:])
        profile = answer.state.how(self.allowlist)["profile"]
        trained = [name for name in answer.predictions if name != "upper-bound"]
        return advise(
            variants=trained or CANDIDATES,
            max_ttft_s=answer.state.max_ttft_s,
            max_tpot_s=answer.state.max_tpot_s,
            usd_per_gpu_hour=answer.state.price,
            profile=profile,
            **keywords_of({**point, "tp": degrees, load: BATCHES}),
        )

    def sensitivity(self, query: str) -> Sensitivities:
        """Return the effect of each figure on the request time of the query's chosen variant."""
        answer = self.answer(query)
        chosen, profile = [answer.chosen.variant], answer.profile or NO_PROFILE
        return sensitivity(answer.scenario, chosen, profile=profile, ignore_memory=True)

    def load_query(self, query: str) -> str:
        """Return the query that requests under load depend on; raise UsageError if there is no rate."""
        state = self.state(query)
        if state.rate is None:
            raise UsageError("no requests arrive", hint="set 'Requests per second'")
        return state.under_load().query()

    def serving(self, query: str) -> ServingResult:
        """Return what requests under load need; computing it takes seconds."""
        return self.worker.answer(self.load_query(query))

    def panel(self, name: str, query: str, page: str | None = None) -> Panel:
        """Return the answer of one of `VIEWS`; raise StaleError if the page has asked for another scenario since."""
        question = VIEWS[name].question(self.state(query)).query()
        # a page waits for one answer of each view
        return self.background.answer((name, question), None if page is None else (page, name))

    def curve_grid(self, query: str) -> tuple[Grid, How]:
        """Return the grid of the curve, and what all its points share."""
        answer = self.answer(query)
        values = scanned(answer.scenario, answer.along, answer.profile, CURVE_VALUES)
        return self._grid(answer, tuple(answer.predictions), {answer.along: values})

    def map_grid(self, query: str) -> tuple[Grid, How]:
        """Return the sweep of the map; raise UsageError if both axes are equal, or one has a single value."""
        answer = self.answer(query)
        across = answer.across
        if across == answer.up:
            raise UsageError("both axes of the map are the same", hint="choose another field for one of them")
        axes = {name: scanned(answer.scenario, name, answer.profile, MAP_VALUES) for name in (answer.up, across)}
        if min(map(len, axes.values())) < 2:
            raise UsageError("one axis of the map has one value", hint="choose another field, or more GPUs")
        return self._grid(answer, tuple(dict.fromkeys((answer.state.variant, answer.state.over))), axes)

    def _used(self, state: State) -> frozenset[str]:
        if state.rate is None:
            return frozenset()
        try:
            return used_settings(state.under_load().scenario(self.allowlist))
        except LadderSimError:
            # the view of requests under load says why it has no answer
            return frozenset()

    def _grid(
        self, answer: Answer, variants: tuple[str, ...], axes: Mapping[str, list[float] | list[int]]
    ) -> tuple[Grid, How]:
        grid = Grid({**answer.state.point(self.allowlist, *axes), **axes}, variants)
        return grid, How(variants=grid.variants, **answer.state.how(self.allowlist))

    def _run(self, query: str, grid: Grid, how: How) -> SweepTable:
        table, typed = run(grid, how, serial), self.answer(query).scenario.settings
        return replace(table, units={name: typed.get(name, "") for name in table.varied})

    def candidates(self, state: State) -> Comparison:
        """Return the pinned scenarios and the current one, with the variants that all of them show."""
        queries = {**dict(zip("AB", state.pins, strict=False)), "now": state.query(pins=False)}
        answers = {name: self.answer(self.state(query).query(pins=False)) for name, query in queries.items()}
        shared = [
            name
            for name in answers["now"].predictions
            if all(name in answer.predictions for answer in answers.values())
        ]
        return Comparison(
            tuple(
                Candidate(
                    name=name,
                    scenario=answer.scenario,
                    predictions=Predictions({variant: answer.predictions[variant] for variant in shared}),
                    usd_per_gpu_hour=answer.state.price or state.price,
                )
                for name, answer in answers.items()
            )
        )

    def published_error(self, scenario: Scenario) -> ErrorStats | None:
        """Return the error of ladder's speedup over published runs of the stack that no fit has seen; None without."""
        return error_stats(
            run.speedup
            for run in self._published_runs
            if run.measurement.configuration.stack == scenario.stack.name
            and run.measurement.configuration.p2p == scenario.p2p
        )

    @cached_property
    def _published_runs(self) -> list[ComparedRun]:
        runs = unseen(validate(level="protocol-b")["protocol-b"])
        return [run for run in runs if run.measurement.variant == "ladder"]
