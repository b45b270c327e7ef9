"""One cross-check from start to end: who runs, what is compared, and the JSON that says so."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibration.crosscheck.compare import Bounds, compare
from calibration.crosscheck.measure import Plan, measure
from calibration.crosscheck.predict import Calibration
from calibration.crosscheck.store import reuse, to_json
from ladder_sim.errors import UsageError
from ladder_sim.graph.variants import canonical
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from runtime.comm.base import Alone, Communicator
from runtime.comm.rendezvous import CommConfig, connect
from runtime.environment import environment

SCHEMA_VERSION = 2
# by backend: of an emulated link everything is known
BOUNDS = {"emulate": Bounds(latency=0.10, speedup=0.05), "gloo": Bounds(latency=0.15, speedup=0.08)}


def own_scenario(
    model: str, stack: str, *, tp: int, batch: int, prompt: int, gen: int, overrides: Mapping[str, str]
) -> Scenario:
    """What runs on this machine; its stack has the engine's habits and none of its costs, which are measured."""
    if prompt < 2:
        raise UsageError(f"prompt is {prompt}: must be 2 or more", hint="prefill and decode are told apart by messages")
    habits = catalog.stack(stack)
    free: Any = {field.name: 0.0 for field in dataclasses.fields(habits) if field.name.endswith("_s")}
    machine = dataclasses.replace(
        # a scenario needs a cluster; recorded costs read none of its figures
        catalog.cluster("h100-sxm"),
        name="this-machine",
        gpus_per_node=tp,
        rank_skew=0.0,
        profile="",
    )
    return Scenario.of(
        model=model,
        cluster=machine,
        stack=dataclasses.replace(habits, cuda_graphs=True, prefill_cuda_graphs=True, profile="", **free),
        tp=tp,
        batch=batch,
        prompt=prompt,
        gen=gen,
        overrides=overrides,
    )


def cross_check(plan: Plan, links: CommConfig, earlier: Path | None = None) -> dict[str, Any]:
    """Measure, predict and compare; the result is what docs/crosscheck.md describes, the same on every rank.

    Parameters
    ----------
    plan
        What to measure.
    links
        How ranks communicate.
    earlier
        Result whose calibration is used instead of a new one.
    """
    # standard is what speedups are over, and what a real link is calibrated on
    plan = dataclasses.replace(plan, variants=tuple(dict.fromkeys(("standard", *map(canonical, plan.variants)))))
    machine, run = environment(), _run(plan, links)
    known = reuse(earlier, plan.scenario, run, machine) if earlier else None
    comm: Communicator = Alone(plan.scenario.tp) if links.backend == "emulate" else connect(links, plan.scenario.tp)
    found = measure(plan, comm, known and {name: curves["all_reduce"] for name, curves in known.links.items()})
    calibration = known or Calibration.of(found)
    rows = compare(found, calibration, plan.variants, BOUNDS[links.backend])
    return {
        "schema_version": SCHEMA_VERSION,
        "run": {**run, "rounds": plan.rounds},
        "environment": {**machine, "load": found.load},
        "calibration": to_json(calibration),
        "rows": [{**dataclasses.asdict(row), "error": row.error, "beyond": row.beyond} for row in rows],
    }


def _run(plan: Plan, links: CommConfig) -> dict[str, Any]:
    """All that costs depend on."""
    scenario, work = plan.scenario, plan.scenario.workload
    return {
        "model": scenario.model.name,
        "layers": scenario.model.layers,
        "hidden": scenario.model.hidden,
        "vocab": scenario.model.vocab,
        "stack": scenario.stack.name,
        "tp": scenario.tp,
        "batch": work.batch,
        "prompt": work.prompt,
        "gen": work.gen,
        "backend": links.backend,
        "threads": plan.threads,
        "shares": list(plan.shares) if links.backend == "emulate" else [],
    }
