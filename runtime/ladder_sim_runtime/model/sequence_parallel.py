"""A residual stream of which every rank has a share of the tokens (technique `sequence-parallel`).

Outputs of blocks are reduce-scattered to the shares, and norms of shares gathered before each block. Tokens are filled
up to a multiple of the ranks.

Shapes: B batch, T tokens, M tokens of all sequences and what fills them up, S of one rank's share, D hidden.

References
----------
Korthikanti et al., arXiv 2205.05198, section 4.2.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from ladder_sim.wirings.layout import Step
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.config import EngineConfig
from ladder_sim_runtime.model.dispatch import Arriving, arrived
from ladder_sim_runtime.model.linear import RMSNorm
from ladder_sim_runtime.model.residual import ResidualStream


class SharedStream(ResidualStream):
    """The rank's share; the parameters are those of the whole stream."""

    def __init__(
        self,
        x_BTD: Tensor,
        comm: Communicator,
        engine: EngineConfig,
        lanes: Sequence[str] = ("x",),
        *,
        takes_turns: bool = False,
    ) -> None:
        self._shape = x_BTD.shape
        x_MD = self._filled(x_BTD, comm.size)
        super().__init__(x_MD.chunk(comm.size)[comm.rank], comm, engine, lanes, takes_turns=takes_turns)

    def read(self, norm: RMSNorm | None, step: Step | None = None) -> Arriving:
        """Return what a block reads of the whole stream; the shares are on their way."""
        n_SD = arrived(super().read(norm, step))
        n_MD, handle = self._comm.gather_rows(n_SD, blocking=not self._takes_turns)
        tokens = self._shape[:-1].numel()
        return Arriving(handle, lambda: n_MD[:tokens].view(self._shape), lambda: n_SD)

    def _reduced(self, own_BTD: Tensor, step: Step) -> Arriving:
        y_SD, handle = self._comm.scatter_sum(self._filled(own_BTD, self._comm.size), blocking=self._blocks(step))
        return Arriving(handle, lambda: y_SD, lambda: y_SD)

    @staticmethod
    def _filled(x_BTD: Tensor, ranks: int) -> Tensor:
        x_MD = x_BTD.flatten(0, -2)
        missing = -len(x_MD) % ranks
        return nn.functional.pad(x_MD, (0, 0, 0, missing)) if missing else x_MD
