"""Small models and the variants that tests go through."""

import dataclasses

from ladder_sim.specs import catalog
from ladder_sim.specs.model import ModelSpec

# every family, and parameters that fit a few layers
VARIANTS = ("standard", "parallel", "ladder", "hybrid-ladder:2", "desync:2", "desync:3", "upper-bound")


def shallow(layers: int, name: str = "8b", **fields: object) -> ModelSpec:
    """A catalogue model of so few layers, with other fields replaced."""
    return dataclasses.replace(catalog.model(name), layers=layers, **fields)  # type: ignore[arg-type]
