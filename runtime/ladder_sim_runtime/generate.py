"""Serve one static batch: prefill, then decode token by token.

In a pipeline the batch is served in as many micro-batches as there are stages, so that each stage works on one while
the others work on theirs.

Shapes: B batch, or that of a micro-batch, T prompt tokens, G new tokens, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ladder_sim.wirings.layout import Wiring
from ladder_sim_runtime.comm.base import Handle
from ladder_sim_runtime.config import Phase
from ladder_sim_runtime.device import kind_of
from ladder_sim_runtime.execution import EAGER, Execution
from ladder_sim_runtime.model.decoder import Decoder

# from logits and their wiring to each sequence's next token, the same on every rank
Pick = Callable[[Tensor, Wiring], Tensor]


@dataclass(slots=True)
class _MicroBatch:
    """Sequences that pass the stages together."""

    rows: slice
    """Rows of the batch."""
    pad_B: Tensor | None
    """Positions of padding before each prompt."""
    cache: Tensor
    """Cache of this stage's layers."""
    token_B1: Tensor
    """The newest of each sequence."""
    position_1: Tensor
    """Position of the next token."""
    step: int | None = None
    """New token on its way from the last stage, or not yet among the results; None: there is none."""
    arriving: tuple[Handle, Tensor] | None = None
    """What brings it, and where."""


class Generator:
    """A decoder with the buffers of one batch.

    Prompts are padded on the left if they differ in length, `pad_B` positions each. Prefill yields the first of `gen`
    new tokens of each sequence; `pick` chooses them, greedily by default. `execution` says which steps are recorded the
    first time, by wiring, and replayed from then on.
    """

    def __init__(
        self,
        model: Decoder,
        prompt_BT: Tensor,
        gen: int,
        *,
        execution: Execution = EAGER,
        pad_B: Tensor | None = None,
        pick: Pick | None = None,
    ) -> None:
        batch, self._prompt = prompt_BT.shape
        device = prompt_BT.device
        self.model, self.prompt_BT = model, prompt_BT
        self._pick = pick or model.next_token
        self._tokens_BG = torch.zeros(batch, gen, dtype=torch.long, device=device)
        each = -(-batch // model.comm.pipeline.stages)
        self._parts = [
            _MicroBatch(
                rows=slice(first, first + each),
                pad_B=None if pad_B is None else pad_B[first : first + each],
                cache=model.cache(min(each, batch - first)),
                token_B1=torch.zeros(min(each, batch - first), 1, dtype=torch.long, device=device),
                position_1=torch.zeros(1, dtype=torch.long, device=device),
            )
            for first in range(0, batch, each)
        ]
        self.execution = execution
        self._graphs: dict[tuple[Phase, str], Callable[[], None]] = {}

    @property
    def gen(self) -> int:
        """New tokens of each sequence."""
        return self._tokens_BG.shape[1]

    def tokens(self) -> Tensor:
        """Return the new tokens so far, B x G, once they have arrived."""
        self.finish()
        return self._tokens_BG

    @torch.inference_mode()
    def prefill(self, wiring: Wiring) -> None:
        """Run the prompts and write the first new token of each."""
        for part in self._parts:
            self._launch("prefill", part, wiring, partial(self._prefill, part, wiring))
            part.step = 0
        self.finish()

    @torch.inference_mode()
    def decode(self, wiring: Wiring, step: int) -> None:
        """Write new token `step`; prefill's is 0. In a pipeline it may be on its way yet: see `finish`."""
        for part in self._parts:
            self._settle(part)
            self._launch("decode", part, wiring, partial(self._decode, part, wiring, self._prompt + step))
            part.step = step
            if part.arriving is None:
                self._settle(part)

    def finish(self) -> None:
        """Wait until every new token is there."""
        for part in self._parts:
            self._settle(part)
        self.model.comm.pipeline.finish()

    def forget(self) -> None:
        """Record the graph of every step anew."""
        self._graphs.clear()

    def _prefill(self, part: _MicroBatch, wiring: Wiring) -> None:
        prompt_BT = self.prompt_BT[part.rows]
        self._next(part, self.model(prompt_BT, wiring, cache=part.cache, pad_B=part.pad_B), wiring)
        part.position_1.fill_(self._prompt)

    def _decode(self, part: _MicroBatch, wiring: Wiring, context: int) -> None:
        logits_B1V = self.model(
            part.token_B1, wiring, cache=part.cache, position_T=part.position_1, context=context, pad_B=part.pad_B
        )
        self._next(part, logits_B1V, wiring)
        part.position_1 += 1

    def _next(self, part: _MicroBatch, logits_BTV: Tensor, wiring: Wiring) -> None:
        """Pick each sequence's next token; in a pipeline the last stage does, for all."""
        pipeline = self.model.comm.pipeline
        if pipeline.stages == 1:
            part.token_B1[:, 0] = self._pick(logits_BTV, wiring)
            return
        is_last = pipeline.stage == pipeline.stages - 1
        token_B = self._pick(logits_BTV, wiring) if is_last else torch.empty_like(part.token_B1[:, 0])
        part.arriving = pipeline.share(token_B), token_B

    def _settle(self, part: _MicroBatch) -> None:
        """Wait for the token that is under way, and write it to the results."""
        if part.arriving is not None:
            handle, token_B = part.arriving
            handle.wait()
            part.token_B1[:, 0] = token_B
            part.arriving = None
        if part.step is not None:
            self._tokens_BG[part.rows, part.step] = part.token_B1[:, 0]
            part.step = None

    def _launch(self, phase: Phase, part: _MicroBatch, wiring: Wiring, step: Callable[[], None]) -> None:
        """Run a step; one that is replayed is recorded the first time, which does not change token and position."""
        if phase not in self.execution.recorded:
            step()
            return
        if (phase, wiring.name) not in self._graphs:
            token_B1, position_1 = part.token_B1.clone(), part.position_1.clone()

            def reset() -> None:
                part.token_B1.copy_(token_B1)
                part.position_1.copy_(position_1)

            self._graphs[phase, wiring.name] = kind_of(part.cache).recorded(step, reset)
        self._graphs[phase, wiring.name]()
        self.model.comm.replayed(kind_of(part.cache).mark)
