"""The measured runs that are the most like a scenario, with their predictions: how well setups like it are predicted.

Runs are those that come with the package: times per token with requests in flight, of models with experts for such a
model and of dense ones for a dense one, and of static batches ladder's speedup. Those of the scenario's engine and kind
of model come first: of the others, errors say nothing about the scenario. Then those that differ in the fewest parts,
then by size.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from ladder_sim.costs.profile import run_sizes
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.workload import FORMATS
from ladder_sim.validation.compare import Quantity, validate
from ladder_sim.validation.dataset import DEFAULT_DATASET, read_table
from ladder_sim.validation.serving import compare_servings
from ladder_sim.validation.serving_table import read_servings

Figure = Literal["tpot", "speedup"]
# of the package
DENSE, EXPERTS, BATCHES = "serving-dense", "serving-moe", DEFAULT_DATASET


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredRun:
    """A run and its prediction."""

    scenario: Scenario = field(repr=False)
    """What was run."""
    figure: Figure
    """What was measured of it."""
    quantity: Quantity
    """Seconds of "tpot", a ratio of "speedup"."""
    seen: bool
    """Whether a fit behind the prediction has used it."""
    parts: Mapping[str, object] = field(repr=False)
    """As `parts_of` says."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Likeness:
    """How like a scenario a measured run is."""

    run: MeasuredRun
    apart: tuple[str, ...]
    """Parts in which they differ."""
    distance: float = field(repr=False)
    """Distance of the run's sizes from the scenario's: octaves, added up."""

    @property
    def same_kind(self) -> bool:
        """Whether engine and kind of model are the scenario's."""
        return not {"engine", "kind of model"} & set(self.apart)


def parts_of(scenario: Scenario) -> dict[str, object]:
    """Return the parts, other than sizes, that a run may share with a scenario."""
    return {
        "engine": scenario.stack.unversioned,
        "GPU": scenario.cluster.gpu.name,
        "kind of model": scenario.model.kind_label,
        "model family": scenario.model.family,
        "layers": scenario.model.experts_label,
        "precision": FORMATS[scenario.workload.dtype],
        "plan": scenario.plan.kind,
        "links": (scenario.cluster.intra.fabric, scenario.p2p, scenario.group_nodes),
        "technique": scenario.techniques.name,
    }


def table_of(scenario: Scenario) -> str:
    """Return the name of the table of measured runs that are compared with a scenario."""
    if scenario.workload.concurrency is None:
        return BATCHES
    return EXPERTS if scenario.model.experts_label else DENSE


def nearest(scenario: Scenario) -> tuple[Likeness, ...]:
    """Return every measured run of the scenario's table, the most like it first.

    Examples
    --------
    >>> served = Scenario(model="qwen3-32b", stack="vllm", tp=4, concurrency=64)
    >>> closest = nearest(served)[0]
    >>> closest.apart, closest.run.scenario.model.name
    ((), 'qwen3-32b')
    """
    parts, sizes = parts_of(scenario), run_sizes(scenario)

    def likeness(run: MeasuredRun) -> Likeness:
        others = run_sizes(run.scenario)
        return Likeness(
            run=run,
            apart=tuple(part for part, own in parts.items() if run.parts[part] != own),
            distance=sum(abs(math.log2(size / others[name])) for name, size in sizes.items()),
        )

    table = table_of(scenario)
    runs = _batches() if table == BATCHES else _servings(table)
    return tuple(sorted(map(likeness, runs), key=lambda each: (not each.same_kind, len(each.apart), each.distance)))


@cache
def _servings(table: str) -> tuple[MeasuredRun, ...]:
    compared = compare_servings(read_servings(*read_table(table)))
    return tuple(_run(each.serving.scenario(), "tpot", each.tpot, table == DENSE) for each in compared if each.tpot)


@cache
def _batches() -> tuple[MeasuredRun, ...]:
    return tuple(
        _run(row.measurement.configuration.scenario(), "speedup", row.speedup, row.seen)
        for row in validate(BATCHES, "protocol-b")["protocol-b"]
        if row.speedup and row.measurement.variant == "ladder"
    )


def _run(scenario: Scenario, figure: Figure, quantity: Quantity, seen: bool) -> MeasuredRun:
    return MeasuredRun(scenario=scenario, figure=figure, quantity=quantity, seen=seen, parts=parts_of(scenario))
