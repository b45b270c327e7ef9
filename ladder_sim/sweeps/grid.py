"""The points of a sweep, in order, cut into chunks that can be answered one by one."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.graph.variants import DEFAULT_VARIANTS, canonical
from ladder_sim.prediction import default_variants
from ladder_sim.simulate.request import SIZES
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.scenario import Scenario
from ladder_sim.sweeps.axes import Axis, axis
from ladder_sim.sweeps.ranges import expand

# of a sweep that nobody confirmed
MOST_POINTS = 50_000_000
# most points of a chunk: an array operation has a price of its own, which they share; more gain nothing
CHUNK_POINTS = 32768
# most blocks of a chunk, so that progress shows where every point needs its own graph
CHUNK_BLOCKS = 32

# values of what varies, by axis
Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """Points that differ in sizes and hardware figures only: one graph, priced many times."""

    point: Mapping[str, Any]
    """Their common values by axis."""
    scenario: Scenario | None
    """Of one of them; None: there can be none."""
    problem: str
    """Why not."""
    columns: Columns
    """What varies, by axis: sizes first."""
    count: int
    """Points."""


Chunk = tuple[Block, ...]


class Grid:
    """Every combination of the axes' values.

    What changes the graph comes first: arguments of the scenario in the order of `ARGUMENTS`, then settings as given.
    Batch, prompt and answer follow, and hardware figures as given; the last axis varies fastest.

    Parameters
    ----------
    axes
        Values by field, see `axes.axis`.
    variants
        Residual wirings; ``"hybrid-ladder:8:32:x2"`` stands for several.

    Raises
    ------
    UsageError
        A field, a value or a variant is wrong.
    """

    def __init__(self, axes: Mapping[str, Any], variants: Sequence[str] | None = None) -> None:
        found = [axis(key, given) for key, given in axes.items()]
        names = [one.name for one in found]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"'{name}' is given twice", hint="give each field one range")
        order = list(ARGUMENTS)
        found.sort(key=lambda one: order.index(one.name) if one.name in ARGUMENTS else len(order))
        sizes = [name for name in SIZES if f"workload.{name}" not in names]
        # axes over batch, prompt and answer, unless a setting of the same name has the last word
        self.sizes = [one for one in found if one.name in sizes and len(one.values) > 1]
        # axes over hardware figures
        self.figures = [one for one in found if one.figure and len(one.values) > 1]
        # axes that may change the graph, and all of one value
        self.structure = [one for one in found if one not in (*self.sizes, *self.figures)]
        self._values = {one.name: np.asarray(one.values, np.float64) for one in self.figures}
        self._values |= {one.name: np.asarray(one.values, np.int64) for one in self.sizes}
        self.variants = variant_names(variants) if variants else self._default_variants()
        self._check_figures()

    @property
    def axes(self) -> list[Axis]:
        """All of them, the slowest first."""
        return [*self.structure, *self._columns]

    @property
    def _columns(self) -> list[Axis]:
        return [*self.sizes, *self.figures]

    @property
    def varied(self) -> list[Axis]:
        """Those with several values."""
        return [one for one in self.axes if len(one.values) > 1]

    @property
    def size(self) -> int:
        """Points."""
        return math.prod(len(one.values) for one in self.axes)

    @cached_property
    def _width(self) -> int:
        """Points of a block that is not cut."""
        return math.prod(len(one.values) for one in self._columns)

    @property
    def chunks(self) -> int:
        """How many there are."""
        return -(-self._blocks // self._per_chunk) * self._cuts

    @property
    def _blocks(self) -> int:
        return self.size // self._width

    @property
    def _cuts(self) -> int:
        """Pieces that a block is cut into."""
        return -(-self._width // CHUNK_POINTS)

    @property
    def _per_chunk(self) -> int:
        """Blocks of a chunk."""
        return max(1, min(CHUNK_BLOCKS, CHUNK_POINTS // self._width))

    def chunk(self, number: int) -> Chunk:
        """The points of one chunk."""
        group, cut = divmod(number, self._cuts)
        first = cut * self._width // self._cuts
        last = (cut + 1) * self._width // self._cuts
        columns = self._column_values(np.arange(first, last))
        start = group * self._per_chunk
        return tuple(
            block
            for index in range(start, min(start + self._per_chunk, self._blocks))
            for block in _blocks(self._structure_values(index), columns, last - first)
        )

    def points(self, number: int) -> int:
        """How many a chunk holds."""
        group, cut = divmod(number, self._cuts)
        width = (cut + 1) * self._width // self._cuts - cut * self._width // self._cuts
        return width * min(self._per_chunk, self._blocks - group * self._per_chunk)

    def _structure_values(self, index: int) -> dict[str, Any]:
        values = {}
        for one in reversed(self.structure):
            index, position = divmod(index, len(one.values))
            values[one.name] = one.values[position]
        return {one.name: values[one.name] for one in self.structure}

    def _column_values(self, index: NDArray[np.int_]) -> Columns:
        values = {}
        for one in reversed(self._columns):
            index, position = np.divmod(index, len(one.values))
            values[one.name] = self._values[one.name][position]
        return {one.name: values[one.name] for one in self._columns}

    def _default_variants(self) -> tuple[str, ...]:
        """The usual four, or what the only model's own config is wired as."""
        models = next((one.values for one in self.structure if one.name == "model"), ())
        return default_variants(Scenario.of(model=models[0], tp=1)) if len(models) == 1 else DEFAULT_VARIANTS

    def _check_figures(self) -> None:
        """Arrays do not pass through the specs, so their ends do here: every rule is a range."""
        for one, end in itertools.product(self.figures, (min, max)):
            Scenario.of(overrides={one.name: end(one.values)})


def variant_names(given: Sequence[str]) -> tuple[str, ...]:
    """Variants by name, their parameters maybe as ranges.

    Examples
    --------
    >>> variant_names(["standard", "hybrid-ladder:8:32:x2"])
    ('standard', 'hybrid-ladder:8', 'hybrid-ladder:16', 'hybrid-ladder:32')
    """
    names = []
    for text in given:
        family, _, parameter = text.partition(":")
        names += [f"{family}:{one}" for one in expand(parameter, name=family, factor=2)] if ":" in parameter else [text]
    return tuple(dict.fromkeys(canonical(name) for name in names))


def _blocks(point: Mapping[str, Any], columns: Columns, count: int) -> Iterator[Block]:
    """The points of some columns, as one block where all of them can be, or none."""
    sizes = {name: values for name, values in columns.items() if name in SIZES}
    scenarios, problems = [], []
    # rules for sizes are ranges: what holds for the smallest and the largest of each holds for all between
    for end in (np.min, np.max):
        try:
            scenarios.append(scenario_at({**point, **{name: int(end(values)) for name, values in sizes.items()}}))
        except LadderSimError as error:
            problems.append(error.message)
    if sizes and count > 1 and problems and len(set(problems)) + len(scenarios) > 1:
        for row in range(count):
            yield from _blocks(point, {name: values[row : row + 1] for name, values in columns.items()}, 1)
        return
    scenario, problem = (None, problems[0]) if problems else (scenarios[0], "")
    yield Block(point=point, scenario=scenario, problem=problem, columns=columns, count=count)


def scenario_at(point: Mapping[str, Any]) -> Scenario:
    """The scenario of a point; it gets the nodes that its tensor-parallel group needs if none are named."""
    fields = {name: value for name, value in point.items() if name in ARGUMENTS}
    settings = {name: value for name, value in point.items() if name not in ARGUMENTS}
    if "tp" in fields and "nodes" not in fields:
        alone = Scenario.of(**{**fields, "tp": 1}, overrides=settings)
        fields["nodes"] = -(-fields["tp"] // alone.cluster.gpus_per_node)
    return Scenario.of(**fields, overrides=settings)


def check_size(grid: Grid, *, confirmed: bool) -> None:
    """Refuse a grid that was hardly meant.

    Raises
    ------
    UsageError
        It has more than `MOST_POINTS` points.
    """
    if grid.size > MOST_POINTS and not confirmed:
        factors = " x ".join(str(len(one.values)) for one in grid.varied)
        raise UsageError(f"{grid.size:,} points ({factors}) are many", hint="--yes runs them, or take larger steps")
