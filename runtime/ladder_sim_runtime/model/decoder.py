"""A decoder on one rank: one loop for every residual wiring, whatever kinds its layers are.

With the technique `token-split`, parts of a pass take turns: while one waits for a collective, another computes.
Sequences are spread over the parts; a lone prompt is cut, and each part attends to what those before it left in the
cache. Shapes: B batch, T new tokens, D hidden, V vocabulary.

References
----------
TokenWeave, arXiv 2505.11329; dual-batch overlap (vLLM 0.32.0, v1/worker/ubatch_utils.py); NanoFlow, arXiv 2408.12757.
"""

from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn

from ladder_sim.wirings.layout import Wiring
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.config import EngineConfig, ModelConfig
from ladder_sim_runtime.device import kind_of
from ladder_sim_runtime.model import attention_kernels, kernels
from ladder_sim_runtime.model.attention import Step
from ladder_sim_runtime.model.dispatch import Arriving, arrived
from ladder_sim_runtime.model.layers import Layer
from ladder_sim_runtime.model.linear import RMSNorm
from ladder_sim_runtime.model.residual import ResidualStream, Sent, SharedStream
from ladder_sim_runtime.model.rope import rope_table
from ladder_sim_runtime.model.shard import Shard

# tokens from which vLLM splits a step that only decodes, and any other (0.32.0, config/parallel.py, dbo_*_threshold)
DECODE_TOKENS, PROMPT_TOKENS = 32, 512
# tokens of which a prompt's parts are multiples, if each has as many: rows of a tile of large GEMMs
TILE = 128

T = TypeVar("T")


class Decoder(nn.Module):
    """One rank's shard: its part of its stage's layers, on the first stage the embedding, on the last the LM head.

    `comm`, the ranks that share the model, may be replaced between passes, but for its place in the pipeline. No pass
    has a longer context than `positions`, tokens. Raises InfeasibleError if the ranks do not divide the model.
    """

    rope_2SK: Tensor

    def __init__(self, config: ModelConfig, engine: EngineConfig, comm: Communicator, positions: int) -> None:
        super().__init__()
        self.config, self.engine, self.comm = config, engine, comm
        self.shard = Shard.of(config, engine, comm)
        self.embedding_VD = nn.Parameter(torch.empty(self.shard.embedding_rows, config.hidden))
        self.layers: Sequence[Layer] = nn.ModuleList(  # type: ignore[assignment]
            Layer(config, index, self.shard, engine) for index in self.shard.layers
        )
        self.norm = RMSNorm(config.hidden, config.norm_eps)
        tied = config.tied_embeddings and self.shard.lm_head_rows == self.shard.embedding_rows
        self.lm_head_VD = (
            self.embedding_VD if tied else nn.Parameter(torch.empty(self.shard.lm_head_rows, config.hidden))
        )
        self.register_buffer("rope_2SK", rope_table(config, positions), persistent=False)

    def cache(self, batch: int) -> Tensor:
        """Return an empty cache, layer by layer, for contexts as long as this decoder's positions."""
        return self.layers[0].attention.cache(len(self.layers), batch, self.rope_2SK.shape[1], like=self.embedding_VD)

    def forward(
        self,
        tokens_BT: Tensor,
        wiring: Wiring,
        *,
        cache: Tensor | None = None,
        position_T: Tensor | None = None,
        context: int | None = None,
        pad_B: Tensor | None = None,
    ) -> Tensor:
        """Return the last stage's logits, B x T x V, or those of the last position by `engine.prefill_logits`.

        Techniques of the engine are for inference: a pass without a cache has none.

        Parameters
        ----------
        tokens_BT
            New tokens.
        wiring
            Which outputs each block reads.
        cache
            Keys and values so far, or what they are made of; those of the new tokens are written to it. None: the new
            tokens attend to each other only.
        position_T
            Positions of the new tokens, from 0 by default.
        context
            Tokens so far, including the new ones; `T` by default.
        pad_B
            Positions of padding before each sequence; None: all begin at 0.
        """
        if position_T is None:
            position_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        self.config.check_wiring(wiring, self.comm.size)
        stages = self.comm.pipeline.stages
        if stages > 1:
            wiring.check_stages([self.config.layers_of(stage, stages).start for stage in range(1, stages)])
        x_BTD = self._embed(tokens_BT, wiring)
        has_techniques = cache is not None and wiring.reduces and self.comm.size > 1
        new_stream: type[ResidualStream] = ResidualStream
        if has_techniques and self.engine.sequence_parallel:
            wiring.check_shares()
            new_stream = SharedStream
        (batch, new), parts = tokens_BT.shape, self.engine.token_split if has_techniques else 1
        # the dimension of the sequences in a cache of all layers
        sequences = 1 + self.layers[0].attention.sequences
        passes, places = [], cuts(batch, new, parts)
        for rows, tokens in places:
            stream = new_stream(x_BTD[rows, tokens], self.comm, self.engine, wiring.lanes, takes_turns=len(places) > 1)
            held = None if cache is None else cache.narrow(sequences, rows.start, rows.stop - rows.start)
            later = new - tokens.stop
            step = self._step(rows, position_T[tokens], (context or new) - later, pad_B, held, wiring)
            passes.append(self._run(stream, wiring, step, held))
        outputs = in_turns(passes)
        n_BTD = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=0 if batch > 1 else 1)
        return self._logits(n_BTD) if self.shard.layers.stop == self.config.layers else n_BTD

    def _step(
        self, rows: slice, position_T: Tensor, context: int, pad_B: Tensor | None, cache: Tensor | None, wiring: Wiring
    ) -> Step:
        """Return what the layers share in a pass of some sequences, given the cache of those."""
        pad_B = None if pad_B is None else pad_B[rows]
        spans = None
        if len(position_T) == 1 and cache is not None and self.layers[0].attention.flash_decodes(cache):
            spans = attention_kernels.spans(position_T, pad_B, rows.stop - rows.start, self.rope_2SK.shape[1])
        comm = self.comm if self.config.qk_norm == "all" and self.comm.size > 1 and wiring.reduces else None
        return Step(attention_kernels.turns(self.rope_2SK, position_T, pad_B), position_T, context, pad_B, spans, comm)

    def _run(
        self, stream: ResidualStream, wiring: Wiring, step: Step, cache: Tensor | None
    ) -> Generator[None, None, Tensor]:
        """Run a stream through this stage's blocks, up to the LM head; yields after it started a collective."""
        pipeline, held = self.comm.pipeline, self.shard.layers
        if held.start > 0:
            stream.receive(pipeline, self._sent(wiring))
        for each in [each for each in wiring.steps if each.layer in held]:
            at = each.layer - held.start
            before, behind = self.layers[at].norms(each.block.part)
            n_BTD = stream.read(before, each)
            if isinstance(n_BTD, Arriving):
                yield
            layer_cache = None if cache is None else cache[at]
            output = self.layers[at](each.block, arrived(n_BTD), step, layer_cache, self.comm.exchange)
            learned = self.layers[at].learned.get(each.block.part, ())
            if stream.write(output, each, behind, learned):
                yield
        if held.stop < self.config.layers:
            stream.send(pipeline)
            return stream.x_BTD.new_empty(0)
        if stream.merge(wiring):
            yield
        n_BTD = stream.read(self.norm)
        if isinstance(n_BTD, Arriving):
            yield
        return arrived(n_BTD)

    def compile_blocks(self) -> None:
        """Run what is computed between messages through torch.compile."""
        for layer in self.layers:
            layer.compile_by(kind_of(self.embedding_VD).compiled)

    def next_token(self, logits_BTV: Tensor, wiring: Wiring) -> Tensor:
        """Return each sequence's next token, B; rank 0's if the ranks disagree."""
        token_B = kernels.next_token(logits_BTV, self.engine.sampling)
        if wiring.head == "own" and self.comm.size > 1:
            self.comm.broadcast(token_B)
        return token_B

    def _embed(self, tokens_BT: Tensor, wiring: Wiring) -> Tensor:
        split = self.engine.sharded_embedding and self.comm.size > 1
        if self.shard.layers.start > 0:
            # overwritten by what the stage before sends
            return self.embedding_VD.new_empty((*tokens_BT.shape, self.config.hidden))
        first = self.comm.rank * self.shard.embedding_rows if split else None
        x_BTD = kernels.embed(tokens_BT, self.embedding_VD, first)
        if split and wiring.reduces:
            self.comm.all_reduce(x_BTD, blocking=True).wait()
        return x_BTD

    def _sent(self, wiring: Wiring) -> Iterator[Sent]:
        """Yield the outputs that the stage before sends."""
        first = self.shard.layers.start
        *older, newest = wiring.waiting(first)
        if newest.block.entry == "stream" and self.comm.size > 1:
            # it has become the residual
            return
        for step in (*older, newest):
            reduces = step.block.reduces
            has_experts = step.block.part == "mlp" and reduces and self.config.has_experts(step.layer)
            is_combined = has_experts and self.comm.size == 1 and self.comm.exchange.size > 1
            is_exchanged = is_combined or (reduces and self.comm.size > 1)
            has_own = is_exchanged and step.read_by >= 0
            is_read = 0 <= step.read_by <= newest.number
            if step is newest:
                has_shared = is_combined and self.config.shared_intermediate > 0 and step.next_ahead
                yield Sent(step, has_shared, has_own, is_read=False)
            elif has_own or not is_read:
                # else its own part is all of it, and was read
                yield Sent(step, has_shared=False, has_own=has_own, is_read=has_own and is_read)

    def _logits(self, n_BTD: Tensor) -> Tensor:
        if self.engine.prefill_logits == "last":
            n_BTD = n_BTD[:, -1:]
        if not self.engine.sharded_lm_head or self.comm.size == 1:
            return kernels.lm_head(n_BTD, self.lm_head_VD)
        shard_BTV = kernels.lm_head(n_BTD, self.lm_head_VD)
        return self.comm.all_gather(shard_BTV)[..., : self.config.vocab]


def cuts(batch: int, tokens: int, parts: int) -> list[tuple[slice, slice]]:
    """Return the sequences and new tokens of each part of a pass; an engine may leave the pass whole.

    Examples
    --------
    >>> cuts(1, 600, 2)
    [(slice(0, 1, None), slice(0, 256, None)), (slice(0, 1, None), slice(256, 600, None))]
    >>> cuts(33, 1, 2)
    [(slice(0, 17, None), slice(0, 1, None)), (slice(17, 33, None), slice(0, 1, None))]
    """
    if batch * tokens < (DECODE_TOKENS if tokens == 1 else PROMPT_TOKENS):
        parts = 1
    if batch > 1:
        parts = min(parts, batch)
        starts = [-(-batch * part // parts) for part in range(parts + 1)]
        return [(slice(*part), slice(0, tokens)) for part in pairwise(starts)]
    unit = TILE if tokens >= parts * TILE else 1
    starts = [*(tokens * part // (parts * unit) * unit for part in range(parts)), tokens]
    return [(slice(0, 1), slice(*part)) for part in pairwise(starts)]


def in_turns(passes: Sequence[Generator[None, None, T]]) -> list[T]:
    """Run passes that yield wherever another may run, in turns; returns what they return. All yield as often."""
    results: list[T] = []
    while not results:
        for each in passes:
            try:
                next(each)
            except StopIteration as end:
                results.append(end.value)
    return results
