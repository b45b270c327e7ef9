"""Real requests of a scenario in several wirings, for those who compare them with predictions. Imports no torch."""

import importlib.util
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from ladder_sim.errors import InfeasibleError, MissingPackageError, RankError
from ladder_sim.system import processes
from ladder_sim.system.arguments import flags
from ladder_sim_runtime.config import EngineConfig

# facts of an environment that times depend on: what a machine is
MACHINE = ("cpu", "cpu_cores", "gpu", "driver", "torch", "nccl")


class RequestTimes(NamedTuple):
    """Seconds of one request."""

    prefill_s: float
    """Seconds until the first new token."""
    decode_s: float
    """Seconds of all later tokens together."""


class Runs(dict[str, list[RequestTimes]]):
    """Requests by wiring, in the order in which they ran."""

    scenario: Any
    """What ran."""
    environment: Mapping[str, str]
    """Machine and versions, and everything of what ran that times depend on (`facts`)."""


def bench(scenario: Any, variants: Sequence[str], *, repeats: int = 15, warmups: int = 2, threads: int = 1) -> Runs:
    """Run requests of a scenario on ranks of this machine; wirings take turns.

    The scenario is of a dense model; its tensor-parallel degree is the number of ranks, each of which has `threads`. Of
    each wiring `repeats` requests count, after `warmups`. Raises MissingPackageError if torch is not installed;
    InfeasibleError if there are fewer cores than ranks; RankError if a rank failed; it has printed why.
    """
    require_ranks(scenario.plan.tp)
    stack = {field.name: getattr(scenario.stack, field.name, None) for field in fields(EngineConfig)}
    stack |= dict.fromkeys(("sharded_lm_head", "sharded_embedding"), scenario.stack.vocab_parallel)
    stack["technique"] = "+".join(scenario.techniques.chosen) or None
    own = {name: getattr(scenario.workload, name) for name in ("batch", "prompt", "gen")}
    own |= {"tp": scenario.plan.tp, "repeats": repeats, "warmups": warmups, "threads": threads}
    with tempfile.TemporaryDirectory(prefix="ladder-sim-") as folder:
        config, file = Path(folder, "config.json"), Path(folder, "result.json")
        config.write_text(json.dumps(scenario.model.hf_config()), "utf-8")
        options = {"model": config, "save": file, "variant": ",".join(variants), **own, **stack}
        code, _ = processes.run(["ladder_sim_runtime", "bench", *flags(options)])
        if code:
            raise RankError(f"`python -m ladder_sim_runtime bench` ended with exit code {code}")
        result = json.loads(file.read_text("utf-8"))
    runs = Runs(
        {
            name: [RequestTimes(request["ttft_s"], request["decode_s"]) for request in measured["repeats"]]
            for name, measured in result["variants"].items()
        }
    )
    runs.scenario = scenario
    how = result["run"]
    runs.environment = facts(
        scenario, result["environment"], backend=how["backend"], dtype=how["dtype"], threads=threads
    )
    return runs


def require_ranks(ranks: int) -> None:
    """Raise unless torch is there and every rank has a core."""
    if importlib.util.find_spec("torch") is None:
        raise MissingPackageError("real forward passes need torch")
    cores = processes.cores()
    if ranks > cores:
        raise InfeasibleError(
            f"{ranks} ranks on {cores} {'core' if cores == 1 else 'cores'}", hint="give every rank a core, or lower tp"
        )


def facts(scenario: Any, machine: Mapping[str, Any], *, backend: str, dtype: str, threads: int) -> dict[str, str]:
    """Return everything that the times of a scenario's requests depend on, by name: the machine first."""
    model, workload = scenario.model, scenario.workload
    known = {name: machine[name] for name in MACHINE if name in machine}
    run = {
        "dtype": dtype,
        "tp": scenario.plan.tp,
        "backend": backend,
        "threads": threads,
        "stack": scenario.stack.name,
        "model": model.name,
        **{name: getattr(model, name) for name in ("layers", "hidden", "vocab")},
        **{name: getattr(workload, name) for name in ("batch", "prompt", "gen")},
    }
    if backend == "gloo":
        # imported here: it needs torch
        from ladder_sim_runtime.comm.process_group import gloo_priority

        run["gloo_priority"] = gloo_priority()
    return {name: str(value) for name, value in {**known, **run}.items()}
