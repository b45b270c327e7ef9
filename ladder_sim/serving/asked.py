"""What `serve` and `capacity` are asked: a scenario, a load, and how replicas serve it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.errors import UsageError
from ladder_sim.serving.engine.measured_steps import MeasuredSteps
from ladder_sim.serving.engine.speculation import Speculation
from ladder_sim.serving.replicas.simulation import Router
from ladder_sim.serving.requests.traffic import Lengths, Traffic
from ladder_sim.specs.arguments import DEFAULTS, REQUESTS, keywords_of
from ladder_sim.specs.scenario import Scenario, point_asked

# tokens of a prompt and of an answer, where neither the keywords nor the scenario say it
PROMPT, GEN = 1024, 256


class LoadFields(TypedDict, total=False):
    """Types of the keywords that say which requests arrive, and how replicas serve them: see `ladder_sim.serve`."""

    prompt: int | str | Lengths
    gen: int | str | Lengths
    rate: float
    concurrency: int
    requests: int | None
    burstiness: float
    prefix: int
    seed: int
    router: Router
    speculate: str | None
    steps: str | Path | MeasuredSteps | None
    profile: str | CalibrationProfile | None


# keywords that say which requests are drawn at random, with their defaults
DRAWN: Mapping[str, Any] = {
    "rate": 0.0,
    "concurrency": 0,
    "prompt": PROMPT,
    "gen": GEN,
    "burstiness": 1.0,
    "prefix": 0,
    "seed": 0,
}


def arguments_asked(scenario: Scenario | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Scenario` that were given, but those of its requests.

    Raises UsageError if a scenario and arguments of one were given, or what they say of requests would change nothing.
    """
    own = {name: value for name, value in fields.items() if name not in LoadFields.__annotations__}
    point = point_asked(scenario, own)
    for name in (*REQUESTS, "spread", "rounds"):
        said = point.pop(name, DEFAULTS.get(name))
        by_hand = next((key for key in point if key.startswith(f"workload.{name}")), None)
        if by_hand or (name == "batch" and said != DEFAULTS[name]):
            raise UsageError(
                f"{by_hand or f'{name} {said}'} changes nothing here: requests arrive one by one",
                hint="leave it out, and say which requests arrive: prompt=, gen=, rate= or concurrency=",
            )
    return keywords_of(point)


def traffic_asked(scenario: Scenario | None, fields: Mapping[str, Any]) -> Traffic:
    """Return the random requests: what the keywords do not say is as in the scenario, where that does."""
    said = {name: scenario.given[name] for name in ("prompt", "gen") if scenario and name in scenario.given}
    asked = {**DRAWN, **said, **fields}
    if scenario and not asked["rate"] and "concurrency" not in fields:
        asked["concurrency"] = scenario.workload.concurrency or 0
    if not asked["rate"] and asked["burstiness"] != 1.0:
        raise UsageError(
            f"burstiness {asked['burstiness']:g} without a rate: requests have no times of their own",
            hint="give a rate, or leave it out",
        )
    return Traffic(
        **{name: asked[name] for name in DRAWN if name not in ("prompt", "gen")},
        prompt=Lengths.read(asked["prompt"]),
        gen=Lengths.read(asked["gen"]),
        requests=1000 if asked.get("requests") is None else asked["requests"],
    )


def service_asked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a `Service`."""
    speculate, steps = fields.get("speculate"), fields.get("steps")
    changed = {} if speculate is None else {"speculation": Speculation.parse(speculate, fields.get("seed", 0))}
    return {
        "router": fields.get("router", "round-robin"),
        "profile": fields.get("profile"),
        "changed": changed,
        "steps": MeasuredSteps.read(Path(steps)) if isinstance(steps, str | Path) else steps,
    }


def check_prefill(name: str, fields: Mapping[str, Any]) -> None:
    """Refuse replicas that run prompts only where steps were measured."""
    if fields.get("steps") is not None:
        raise UsageError(f"{name} with steps: only a whole server was measured", hint="leave out one of them")
