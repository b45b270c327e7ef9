"""One cross-check from start to end: what runs, what is compared, and the result as JSON."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibration.crosscheck.compare import Bounds, compare
from calibration.crosscheck.measure import Experiment, measure
from calibration.crosscheck.observations import name_of, scenario_of
from calibration.crosscheck.predict import Calibration
from calibration.crosscheck.store import SCHEMA, calibration_fields, reuse
from ladder_sim.errors import UsageError
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from runtime.comm.base import Alone, Communicator
from runtime.comm.process_group import Degrees
from runtime.comm.rendezvous import CommConfig, connect
from runtime.environment import environment

# by backend; the latencies of an emulated link are known exactly
BOUNDS = {"emulate": Bounds(latency=0.10, speedup=0.05), "gloo": Bounds(latency=0.15, speedup=0.08)}


def own_scenario(
    model: str, stack: str, *, tp: int, batch: int, prompt: int, gen: int, overrides: Mapping[str, str]
) -> Scenario:
    """What runs on this machine: the stack's kernels and fusions, without its costs, which are measured."""
    if prompt < 2:
        raise UsageError(
            f"prompt is {prompt}: must be 2 or more", hint="prefill and decode are distinguished by their message sizes"
        )
    engine = catalog.stack(stack)
    free: Any = {field.name: 0.0 for field in dataclasses.fields(engine) if field.name.endswith("_s")}
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
        stack=dataclasses.replace(engine, cuda_graphs="all", profile="", **free),
        tp=tp,
        batch=batch,
        prompt=prompt,
        gen=gen,
        overrides=overrides,
    )


def cross_check(experiment: Experiment, links: CommConfig, earlier: Path | None = None) -> dict[str, Any]:
    """Measure, predict and compare; returns the result as JSON, the same on every rank.

    The calibration of an `earlier` result is used instead of a new one.
    """
    # speedups are over standard, and a real link is calibrated on it
    named = (name_of(scenario_of(experiment.scenario, variant)) for variant in experiment.variants)
    variants = tuple(dict.fromkeys(("standard", *named)))
    experiment = dataclasses.replace(experiment, variants=variants)
    machine, run = environment(), _run_fields(experiment, links)
    tp = experiment.scenario.plan.tp
    known = reuse(earlier, experiment.scenario, run, machine) if earlier else None
    comm: Communicator = Alone(tp) if links.backend == "emulate" else connect(links, Degrees(tp))
    curves = {name: curves["all_reduce"] for name, curves in known.links.items()} if known else None
    observed = measure(experiment, comm, curves)
    calibration = known or Calibration.of(observed)
    rows = compare(observed, calibration, variants, BOUNDS[links.backend])
    return SCHEMA.marked(
        run={**run, "rounds": experiment.rounds},
        environment={**machine, "load": observed.load},
        calibration=calibration_fields(calibration),
        rows=[{**dataclasses.asdict(row), "error": row.error, "beyond": row.exceeds_bound} for row in rows],
    )


def _run_fields(experiment: Experiment, links: CommConfig) -> dict[str, Any]:
    """Everything that costs depend on."""
    scenario, work = experiment.scenario, experiment.scenario.workload
    return {
        "model": scenario.model.name,
        "layers": scenario.model.layers,
        "hidden": scenario.model.hidden,
        "vocab": scenario.model.vocab,
        "stack": scenario.stack.name,
        "tp": scenario.plan.tp,
        "batch": work.batch,
        "prompt": work.prompt,
        "gen": work.gen,
        "backend": links.backend,
        "threads": experiment.threads,
        "shares": list(experiment.shares) if links.backend == "emulate" else [],
    }
