"""Small models and the variants that tests go through."""

import dataclasses

from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.prediction import resolve_profile
from ladder_sim.specs import catalog
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario

SERVING = tuple(name for name in catalog.stack_names() if catalog.stack(name).serves)
"""Engines that batch continuously."""
# every family, and parameters that fit a few layers
VARIANTS = (
    *("standard", "parallel", "ladder", "hybrid-ladder:2", "desync:2", "desync:3", "upper-bound"),
    *("ladder:3", "delayed:1", "delayed:2", "track:2", "drop:2", "partial:50", "farskip", "farskip:own"),
    *("hybrid-delayed:2:2", "hybrid-partial:25:2", "hybrid-track:1:2", "hybrid-parallel:2"),
)


def shallow(layers: int, name: str = "8b", **fields: object) -> ModelSpec:
    """A catalogue model of so few layers, with other fields replaced."""
    return dataclasses.replace(catalog.model(name), layers=layers, **fields)  # type: ignore[arg-type]


def with_overheads(scenario: Scenario, **figures: float) -> CalibrationProfile:
    """The profile of a scenario, with figures of its stack as if they were measured with the tables."""
    profile = resolve_profile(scenario, None)
    assert profile is not None
    return dataclasses.replace(profile, overheads={**profile.overheads, **figures})
