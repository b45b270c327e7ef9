"""A value and how far it may be off."""

import math
from dataclasses import dataclass

from ladder_sim.des.shared import Number

# standard deviations either way that hold 90 % of a normal distribution
NORMAL_90 = 1.645


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value and its 90 % interval."""

    value: float
    """Best estimate."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""

    @classmethod
    def around(cls, value: float, log_width: Number, above: Number | None = None) -> "Interval":
        """Return the interval of a value, `log_width` either way in the logarithm, or `above` it another width."""
        below, above = float(log_width), float(log_width if above is None else above)
        return cls(value=value, low=value * math.exp(-below), high=value * math.exp(above))

    @property
    def known(self) -> bool:
        """Whether the interval says something: its ends are within a factor of 10."""
        return self.high <= 10.0 * self.low

    @property
    def text(self) -> str:
        """A ratio and the ends of its interval, e.g. "1.26 (1.08-1.46)"."""
        return f"{self.value:.2f} ({f'{self.low:.2f}-{self.high:.2f}' if self.known else 'not known'})"

    @property
    def log_width(self) -> float:
        """Half-width in the logarithm."""
        return 0.5 * math.log(self.high / self.low)
