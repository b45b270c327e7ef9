"""The residual stream of one forward pass, with the outputs that are not yet added to it.

Shapes: B batch, T tokens, D hidden, C the channels of D that are reduced.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ladder_sim_runtime.comm.base import Communicator, Handle, Pipeline
from ladder_sim_runtime.config import EngineConfig
from ladder_sim_runtime.model import kernels
from ladder_sim_runtime.model.dispatch import Arriving, arrived
from ladder_sim_runtime.model.linear import RMSNorm
from ladder_sim_runtime.model.wiring import BlockPlan

# a share of the channels is rounded up to as many: 16 bytes, which kernels read at once
CHANNELS = 8


@dataclass(slots=True, eq=False)
class _Output:
    """A block's output that is not yet in the residual."""

    block: BlockPlan
    """Whose it is."""
    output: Tensor | Arriving
    """What is added."""
    is_exchanged: bool
    """Other ranks have parts of it."""
    replaces: bool = False
    """It becomes the residual instead of being added."""
    is_read: bool = False
    """Whether the rank has added its own part of the output to the residual before the sum over ranks is there."""

    def own(self) -> Tensor:
        """Return the rank's own part of the output."""
        return self.output.own() if isinstance(self.output, Arriving) else self.output

    def take_shared(self) -> list[Tensor]:
        """Return the output of shared experts if the next block reads it early; the sum then lacks it."""
        if self.block.read_ahead == "nothing" or not isinstance(self.output, Arriving):
            return []
        return self.output.take_shared()

    def tensors(self) -> list[Tensor]:
        """Return all that the next stage needs of an output: its sum, shared experts' part, and the rank's own part."""
        apart = self.take_shared()
        if self.is_exchanged and self.block.read_ahead == "own":
            apart.append(self.own())
        return [arrived(self.output), *apart]


class Sent(NamedTuple):
    """An output that the stage before sends, because it is not in the residual yet."""

    block: BlockPlan
    """Whose it is."""
    has_shared: bool
    """What shared experts put out comes with it."""
    has_own: bool
    """Whether the rank's own part comes with the output."""
    is_read: bool
    """Which is in the residual."""


class ResidualStream:
    """Executes a wiring's block plans; that of plugins/vllm-ladder has its own `_add_norm`, `_add_others`, `_sum`.

    Parameters
    ----------
    x_BTD
        Embedded tokens.
    comm
        Sums block outputs over the ranks.
    engine
        Whether adds are fused into the norm that follows.
    takes_turns
        Other parts of the pass are computed during its collectives.
    """

    def __init__(self, x_BTD: Tensor, comm: Communicator, engine: EngineConfig, *, takes_turns: bool = False) -> None:
        self.x_BTD = x_BTD
        self._comm = comm
        self._engine = engine
        self._takes_turns = takes_turns
        self._pending: deque[_Output] = deque()

        # own parts of earlier outputs that go into the next sum instead of the residual
        self._carried: list[Tensor] = []

    def read(self, norm: RMSNorm | None, block: BlockPlan | None = None) -> Tensor | Arriving:
        """Add the outputs that a block waits for, oldest first, and what it reads ahead; return the normalised stream.

        Without a block, all of them; without a norm, the stream as it is.
        """
        deferred = len(self._pending) > 1
        last = self._join(block.number - block.leaves if block else math.inf)
        kept_BTD = self.x_BTD
        for ahead_BTD in self._read_ahead(block) if block else ():
            self._add(last)
            kept_BTD, last, deferred = self.x_BTD, [ahead_BTD], False
        fused = self._engine.fused_ladder_add if deferred else self._engine.fused_residual_add
        if last and norm is not None and fused:
            self.x_BTD, n_BTD = self._add_norm(norm, last[0])
        else:
            self._add(last)
            n_BTD = self.x_BTD if norm is None else norm(self.x_BTD)
        if self._carried:
            self.x_BTD = kept_BTD
        return n_BTD

    def _add_norm(self, norm: RMSNorm, y_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual stream with an output added, and the norm of that."""
        return kernels.add_norm(self.x_BTD, y_BTD, norm.weight_D, norm.eps)

    def _add_others(self, sum_BTD: Tensor, own_BTD: Tensor) -> Tensor:
        """Return the residual stream with all of a sum, given this rank's part, which it holds already."""
        return kernels.add_others(self.x_BTD, sum_BTD, own_BTD)

    def _join(self, number: float) -> list[Tensor]:
        """Add the outputs of the blocks before a number; the last is returned instead, if only its add is missing."""
        last: list[Tensor] = []
        while self._pending and self._pending[0].block.number < number:
            output = self._pending.popleft()
            self._add(last)
            sum_BTD, last = arrived(output.output), []
            if output.replaces:
                self.x_BTD = sum_BTD
            elif output.is_read:
                self.x_BTD = self._add_others(sum_BTD, output.own())
            else:
                last = [sum_BTD]
        return last

    def _read_ahead(self, block: BlockPlan) -> list[Tensor]:
        """Return the outputs that a block reads without waiting for sums; those without a sum join the residual."""
        tensors = []
        for output in tuple(self._pending) if block.ahead == "own" else ():
            if output.is_read:
                continue
            tensors.append(output.own())
            if output.is_exchanged:
                output.is_read = True
            else:
                self._pending.remove(output)
        if block.carries == "own" and self._comm.size > 1:
            self._carried = list(tensors)
        return tensors + (self._pending[-1].take_shared() if self._pending else [])

    def _add(self, tensors: Iterable[Tensor]) -> None:
        for y_BTD in tensors:
            self.x_BTD = kernels.add(self.x_BTD, y_BTD)

    def write(self, output: Tensor | Arriving, block: BlockPlan, norm: RMSNorm | None = None) -> bool:
        """Take a block's partial sums and start their all-reduce, if the plan has one; returns whether it has.

        What arrives from other groups of ranks is waited for at once only if it has to be reduced or normalised. A norm
        is of the sum, once that has arrived.
        """
        reduces = block.reduces and self._comm.size > 1
        if reduces:
            output = self._reduced(arrived(output), block)
            if norm is not None:
                output = output.then(norm)
        elif norm is not None:
            output = norm(arrived(output))
        replaces = reduces and block.carries == "residual"
        self._pending.append(_Output(block, output, isinstance(output, Arriving), replaces))
        return reduces

    def _blocks(self, block: BlockPlan) -> bool:
        """Say whether nothing is computed during the collective at the end of a block."""
        return not (block.overlaps or self._takes_turns)

    def _reduced(self, own_BTD: Tensor, block: BlockPlan) -> Arriving:
        comm, y_BTD, carried = self._comm, own_BTD, self._carried
        self._carried = []
        if block.carries == "residual":
            y_BTD = kernels.add_share(y_BTD, self.x_BTD, comm.size)
        for before_BTD in carried:
            y_BTD = kernels.add(before_BTD, y_BTD)
        channels = _channels(y_BTD, block.percent)
        if channels < y_BTD.shape[-1]:
            reduction, sum_BTC = self._sum(kernels.cut(y_BTD[..., :channels]), blocking=self._blocks(block))
            return Arriving(reduction, lambda: torch.cat((sum_BTC(), y_BTD[..., channels:]), dim=-1), lambda: own_BTD)
        # reduced in place
        whole_BTD = y_BTD.clone() if block.read_ahead == "own" else y_BTD
        reduction, sum_BTD = self._sum(whole_BTD, blocking=self._blocks(block))
        return Arriving(reduction, sum_BTD, lambda: own_BTD)

    def _sum(self, x: Tensor, *, blocking: bool) -> tuple[Handle, Callable[[], Tensor]]:
        """Start to sum a tensor over the ranks, in place or not; returns also what makes the sum of what arrived."""
        return self._comm.all_reduce(x, blocking=blocking), lambda: x

    def average(self, percent: int) -> bool:
        """Add all outputs, and start to average the channels that are not the first ones over the ranks, if any."""
        channels, newest = _channels(self.x_BTD, percent), self._pending[-1].block
        if self._comm.size == 1 or channels == self.x_BTD.shape[-1]:
            return False
        self._add(self._join(math.inf))
        x_BTD, part_BTC = self.x_BTD, kernels.cut(self.x_BTD[..., channels:], self._comm.size)
        reduction, mean_BTC = self._sum(part_BTC, blocking=not self._takes_turns)
        averaged = Arriving(reduction, lambda: torch.cat((x_BTD[..., :channels], mean_BTC()), dim=-1), lambda: x_BTD)
        self._pending.append(_Output(newest, averaged, is_exchanged=True, replaces=True))
        return True

    def send(self, pipeline: Pipeline) -> None:
        """Hand the stream to the next stage, which adds the outputs that are not in it yet."""
        if self._pending[-1].replaces:
            self._join(math.inf)
        pipeline.send(self.x_BTD, *(tensor for output in self._pending for tensor in output.tensors()))

    def receive(self, pipeline: Pipeline, outputs: Iterable[Sent]) -> None:
        """Take over the stream of the stage before, and outputs that are not in it yet; these come later."""
        pipeline.receive(self.x_BTD).wait()
        for block, has_shared, has_own, is_read in outputs:
            output = self._receive(pipeline, has_shared=has_shared, has_own=has_own)
            self._pending.append(_Output(block, output, has_own, is_read=is_read))

    def _receive(self, pipeline: Pipeline, *, has_shared: bool = False, has_own: bool = False) -> Arriving:
        y_BTD = torch.empty_like(self.x_BTD)
        handle = pipeline.receive(y_BTD)
        apart = self._receive(pipeline) if has_shared else None

        def own() -> Tensor:
            """Return all of the received output, which nothing was exchanged of."""
            handle.wait()
            return y_BTD

        return Arriving(handle, lambda: y_BTD, self._receive(pipeline).wait if has_own else own, apart)


def _channels(x_BTD: Tensor, percent: int) -> int:
    """Return `percent` percent of the channels, rounded up."""
    hidden = x_BTD.shape[-1]
    return min(hidden, -(-hidden * percent // (100 * CHANNELS)) * CHANNELS)
