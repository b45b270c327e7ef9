"""The residual stream of one forward pass, with the outputs that are not yet added to it.

Shapes: B batch, T tokens, D hidden, C the channels of D that are reduced; of a stream whose tokens the ranks share, M
tokens of all sequences and what fills them up, S of one rank's share.

References
----------
Sequence parallelism: Korthikanti et al., arXiv 2205.05198, section 4.2.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ladder_sim.wirings.layout import Step, Wiring
from ladder_sim_runtime.comm.base import Communicator, Handle, Pipeline
from ladder_sim_runtime.config import EngineConfig
from ladder_sim_runtime.model import kernels
from ladder_sim_runtime.model.dispatch import Arriving, arrived
from ladder_sim_runtime.model.linear import RMSNorm

# a share of the channels is rounded up to as many: 16 bytes, which kernels read at once
CHANNELS = 8
# an output, or a rank's own part of one, and its factor in each lane
_Term = tuple[Tensor, Sequence[float | Tensor]]
# a stream, a factor of what is added to it, and the lanes that both are of
_Alike = tuple[Tensor, float | Tensor | None, list[str]]


@dataclass(slots=True, eq=False)
class _Output:
    """A block's output that is not yet in the residual."""

    step: Step
    """Whose it is."""
    output: Tensor | Arriving
    """What is added."""
    is_exchanged: bool
    """Other ranks have parts of it."""
    factors: Sequence[float | Tensor] = ()
    """Factor of each lane to which it is added; none: 1 in all."""
    carried: Sequence[Tensor] = ()
    """The rank's own parts of earlier outputs that the sum has, and that were read."""
    is_read: bool = False
    """Whether the rank has added its own part of the output to the residual before the sum over ranks is there."""

    def own(self) -> Tensor:
        """Return the rank's own part of the output."""
        return self.output.own() if isinstance(self.output, Arriving) else self.output

    def take_shared(self) -> list[Tensor]:
        """Return the output of shared experts if the next block reads it early; the sum then lacks it."""
        if not self.step.next_ahead or not isinstance(self.output, Arriving):
            return []
        return self.output.take_shared()

    def tensors(self) -> list[Tensor]:
        """Return all that the next stage needs of an output: its sum, shared experts' part, and the rank's own part."""
        apart = self.take_shared()
        if self.is_exchanged and self.step.read_by >= 0:
            apart.append(self.own())
        return [arrived(self.output), *apart]


class Sent(NamedTuple):
    """An output that the stage before sends, because it is not in the residual yet."""

    step: Step
    """Whose it is."""
    has_shared: bool
    """What shared experts put out comes with it."""
    has_own: bool
    """Whether the rank's own part comes with the output."""
    is_read: bool
    """Which is in the residual."""


class ResidualStream:
    """Executes the steps of a wiring; that of plugins/vllm-ladder has its own `_add_norm`, `_add_others`, `_sum`.

    It begins with embedded tokens in `lanes`, copies of the stream, and sums block outputs over the ranks of `comm`.
    With `takes_turns` other parts of the pass are computed during its collectives.
    """

    def __init__(
        self,
        x_BTD: Tensor,
        comm: Communicator,
        engine: EngineConfig,
        lanes: Sequence[str],
        *,
        takes_turns: bool = False,
    ) -> None:
        self._comm, self._engine, self._takes_turns = comm, engine, takes_turns
        # lanes to which the same was added share a tensor
        self._streams = dict.fromkeys(lanes, self._held(x_BTD))
        self._lane = lanes[0]
        self._pending: dict[int, _Output] = {}

        # the streams without the parts that a sum brings again
        self._kept: dict[str, Tensor] = {}

        # own parts of open outputs that a later sum has
        self._open: dict[int, Tensor] = {}

    def _held(self, x_BTD: Tensor) -> Tensor:
        """Return what this rank holds of a stream: all of it."""
        return x_BTD

    @property
    def x_BTD(self) -> Tensor:  # noqa: N802
        """The lane that the block at hand reads."""
        return self._streams[self._lane]

    def read(self, norm: RMSNorm | None, step: Step | None = None) -> Tensor | Arriving:
        """Add the outputs that a block joins, oldest first, and what it reads ahead; return the normalised stream.

        Without a block, all of them; without a norm, the stream as it is.
        """
        block = step.block if step else None
        self._lane = block.lane if block else self._lane
        deferred = len(self._pending) > 1
        due = self._due([step.number - back for back in step.block.joins] if step else list(self._pending))
        if block and block.keeps:
            # sums come first: they are older than what is open
            sums = [number for number in due if self._pending[number].step.block.reduces]
            self._add(self._join(sums))
            due = [number for number in due if number not in sums]
            self._kept = dict(self._streams)
        last = self._join(due)
        for ahead in self._read_ahead(step) if step else ():
            self._add(last)
            last, deferred = [ahead], False
        fused = self._engine.fused_ladder_add if deferred else self._engine.fused_residual_add
        if last and norm is not None and fused and not last[0][1]:
            ((y_BTD, _),) = last
            before_BTD = self.x_BTD
            self._add_to([each for each in self._alike(()) if each[0] is not before_BTD], y_BTD)
            lanes = [lane for lane, x_BTD in self._streams.items() if x_BTD is before_BTD]
            x_BTD, n_BTD = self._add_norm(norm, y_BTD)
            self._streams.update(dict.fromkeys(lanes, x_BTD))
            return n_BTD
        self._add(last)
        return self.x_BTD if norm is None else norm(self.x_BTD)

    def _add_norm(self, norm: RMSNorm, y_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual stream with an output added, and the norm of that."""
        return kernels.add_norm(self.x_BTD, y_BTD, norm.weight_D, norm.eps)

    def _add_others(self, x_BTD: Tensor, sum_BTD: Tensor, own_BTD: Tensor) -> Tensor:
        """Return a stream with all of a sum, given this rank's part, which the stream has already."""
        return kernels.add_others(x_BTD, sum_BTD, own_BTD)

    def _due(self, numbers: Iterable[int]) -> list[int]:
        """Return the outputs that join: in a sum those that it carries, without other ranks each by itself."""
        due: list[int] = []
        for number in numbers:
            block = self._pending[number].step.block if number in self._pending else None
            carried = [number - back for back in block.carries] if block else []
            if self._comm.size > 1:
                for each in carried:
                    self._pending.pop(each, None)
                due = [each for each in due if each not in carried]
            else:
                due += carried
            due.append(number)
        return [number for number in dict.fromkeys(due) if number in self._pending]

    def _join(self, numbers: Iterable[int]) -> list[_Term]:
        """Add outputs; the last is returned instead, if only its add is missing."""
        last: list[_Term] = []
        for number in numbers:
            output = self._pending.pop(number)
            self._add(last)
            sum_BTD, last = arrived(output.output), []
            entry = output.step.block.entry if output.step.block.reduces and self._comm.size > 1 else ""
            if entry == "stream":
                self._streams = dict.fromkeys(self._streams, sum_BTD)
            elif entry == "others" if entry else output.is_read:
                own = [*output.carried, *([output.own()] if output.is_read else [])]
                self._add_to(self._alike(output.factors), sum_BTD, functools.reduce(kernels.add, own))
            else:
                if entry == "kept":
                    # a stage gets them instead of its stream
                    self._streams, self._kept = self._kept or self._streams, {}
                last = [(sum_BTD, output.factors)]
        return last

    def _read_ahead(self, step: Step) -> list[_Term]:
        """Return the outputs that a block reads without waiting for sums; those without a sum join the residual."""
        terms: list[_Term] = []
        for number in [step.number - back for back in step.block.reads_ahead]:
            output = self._pending[number]
            terms.append((output.own(), output.factors))
            if output.is_exchanged:
                output.is_read = True
            else:
                del self._pending[number]
        if newest := self._pending.get(step.number - 1):
            terms += [(shared_BTD, newest.factors) for shared_BTD in newest.take_shared()]
        return terms

    def _add(self, terms: Iterable[_Term]) -> None:
        for y_BTD, factors in terms:
            self._add_to(self._alike(factors), y_BTD)

    def _add_to(self, alike: Iterable[_Alike], y_BTD: Tensor, own_BTD: Tensor | None = None) -> None:
        for x_BTD, factor, lanes in alike:
            scaled_BTD = y_BTD if factor is None else kernels.scale(y_BTD, factor)
            if own_BTD is None:
                added_BTD = kernels.add(x_BTD, scaled_BTD)
            else:
                own = own_BTD if factor is None else kernels.scale(own_BTD, factor)
                added_BTD = self._add_others(x_BTD, scaled_BTD, own)
            self._streams.update(dict.fromkeys(lanes, added_BTD))

    def _alike(self, factors: Sequence[float | Tensor]) -> list[_Alike]:
        """Return each stream, a factor, and the lanes that have this stream and add the output times this factor."""
        lanes: dict[tuple[int, float | int | None], _Alike] = {}
        for number, (lane, x_BTD) in enumerate(self._streams.items()):
            factor = factors[number] if factors else None
            if isinstance(factor, Tensor) or factor != 0:
                key = id(x_BTD), id(factor) if isinstance(factor, Tensor) else factor
                lanes.setdefault(key, (x_BTD, factor, []))[2].append(lane)
        return list(lanes.values())

    def write(
        self,
        output: Tensor | Arriving,
        step: Step,
        norm: RMSNorm | None = None,
        learned: Tensor | Sequence[Tensor] = (),
    ) -> bool:
        """Take a block's partial sums and start their all-reduce, if it has one; returns whether it has.

        What arrives from other groups of ranks is waited for at once only if it has to be reduced or normalised. A norm
        is of the sum, once that has arrived. `learned` has the factors of all lanes where they are weights.
        """
        block = step.block
        weights = [
            learned[at] if weight == "learned" and len(learned) else 1 if weight == "learned" else weight
            for at, weight in enumerate(block.weights)
        ]
        factors, scale = (weights, None) if len(weights) > 1 else ((), weights[0] if weights else None)
        if scale is not None and norm is None:
            output = kernels.scale(arrived(output), scale)
        reduces = block.reduces and self._comm.size > 1
        carried: list[Tensor] = []
        if step.is_carried and self._comm.size > 1:
            output = self._open[step.number] = arrived(output)
        if reduces:
            carried = [self._open[step.number - back] for back in block.read if back]
            output = self._reduced(arrived(output), step)
            if norm is not None:
                output = output.then(norm)
        elif norm is not None:
            output = norm(arrived(output))
        if scale is not None and norm is not None:
            output = kernels.scale(arrived(output), scale)
        if block.reduces or block.adds:
            self._pending[step.number] = _Output(step, output, isinstance(output, Arriving), factors, carried)
        return reduces

    def _blocks(self, step: Step) -> bool:
        """Say whether nothing is computed during the collective at the end of a block."""
        return not (step.overlaps or self._takes_turns)

    def _reduced(self, own_BTD: Tensor, step: Step) -> Arriving:
        comm, y_BTD, block = self._comm, own_BTD, step.block
        if block.entry == "stream":
            y_BTD = kernels.add_share(y_BTD, self.x_BTD, comm.size)
        for before_BTD in [self._open.pop(step.number - back) for back in block.carries]:
            y_BTD = (
                kernels.add_share(y_BTD, before_BTD, comm.size) if block.averages else kernels.add(before_BTD, y_BTD)
            )
        channels = _channels(y_BTD, block.percent)
        if channels < y_BTD.shape[-1]:
            reduction, sum_BTC = self._sum(kernels.cut(y_BTD[..., :channels]), blocking=self._blocks(step))
            return Arriving(reduction, lambda: torch.cat((sum_BTC(), y_BTD[..., channels:]), dim=-1), lambda: own_BTD)
        # reduced in place
        whole_BTD = y_BTD.clone() if step.read_by >= 0 and y_BTD is own_BTD else y_BTD
        reduction, sum_BTD = self._sum(whole_BTD, blocking=self._blocks(step))
        return Arriving(reduction, sum_BTD, lambda: own_BTD)

    def _sum(self, x: Tensor, *, blocking: bool) -> tuple[Handle, Callable[[], Tensor]]:
        """Start to sum a tensor over the ranks, in place or not; returns also what makes the sum of what arrived."""
        return self._comm.all_reduce(x, blocking=blocking), lambda: x

    def merge(self, wiring: Wiring) -> bool:
        """Make one stream for the LM head: the lanes' mean; start to average open channels over the ranks, if any."""
        channels, newest = _channels(self.x_BTD, wiring.percent), wiring.steps[-1]
        averages = self._comm.size > 1 and wiring.head == "mean" and channels < self.x_BTD.shape[-1]
        if averages or len(self._streams) > 1:
            self._add(self._join(self._due(list(self._pending))))
        if len(self._streams) > 1:
            mean_BTD = functools.reduce(kernels.add, self._streams.values()) / len(self._streams)
            self._streams = dict.fromkeys(self._streams, mean_BTD)
        if not averages:
            return False
        x_BTD, part_BTC = self.x_BTD, kernels.cut(self.x_BTD[..., channels:], self._comm.size)
        reduction, mean_BTC = self._sum(part_BTC, blocking=not self._takes_turns)
        averaged = Arriving(reduction, lambda: torch.cat((x_BTD[..., :channels], mean_BTC()), dim=-1), lambda: x_BTD)
        whole = newest._replace(block=replace(newest.block, reduces=True, entry="stream"))
        self._pending[newest.number] = _Output(whole, averaged, is_exchanged=True)
        return True

    def send(self, pipeline: Pipeline) -> None:
        """Hand the stream to the next stage, which adds the outputs that are not in it yet."""
        newest = self._pending[max(self._pending)]
        if newest.step.block.entry == "stream" and self._comm.size > 1:
            self._join(list(self._pending))
        self._streams = self._kept or self._streams
        pipeline.send(self.x_BTD, *(tensor for output in self._pending.values() for tensor in output.tensors()))

    def receive(self, pipeline: Pipeline, outputs: Iterable[Sent]) -> None:
        """Take over the stream of the stage before, and outputs that are not in it yet; these come later."""
        pipeline.receive(self.x_BTD).wait()
        for step, has_shared, has_own, is_read in outputs:
            output = self._receive(pipeline, has_shared=has_shared, has_own=has_own)
            self._pending[step.number] = _Output(step, output, has_own, is_read=is_read)

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


class SharedStream(ResidualStream):
    """A stream of which every rank has a share of the tokens (technique `sequence-parallel`).

    Outputs of blocks are reduce-scattered to the shares, and norms of shares gathered before each block. Tokens are
    filled up to a multiple of the ranks.
    """

    def _held(self, x_BTD: Tensor) -> Tensor:
        self._shape = x_BTD.shape
        return self._filled(x_BTD).chunk(self._comm.size)[self._comm.rank]

    def read(self, norm: RMSNorm | None, step: Step | None = None) -> Arriving:
        """Return what a block reads of the whole stream; the shares are on their way."""
        n_SD = arrived(super().read(norm, step))
        n_MD, handle = self._comm.gather_rows(n_SD, blocking=not self._takes_turns)
        tokens = self._shape[:-1].numel()
        return Arriving(handle, lambda: n_MD[:tokens].view(self._shape), lambda: n_SD)

    def _reduced(self, own_BTD: Tensor, step: Step) -> Arriving:
        y_SD, handle = self._comm.scatter_sum(self._filled(own_BTD), blocking=self._blocks(step))
        return Arriving(handle, lambda: y_SD, lambda: y_SD)

    def _filled(self, x_BTD: Tensor) -> Tensor:
        x_MD = x_BTD.flatten(0, -2)
        missing = -len(x_MD) % self._comm.size
        return nn.functional.pad(x_MD, (0, 0, 0, missing)) if missing else x_MD
