"""The scenario flags of one question as a sweep's point."""

from dataclasses import fields
from typing import Any

from ladder_sim.cli.options import ScenarioFlags, settings
from ladder_sim.errors import UsageError

_SIMULATOR = ("engine", "jitter", "seed")
_NAMED = ("model", "cluster", "nodes", "gpus_per_node", "tp", "batch", "prompt", "gen", "dtype", "stack", "allreduce")


def point_of(flags: ScenarioFlags) -> dict[str, Any]:
    """Fields that were given, and settings.

    Raises
    ------
    UsageError
        The flags ask for another engine or for jitter, which a question of many predictions does not take.
    """
    usual = {field.name: field.default for field in fields(ScenarioFlags)}
    for name in _SIMULATOR:
        if getattr(flags, name) != usual[name]:
            raise UsageError(
                f"--{name} is for single predictions", hint="leave it out: here the vectorised engine answers"
            )
    named = (
        "model",
        "cluster",
        "nodes",
        "gpus_per_node",
        "tp",
        "batch",
        "prompt",
        "gen",
        "dtype",
        "stack",
        "allreduce",
    )
    point = {name: getattr(flags, name) for name in named if getattr(flags, name) is not None}
    return {**point, "p2p": not flags.no_p2p, **settings(flags.set_ or [])}
