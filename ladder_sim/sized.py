"""Costs of passes of many sizes at once, so that sweeps over batch, prompt and answer need no graph of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from ladder_sim.costs.base import Estimate
from ladder_sim.costs.model import KernelCosts
from ladder_sim.graph.ops import Count, Op, Shape
from ladder_sim.graph.scale import Sizes


class SizedCosts:
    """Asked for the ops of one token (`ladder_sim.graph.scale.one_token`), answers for ops of other sizes.

    Parameters
    ----------
    costs
        Prices them.
    sizes
        Numbers, or arrays of one value per configuration.
    configurations
        How many.
    known
        Estimates by kind and shape of the op of one token.
    """

    def __init__(
        self,
        costs: KernelCosts,
        sizes: Sizes,
        configurations: int,
        known: Mapping[tuple[str, Shape], Estimate] | None = None,
    ) -> None:
        self.hardware = replace(costs.hardware, configurations=configurations)
        # figures that the times rest on
        self._costs, self._sizes = costs, sizes
        self._known = dict(known or {})

    def estimates(self, ops: Sequence[Op]) -> list[Estimate]:
        """Times of the ops at every size, each alone on its GPU."""
        new = {(op.kind, op.shape): op for op in ops if (op.kind, op.shape) not in self._known}
        found = self._costs.estimates_anew([(op.kind, self._sizes.shape(op)) for op in new.values()])
        self._known.update(zip(new, found, strict=True))
        return [self._known[op.kind, op.shape] for op in ops]

    def at(self, kv_len: Count) -> Self:
        """The same over another context: only attention costs otherwise."""
        same = {key: estimate for key, estimate in self._known.items() if key[0] != "attention"}
        return type(self)(self._costs, replace(self._sizes, kv_len=kv_len), self.hardware.configurations, same)
