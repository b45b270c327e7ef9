"""Tables of routed experts that were not measured.

Experts are measured for the layers of some models, in each split over ranks. Any other layer's table is made of
theirs: at equal tokens per expert, equal experts per rank and equal weights of one expert the ratio to the roofline
differs little from one layer to another. Half of the times of a measured layer, made of the others alone, are within
10 % in fp8 blocks on H100 and B200, 12 % in NVFP4, 11 and 18 % in bf16 (`ladder-sim calibrate show`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import numpy as np

from ladder_sim.costs.lookup import RatioTable
from ladder_sim.des.shared import Floats
from ladder_sim.kernels import Experts
from ladder_sim.specs.workload import Imbalance

# the imbalance that tables of experts are measured with; others are factors to it
MEASURED_IMBALANCE: Imbalance = get_args(Imbalance)[1]

# key of these factors: one for every format and width
ANY_LAYER = Experts(format="", hidden=1, width=1, experts=1, top_k=1)
# distance in ln(tokens per expert) as which one in ln(weights of an expert) or ln(experts of a rank) counts, and that
# below which layers are equally near
OTHER_AXES, NEAR = 1.5, 0.15


def experts_table(of: Experts, measured: Mapping[Experts, RatioTable]) -> RatioTable | None:
    """Return the table of a layer's experts, measured or derived; None if the format was not measured."""
    if of in measured:
        return measured[of]
    if of.imbalance != MEASURED_IMBALANCE and of.format != ANY_LAYER.format:
        level = experts_table(of._replace(imbalance=MEASURED_IMBALANCE), measured)
        factor = experts_table(any_layer(of), measured)
        return times(level, factor) if level and factor else level
    alike = {key: table for key, table in measured.items() if (key.format, key.imbalance) == (of.format, of.imbalance)}
    return transferred(of, alike) if alike else None


def any_layer(of: Experts) -> Experts:
    """Return the key of the factors of an imbalance, which depend on the numbers of experts alone."""
    return ANY_LAYER._replace(experts=of.experts, top_k=of.top_k, imbalance=of.imbalance)


def transferred(of: Experts, measured: Mapping[Experts, RatioTable]) -> RatioTable:
    """Return a table of experts made of the tables of other layers, similar layers counting more.

    Each is looked up where one of its ranks has as many experts, as much of one expert's weights and as many tokens per
    expert, as far as it was measured.
    """
    names = next(iter(measured.values())).names
    axes = {name: np.unique(np.concatenate([_axis(table, name) for table in measured.values()])) for name in names}
    points = dict(zip(names, np.broadcast_arrays(*np.ix_(*axes.values())), strict=True))
    total: Floats | float = 0.0
    weights: Floats | float = 0.0
    for other, table in measured.items():
        scales = {
            "expert_tp": other.hidden * other.width / (of.hidden * of.width),
            "ep": other.experts / of.experts,
            "tokens": of.top_k / of.experts / (other.top_k / other.experts),
        }
        wanted = {name: points[name] * scale for name, scale in scales.items()}
        there = {name: np.clip(at, *_axis(table, name)[[0, -1]]) for name, at in wanted.items()}
        far = [np.log(there[name] / at) / (1.0 if name == "tokens" else OTHER_AXES) for name, at in wanted.items()]
        weight = (np.sqrt(np.sum(np.square(far), axis=0)) + NEAR) ** -2.0
        total = total + weight * np.log(table.factor(**there))
        weights = weights + weight
    log_ratio: Floats = np.asarray(total / weights)
    unmeasured = np.full_like(log_ratio, np.nan)
    return RatioTable(
        names=names, axes=tuple(axes.values()), seconds=unmeasured, log_ratio=log_ratio, beyond="transferred"
    )


def over(own: RatioTable | None, others: RatioTable) -> RatioTable:
    """Return an engine's table, completed where it measured nothing by the others' table on the same grid."""
    if own is None:
        return replace(others, seconds=np.full_like(others.seconds, np.nan), left_out={}, beyond="transferred")
    log_ratio = np.where(np.isnan(own.seconds), others.log_ratio, own.log_ratio)
    return replace(own, log_ratio=log_ratio, beyond="transferred")


def times(level: RatioTable, factor: RatioTable) -> RatioTable:
    """Return a table for another imbalance, `level` times `factor`, which no longer counts as measured."""
    points = dict(zip(level.names, np.ix_(*level.axes), strict=True))
    return replace(
        level,
        seconds=np.full_like(level.seconds, np.nan),
        log_ratio=level.log_ratio + np.log(factor.factor(**points)),
        left_out={},
        beyond="fitted" if np.isfinite(level.seconds).any() else level.beyond,
    )


def _axis(table: RatioTable, name: str) -> Floats:
    return table.axes[table.names.index(name)]
