"""Service-level objectives: bounds on percentiles of times of requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal, Self, get_args

from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.units import parse_quantity, quoted

Metric = Literal["ttft", "tpot", "itl", "e2e"]
METRICS: tuple[Metric, ...] = get_args(Metric)
PERCENTILES = (50, 90, 95, 99)
_HINT = "e.g. ttft_p95=500ms,tpot_p95=30ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One of the bounds of an SLO."""

    metric: Metric
    """Time to first token, time per token, time between two tokens, or from arrival to the last token."""
    percentile: int
    """Share of them that keep it, in percent; 0: their mean."""
    seconds: float
    """The bound."""

    @property
    def name(self) -> str:
        """E.g. "ttft_p95"."""
        return f"{self.metric}_p{self.percentile}" if self.percentile else f"{self.metric}_mean"

    def __str__(self) -> str:
        limit = f"{self.seconds:g}s" if self.seconds >= 1.0 else f"{1e3 * self.seconds:g}ms"
        return f"{self.name}={limit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SLO:
    """Bounds, all of which are to be kept.

    Examples
    --------
    >>> slo = SLO.parse("ttft_p95=500ms, tpot_p95=30ms")
    >>> [(bound.name, bound.seconds) for bound in slo.bounds]
    [('ttft_p95', 0.5), ('tpot_p95', 0.03)]
    """

    bounds: tuple[Bound, ...]
    """At least one."""

    @classmethod
    def read(cls, given: str | Mapping[str, float | str] | Self) -> Self:
        """Return an SLO as it is given: as typed, as seconds by name, or made already.

        Examples
        --------
        >>> str(SLO.read({"ttft_p95_s": 0.5, "tpot_p95": "30ms"}))
        'ttft_p95=500ms,tpot_p95=30ms'
        """
        if isinstance(given, str):
            return cls.parse(given)
        if not isinstance(given, Mapping):
            return given
        return cls.parse(",".join(f"{name.removesuffix('_s')}={_limit(name, each)}" for name, each in given.items()))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an SLO as it is typed."""
        bounds: list[Bound] = []
        for part in text.split(","):
            name, equals, limit = part.strip().partition("=")
            metric, _, percentile = name.partition("_")
            if not equals or not percentile:
                raise UsageError(f"SLO {quoted(part.strip())}: must be METRIC_PERCENTILE=TIME", hint=_HINT)
            if metric not in METRICS:
                raise UnknownNameError("metric", metric, METRICS)
            allowed = [f"p{number}" for number in PERCENTILES]
            if percentile not in (*allowed, "mean"):
                raise UnknownNameError("percentile", percentile, (*allowed, "mean"))
            seconds = parse_quantity(limit, "s", name=name, likely=("ms", "s"))
            if seconds <= 0.0:
                raise UsageError(f"SLO {quoted(part.strip())}: must be above 0", hint=_HINT)
            number = 0 if percentile == "mean" else int(percentile[1:])
            if any((bound.metric, bound.percentile) == (metric, number) for bound in bounds):
                raise UsageError(f"{name} is promised twice: must be once", hint="leave one out")
            bounds.append(Bound(metric=metric, percentile=number, seconds=seconds))
        return cls(bounds=tuple(bounds))

    def broken(self, values_s: Sequence[float]) -> tuple[str, ...]:
        """Return the names of the bounds that are exceeded; NaN, which no request has, exceeds none."""
        return tuple(
            bound.name for bound, value_s in zip(self.bounds, values_s, strict=True) if value_s > bound.seconds
        )

    def __str__(self) -> str:
        return ",".join(map(str, self.bounds))


def _limit(name: str, limit: object) -> str:
    """Return a bound as typed; the name of a bound that is a number must say the unit."""
    if isinstance(limit, str):
        return limit
    if not isinstance(limit, Real) or not name.endswith("_s"):
        raise UsageError(
            f"{name} is {quoted(limit)}: must be text with a unit, or seconds by a name that ends in _s",
            hint='e.g. {"ttft_p95_s": 0.5} or {"ttft_p95": "500ms"}',
        )
    return f"{float(limit)!r}s"
