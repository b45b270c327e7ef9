"""90 % intervals of predictions, from what is known about their errors.

Three parts, added in quadrature: single ops, by the source of their times (`by_op`); figures of a fit, by the values
that explain its runs about as well; and what runs differ by that are alike. Where a stack has been fitted to
end-to-end runs, the sum is scaled by what it took to hold runs that a fit had not seen
(`ladder_sim.costs.profile.StackFit`). What no end-to-end run has checked (`runs`) is added last.
`cost_warnings` says what times are based on in words.
"""

from ladder_sim.confidence.confidence import Confidence
from ladder_sim.confidence.interval import Interval

__all__ = ["Confidence", "Interval"]
