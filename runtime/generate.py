"""Serve one static batch: prefill, then decode token by token.

Shapes: B batch, T prompt tokens, G new tokens, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ladder_sim.errors import MissingDependencyError, UsageError
from runtime.model.decoder import Decoder
from runtime.model.wiring import Wiring

# from logits and their wiring to each sequence's next token, the same on every rank
Pick = Callable[[Tensor, Wiring], Tensor]


class Generator:
    """A decoder with the buffers of one batch.

    Parameters
    ----------
    model
        The rank's shard.
    prompt_BT
        Prompts, padded on the left if they differ in length.
    gen
        New tokens of each sequence; prefill yields the first.
    cuda_graphs
        Replay each decode step as one CUDA graph. Its shapes must not depend on the context: needs math attention.
    pad_B
        Positions of padding before each prompt; None: no padding.
    pick
        How the next tokens are chosen: greedily by default.
    """

    def __init__(
        self,
        model: Decoder,
        prompt_BT: Tensor,
        gen: int,
        *,
        cuda_graphs: bool = False,
        pad_B: Tensor | None = None,
        pick: Pick | None = None,
    ) -> None:
        if cuda_graphs and not prompt_BT.is_cuda:
            raise MissingDependencyError("CUDA graphs need a GPU", hint="leave out --cuda-graphs")
        if cuda_graphs and model.engine.attention != "math":
            raise UsageError(
                "CUDA graphs replay fixed shapes, and flash attention's grow with the context",
                hint="--attention math reads the whole static cache",
            )
        if cuda_graphs and model.comm.pipeline.stages > 1:
            raise UsageError("CUDA graphs are of one stage alone", hint="leave out --cuda-graphs, or --pp")
        if cuda_graphs and model.config.experts is not None:
            raise UsageError(
                "CUDA graphs replay fixed shapes, and how many tokens an expert gets changes from step to step",
                hint="leave out --cuda-graphs",
            )
        batch, self._prompt = prompt_BT.shape
        device = prompt_BT.device
        self.model, self.prompt_BT = model, prompt_BT
        self._pad_B, self._pick = pad_B, pick or model.next_token
        # new tokens so far
        self.tokens_BG = torch.zeros(batch, gen, dtype=torch.long, device=device)
        self._cache = model.cache(batch)
        self._token_B1 = torch.zeros(batch, 1, dtype=torch.long, device=device)
        self._position_1 = torch.zeros(1, dtype=torch.long, device=device)
        self._graphs: dict[str, Callable[[], None]] | None = {} if cuda_graphs else None

    @torch.inference_mode()
    def prefill(self, wiring: Wiring) -> None:
        """Run the prompts and write the first new token of each."""
        logits_BTV = self.model(self.prompt_BT, wiring, cache=self._cache, pad_B=self._pad_B)
        self._token_B1[:, 0] = self._next(logits_BTV, wiring)
        self._position_1.fill_(self._prompt)
        self.tokens_BG[:, 0] = self._token_B1[:, 0]

    @torch.inference_mode()
    def decode(self, wiring: Wiring, step: int) -> None:
        """Write new token `step`; prefill's is 0."""
        if self._graphs is None:
            self._decode(wiring, self._prompt + step)
        else:
            if wiring.name not in self._graphs:
                self._graphs[wiring.name] = self._capture(wiring)
            self._graphs[wiring.name]()
        self.tokens_BG[:, step] = self._token_B1[:, 0]

    def _decode(self, wiring: Wiring, context: int) -> None:
        logits_B1V = self.model(
            self._token_B1, wiring, cache=self._cache, position_T=self._position_1, context=context, pad_B=self._pad_B
        )
        self._token_B1[:, 0] = self._next(logits_B1V, wiring)
        self._position_1 += 1

    def _next(self, logits_BTV: Tensor, wiring: Wiring) -> Tensor:
        """Each sequence's next token, which the last stage picks for all."""
        pipeline = self.model.comm.pipeline
        is_last = pipeline.stage == pipeline.stages - 1
        token_B = self._pick(logits_BTV, wiring) if is_last else torch.empty_like(self._token_B1[:, 0])
        pipeline.share(token_B)
        return token_B

    def _capture(self, wiring: Wiring) -> Callable[[], None]:
        """Record one decode step; the runs that warm it up do not change token and position."""
        token_B1, position_1 = self._token_B1.clone(), self._position_1.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._position_1.copy_(position_1)
                self._decode(wiring, self._prompt)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._decode(wiring, self._prompt)
        self._token_B1.copy_(token_B1)
        self._position_1.copy_(position_1)
        return graph.replay
