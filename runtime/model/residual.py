"""The residual stream of one forward pass, with the outputs that are not yet added to it.

Shapes: B batch, T tokens, D hidden.
"""

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from runtime.comm.base import Communicator, Handle, Pipeline
from runtime.config import EngineConfig
from runtime.model import kernels
from runtime.model.autograd import reduced
from runtime.model.dispatch import Arriving, arrived
from runtime.model.linear import RMSNorm
from runtime.model.wiring import BlockPlan


@dataclass(frozen=True, slots=True)
class _Output:
    """A block's output that is not yet in the residual."""

    output: Tensor | Arriving
    """Partial or reduced sums."""
    reduction: Handle | None
    """All-reduce to wait for."""
    replaces: bool
    """It becomes the residual instead of being added."""

    def wait(self) -> Tensor:
        y_BTD = arrived(self.output)
        return y_BTD if self.reduction is None else reduced(y_BTD, self.reduction)


class ResidualStream:
    """Executes a wiring's block plans.

    Parameters
    ----------
    x_BTD
        Embedded tokens.
    comm
        Sums block outputs over the ranks.
    engine
        Whether adds are fused into the norm that follows.
    """

    def __init__(self, x_BTD: Tensor, comm: Communicator, engine: EngineConfig) -> None:
        self.x_BTD = x_BTD
        self._comm = comm
        self._engine = engine
        self._pending: deque[_Output] = deque()

    def read(self, norm: RMSNorm, leave: int = 0) -> Tensor:
        """Add pending outputs, oldest first, until `leave` are left; return the normalised stream."""
        deferred = len(self._pending) > 1
        fuses = self._engine.fused_ladder_add if deferred else self._engine.fused_residual_add
        if fuses and len(self._pending) > leave and not self._pending[-1 - leave].replaces:
            self._add(leave + 1)
            self.x_BTD, n_BTD = norm.of_sum(self.x_BTD, self._pending.popleft().wait())
            return n_BTD
        self._add(leave)
        alone_BTD: Tensor = norm(self.x_BTD)
        return alone_BTD

    def _add(self, leave: int) -> None:
        while len(self._pending) > leave:
            output = self._pending.popleft()
            y_BTD = output.wait()
            self.x_BTD = y_BTD if output.replaces else kernels.add(self.x_BTD, y_BTD)

    def write(self, output: Tensor | Arriving, block: BlockPlan) -> None:
        """Take a block's partial sums and start their all-reduce, if the plan has one.

        What arrives from other groups of ranks is waited for at once only if it has to be reduced.
        """
        reduction = None
        carries = block.carries and self._comm.size > 1
        if block.reduces and self._comm.size > 1:
            output = arrived(output)
            if carries:
                output = kernels.add_share(output, self.x_BTD, self._comm.size)
            reduction = self._comm.all_reduce(output.detach())
        self._pending.append(_Output(output, reduction, carries))

    def send(self, pipeline: Pipeline) -> None:
        """Hand the stream to the next stage, which adds the outputs that are not in it yet."""
        if self._pending and self._pending[-1].replaces:
            self._add(0)
        pipeline.send(self.x_BTD, *(output.wait() for output in self._pending))

    def receive(self, pipeline: Pipeline, outputs: int) -> None:
        """Take over the stream of the stage before, and as many outputs that are not in it yet; these come later."""
        pipeline.receive(self.x_BTD).wait()
        for _ in range(outputs):
            y_BTD = torch.empty_like(self.x_BTD)
            self._pending.append(_Output(y_BTD, pipeline.receive(y_BTD), replaces=False))
