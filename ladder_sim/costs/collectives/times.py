"""Times of collectives, of one algorithm or of the one that each configuration takes."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ladder_sim.costs.estimate import Source
from ladder_sim.des.shared import Floats, Number

# 90 % interval as a fraction either way. Measured: nine tenths of the H100 points left out of a curve lie within 8 % of
# it. Fitted: so do nine tenths of EFA, NDR and H20 nccl-tests rows within 20 % of the two-node formula. The other two
# are judgement: no measurement of that link stands behind them.
COLLECTIVE_ERROR: Mapping[Source, float] = {"measured": 0.08, "fitted": 0.2, "transferred": 0.3, "roofline": 0.4}

# the choice of a single algorithm
ONLY = np.zeros(1, np.int_)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveTimes:
    """A collective, alone; arrays hold one value per message or per configuration."""

    seconds: Floats
    """Best estimates."""
    in_range: NDArray[np.bool_]
    """Between measurements of this algorithm, these ranks and this link."""
    source: Source
    """Source of the times that are out of range."""
    beyond: Number
    """Error of those out of range: that of their source, which configurations may differ in."""
    algorithms: tuple[str, ...]
    """What runs, e.g. "nccl"; several if configurations differ."""
    choice: NDArray[np.int_]
    """Index of what runs, by configuration; a single element if it is the same for all."""

    @property
    def names(self) -> frozenset[str]:
        """The algorithms that any configuration takes."""
        return frozenset(self.algorithms[number] for number in np.unique(self.choice))

    @property
    def most_common(self) -> str:
        """The algorithm of most configurations."""
        return self.algorithms[int(np.bincount(self.choice).argmax()) if len(self.algorithms) > 1 else 0]

    @property
    def error(self) -> Number:
        """90 % interval by configuration, as a fraction either way."""
        if self.in_range.all() or not self.in_range.any():
            return COLLECTIVE_ERROR["measured"] if self.in_range.all() else self.beyond
        return np.where(self.in_range, COLLECTIVE_ERROR["measured"], self.beyond)

    def at_least(self, wire_s: Floats) -> Self:
        """Return them no shorter than a port takes for the bytes it must send or receive, seconds."""
        return dataclasses.replace(self, seconds=np.maximum(self.seconds, wire_s))

    def choose(self, of_each: Sequence[Number]) -> Number:
        """Return a value that depends on the algorithm, given that of each; a number if all configurations agree."""
        if len(of_each) == 1:
            return of_each[0]
        table = np.stack(np.broadcast_arrays(*(np.atleast_1d(value) for value in of_each)))
        chosen: Floats = table[tuple(np.broadcast_arrays(self.choice, np.arange(table.shape[1])))]
        return float(chosen[0]) if np.all(chosen == chosen[0]) else chosen


def unmeasured(seconds: Floats, algorithm: str, source: Source = "roofline") -> CollectiveTimes:
    """Return times of one algorithm by its formula; `seconds` holds one value per message or configuration."""
    nowhere = np.zeros(seconds.shape, bool)
    return CollectiveTimes(
        seconds=seconds,
        in_range=nowhere,
        source=source,
        beyond=COLLECTIVE_ERROR[source],
        algorithms=(algorithm,),
        choice=ONLY,
    )


def fastest(candidates: Sequence[CollectiveTimes]) -> CollectiveTimes:
    """Return the fastest times for each configuration, with the source of the candidate that is fastest overall."""
    if len(candidates) == 1:
        return candidates[0]
    best = min(candidates, key=lambda times: float(times.seconds.sum()))
    table = np.stack(np.broadcast_arrays(*(times.seconds for times in candidates)))
    names = [name for times in candidates for name in times.algorithms]
    # a candidate may itself be several algorithms
    starts = itertools.accumulate((len(times.algorithms) for times in candidates), initial=0)
    choices = [
        np.broadcast_to(start + times.choice, table[0].shape) for start, times in zip(starts, candidates, strict=False)
    ]
    fastest_of = table.argmin(axis=0)
    choice = np.stack(choices)[fastest_of, np.arange(table.shape[1])]
    return dataclasses.replace(
        best, seconds=table.min(axis=0), algorithms=tuple(names), choice=choice, **_origins(candidates, fastest_of)
    )


def of_each(candidates: Sequence[CollectiveTimes], choice: NDArray[np.int_]) -> CollectiveTimes:
    """Return the chosen times for each configuration, with the source of the candidate chosen most often."""
    table = np.stack(np.broadcast_arrays(*(times.seconds for times in candidates)))
    choice = np.broadcast_to(choice, table.shape[1:])
    seconds = table[choice, np.arange(table.shape[1])]
    names = tuple(times.most_common for times in candidates)
    most = candidates[int(np.bincount(choice).argmax())]
    return dataclasses.replace(most, seconds=seconds, algorithms=names, choice=choice, **_origins(candidates, choice))


def _origins(candidates: Sequence[CollectiveTimes], chosen: NDArray[np.int_]) -> dict[str, Any]:
    """Return the fields `in_range` and `beyond` of the candidate that each configuration takes."""
    in_range, beyond = (
        np.stack([np.broadcast_to(getattr(times, name), chosen.shape) for times in candidates])[
            chosen, np.arange(len(chosen))
        ]
        for name in ("in_range", "beyond")
    )
    return {"in_range": in_range, "beyond": float(beyond[0]) if (beyond == beyond[0]).all() else beyond}


def fastest_way(seconds: Mapping[str, Floats]) -> CollectiveTimes:
    """Return the times of the fastest of NCCL's algorithms for each message, by formulas."""
    return fastest([unmeasured(times_s, name) for name, times_s in seconds.items()])
