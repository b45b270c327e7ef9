"""The form of a fit's entry in a profile file; what every part of such a file has in common stands here too."""

import dataclasses
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.transfer import FittedFigure, IntervalScale, Transfer

# Far outside anything measured, near enough that ratios and their logarithms stay finite.
Positive = Annotated[float, Field(gt=1e-30, lt=1e30, allow_inf_nan=False, strict=True)]
Finite = Annotated[float, Field(allow_inf_nan=False, strict=True)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Text = Annotated[str, Field(strict=True)]


class Part(BaseModel):
    """A part of a file: nothing in it that is not stated here."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BrokenRuleError(Exception):
    """A rule between entries that the schema's types do not state."""


class FittedPart(Part):
    """As `ladder_sim.costs.transfer.FittedFigure`."""

    value: Positive
    default: Positive
    prior_log_sd: Positive
    log_sd: Positive


class ScalePart(Part):
    """As `ladder_sim.costs.transfer.IntervalScale`."""

    rate: Positive
    speedup: Positive


class TransferPart(Part):
    """As `ladder_sim.costs.transfer.Transfer`; `draws` holds one list per draw, in the order of `figures`."""

    stack: Text
    base: Text
    runs: Text
    protocol: Text
    rows: Annotated[int, Field(ge=1, strict=True)]
    models: list[Text]
    tps: list[int]
    host_tps: list[int]
    cost: Share
    figures: Annotated[dict[str, FittedPart], Field(min_length=1)]
    draws: Annotated[list[list[Positive]], Field(min_length=2)]
    near: ScalePart
    beyond: ScalePart


def decode_transfer(part: TransferPart) -> Transfer:
    """Turn a file's entry into a fit, or raise `BrokenRuleError`."""
    for name in part.figures:
        if name not in Hardware.figures():
            raise BrokenRuleError(f"transfer.figures: there is no figure '{name}'")
    for number, row in enumerate(part.draws):
        if len(row) != len(part.figures):
            raise BrokenRuleError(f"transfer.draws[{number}] has {len(row)} entries for {len(part.figures)} figures")
    return Transfer(
        stack=part.stack,
        base=part.base,
        runs=part.runs,
        protocol=part.protocol,
        rows=part.rows,
        models=tuple(part.models),
        tps=tuple(part.tps),
        host_tps=tuple(part.host_tps),
        cost=part.cost,
        near=IntervalScale(**part.near.model_dump()),
        beyond=IntervalScale(**part.beyond.model_dump()),
        figures={name: FittedFigure(**figure.model_dump()) for name, figure in part.figures.items()},
        draws=np.array(part.draws),
    )


def encode_transfer(transfer: Transfer) -> dict[str, Any]:
    """Turn a fit into its file's entry."""
    return {**dataclasses.asdict(transfer), "draws": transfer.draws.tolist()}
