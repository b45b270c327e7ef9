"""The points of a sweep, in order, cut into chunks that can be predicted one by one."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_sim.closed_loop.step import SIZES
from ladder_sim.errors import LadderSimError, UsageError, reason
from ladder_sim.prediction import default_variants
from ladder_sim.specs import catalog
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.plan import Plan, check_context
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.scenario_warnings import unused
from ladder_sim.specs.settings import EngineOption
from ladder_sim.sweeps.axes import Axis, axis, expand, figure_of
from ladder_sim.units import short_name
from ladder_sim.values import whole
from ladder_sim.wirings.names import DEFAULT_VARIANTS, canonical_names, is_variant

# of a sweep without --yes
MAX_POINTS = 50_000_000
# points of a chunk at most: amortises numpy's per-call overhead; larger chunks are no faster
CHUNK_POINTS = 32768
# blocks of a chunk at most, so that progress shows where every point needs its own graph
CHUNK_BLOCKS = 32
# structures in which a setting is looked for at most
_TRIED = 1000

# values of what varies, by axis
Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SweepBlock:
    """Points that differ in sizes and hardware figures only: one graph, priced many times."""

    point: Mapping[str, Any]
    """Their common values by axis."""
    scenario: Scenario | None
    """Scenario of one of the points; None if the points cannot run."""
    problem: str
    """Why they cannot run."""
    columns: Columns
    """What varies, by axis: sizes first."""
    count: int


Chunk = tuple[SweepBlock, ...]


class Grid:
    """Every combination of the axes' values, by field (`axes.axis`), for some variants (`variant_names`).

    What changes the graph comes first: arguments of the scenario in the order of `ARGUMENTS`, then settings as given.
    Batch, prompt and answer follow, and hardware figures as given; the last axis varies fastest. Raises UsageError if a
    field, a value or a variant is wrong.
    """

    def __init__(self, axes: Mapping[str, Any], variants: str | Sequence[str] | None = None) -> None:
        order = list(ARGUMENTS)
        every = [axis(key, given) for key, given in axes.items()]
        every.sort(key=lambda each: order.index(each.name) if each.name in ARGUMENTS else len(order))
        names = [each.name for each in every]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"'{name}' is given twice", hint="give each field one range")
        sizes = [name for name in SIZES if f"workload.{name}" not in names]
        # axes over batch, prompt and answer, unless a setting of the same name overrides them
        self.sizes = [each for each in every if each.name in sizes and len(each.values) > 1]
        # axes over hardware figures
        self.figures = [each for each in every if figure_of(each.name) and len(each.values) > 1]
        # axes that may change the graph, and all of one value
        self.structure = [each for each in every if each not in (*self.sizes, *self.figures)]
        self._columns = [*self.sizes, *self.figures]
        # all axes, the slowest first
        self.axes = [*self.structure, *self._columns]
        # points, in all and of a block that is not cut
        self.size = math.prod(len(each.values) for each in self.axes)
        self._width = math.prod(len(each.values) for each in self._columns)
        self._blocks = self.size // self._width
        # pieces that a block is cut into, blocks of a chunk, and chunks
        self._cuts = -(-self._width // CHUNK_POINTS)
        self._per_chunk = max(1, min(CHUNK_BLOCKS, CHUNK_POINTS // self._width))
        self.chunks = -(-self._blocks // self._per_chunk) * self._cuts
        # of the columns, as arrays
        self._values: dict[str, Any] = {each.name: np.asarray(each.values, np.float64) for each in self.figures}
        for each in self.sizes:
            whole(max(each.values), each.name, 1, np.iinfo(np.int64).max)
        self._values |= {each.name: np.asarray(each.values, np.int64) for each in self.sizes}
        self.variants = self._default_variants() if variants is None else variant_names(variants)
        # the ends of each array by the specs' rules, all of which are ranges
        for each, end in itertools.product(self.figures, (min, max)):
            Scenario(overrides={each.name: end(each.values)})
        self._check_options(axes)

    @property
    def varied(self) -> list[Axis]:
        return [each for each in self.axes if len(each.values) > 1]

    def chunk(self, number: int) -> Chunk:
        blocks, rows = self._ranges(number)
        columns = self._at(self._columns, np.arange(rows.start, rows.stop))
        return tuple(
            block for index in blocks for block in _blocks(self._at(self.structure, index), columns, len(rows))
        )

    def points(self, number: int) -> int:
        blocks, rows = self._ranges(number)
        return len(blocks) * len(rows)

    def _ranges(self, number: int) -> tuple[range, range]:
        group, cut = divmod(number, self._cuts)
        start = group * self._per_chunk
        return (
            range(start, min(start + self._per_chunk, self._blocks)),
            range(cut * self._width // self._cuts, (cut + 1) * self._width // self._cuts),
        )

    def _at(self, axes: Sequence[Axis], index: Any) -> dict[str, Any]:
        values = {}
        for each in reversed(axes):
            index, position = divmod(index, len(each.values))
            values[each.name] = self._values.get(each.name, each.values)[position]
        return {each.name: values[each.name] for each in axes}

    def _default_variants(self) -> tuple[str, ...]:
        """Return the usual four variants, or the wiring in the config of the only model."""
        models = next((each.values for each in self.structure if each.name == "model"), ())
        return default_variants(Scenario(model=models[0], tp=1)) if len(models) == 1 else DEFAULT_VARIANTS

    def _check_options(self, axes: Mapping[str, Any]) -> None:
        """Check that the stacks, by default the one that serves, have the engine of each option among the axes."""
        stacks = next((each.values for each in self.structure if each.name == "stack"), ("vllm",))
        for option in filter(None, map(EngineOption.find, axes)):
            for stack in stacks:
                option.check_stack(catalog.stack(stack) if isinstance(stack, str) else stack)


def variant_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return the variants by name, their last parameters maybe as ranges; a variant's name is no range.

    Examples
    --------
    >>> variant_names(["standard", "hybrid-ladder:8:32:x2"])
    ('standard', 'hybrid-ladder:8', 'hybrid-ladder:16', 'hybrid-ladder:32')
    >>> variant_names(["hybrid-delayed:2:8", "hybrid-delayed:2:8:16"])
    ('hybrid-delayed:2:8', 'hybrid-delayed:2:16')
    """
    names = []
    for text in [given] if isinstance(given, str) else given:
        steps = re.search(r"(:\d+){2}(:[x+]\d+)?\s*$", text)
        if steps and not is_variant(text):
            head = text[: steps.start()]
            names += [f"{head}:{value}" for value in expand(steps[0][1:], name=head, factor=2)]
        else:
            names.append(text)
    return canonical_names(names)


def _blocks(point: Mapping[str, Any], columns: Columns, count: int) -> Iterator[SweepBlock]:
    """Yield the points of some columns, as one block if all of them can run, or none."""
    sizes = {name: values for name, values in columns.items() if name in SIZES}
    scenarios, problems = [], []
    # rules for sizes are ranges: what holds for the smallest and the largest of each holds for all between
    for end in (np.min, np.max):
        try:
            scenarios.append(scenario_at({**point, **{name: int(end(values)) for name, values in sizes.items()}}))
        except Exception as error:
            problems.append(reason(error))
    if sizes and count > 1 and problems and len(set(problems)) + len(scenarios) > 1:
        # figures vary faster than sizes: points of the same sizes follow each other
        changes = np.flatnonzero(np.any([values[1:] != values[:-1] for values in sizes.values()], axis=0)) + 1
        for start, stop in itertools.pairwise((0, *changes.tolist(), count)):
            yield from _blocks(point, {name: values[start:stop] for name, values in columns.items()}, stop - start)
        return
    scenario, problem = (None, problems[0]) if problems else (scenarios[0], "")
    yield SweepBlock(point=point, scenario=scenario, problem=problem, columns=columns, count=count)


def scenario_at(point: Mapping[str, Any]) -> Scenario:
    """Return the scenario of a point; with "tp" and without "nodes" its plan gets the nodes that it needs."""
    fields = {name: value for name, value in point.items() if name in ARGUMENTS}
    settings = {name: value for name, value in point.items() if name not in ARGUMENTS}
    if "tp" in fields and "nodes" not in fields:
        degrees = {each.name: fields[each.name] for each in dataclasses.fields(Plan) if each.name in fields}
        # any plan will do to look up the cluster: that of one GPU breaks no rule
        alone = Scenario(**{**fields, **dataclasses.asdict(Plan())}, overrides=settings)
        fields["nodes"] = Plan(**degrees).nodes(alone.cluster.gpus_per_node)
    scenario = Scenario(**fields, overrides=settings)
    if scenario.workload.concurrency is not None:
        check_context(scenario.stack, scenario.workload.context)
    return scenario


def check_size(grid: Grid, *, confirmed: bool) -> None:
    """Refuse a grid of more than `MAX_POINTS` points, unless it is confirmed."""
    if grid.size > MAX_POINTS and not confirmed:
        factors = " x ".join(str(len(each.values)) for each in grid.varied)
        raise UsageError(
            f"{grid.size:,} points ({factors}) is more than {MAX_POINTS:,}",
            hint="pass --yes to run them, or take larger steps",
        )


def check_used(grid: Grid) -> None:
    """Refuse a range of a setting that no point of the grid uses; the error says what would use it."""
    for each in grid.varied:
        reason = _unused(grid, each.name) if each.name not in ARGUMENTS else ""
        if reason:
            raise UsageError(f"{short_name(each.name)} changes nothing: {reason}", hint="vary a figure that is used")


def _unused(grid: Grid, name: str) -> str:
    """Return why no point uses a setting; empty if one does, or if there are too many to look at."""
    reason = ""
    values = {each.name: each.values for each in grid.structure} | {each.name: each.values[:1] for each in grid.sizes}
    points = itertools.product(*values.values())
    for point in itertools.islice(points, _TRIED):
        try:
            scenario = scenario_at(dict(zip(values, point, strict=True)))
        except LadderSimError:
            # a point that cannot run says so itself
            continue
        reason = unused(scenario, name)
        if not reason:
            return ""
    return "" if next(points, None) else reason
