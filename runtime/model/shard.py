"""Which part of the model a rank holds: the layers of its pipeline stage, and of every weight Megatron's split.

Query, key, value, gate and up projections are split by output features (whole heads), output and down projections by
input features, so that a block needs one sum over the ranks. With more ranks than key/value heads, several ranks hold
the same head. Routed experts are distributed over groups of ranks; the ranks of a group split each expert's width.
"""

from dataclasses import dataclass
from typing import Self

from runtime.comm.base import ONE_STAGE, Pipeline
from runtime.config import EngineConfig, ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's part of a model."""

    rank: int
    """Of this shard."""
    ranks: int
    """Tensor-parallel degree."""
    heads: int
    """Query heads on this rank."""
    kv_heads: int
    """Key/value heads on this rank."""
    kv_first: int
    """Number of the first of them in the model."""
    ep: int
    """Groups of ranks over which experts are distributed."""
    layers: range
    """Those of this rank's stage."""
    embedding_rows: int
    """Rows of the embedding on this rank, on the first stage; the last of a split vocabulary may be padding."""
    lm_head_rows: int
    """The same for the LM head, on the last stage."""

    @classmethod
    def of(
        cls, config: ModelConfig, engine: EngineConfig, rank: int, ranks: int, pipeline: Pipeline = ONE_STAGE
    ) -> Self:
        """Split `config` over `ranks` of each stage; raises InfeasibleError if they do not divide it."""
        config.check_ranks(ranks, engine.ep)
        part = -(-config.vocab // ranks)
        layers = config.layers_of(pipeline.stage, pipeline.stages)
        has_embedding, has_lm_head = layers.start == 0, layers.stop == config.layers
        return cls(
            rank=rank,
            ranks=ranks,
            heads=config.heads // ranks,
            kv_heads=max(1, config.kv_heads // ranks),
            kv_first=rank * config.kv_heads // ranks,
            ep=engine.ep,
            layers=layers,
            embedding_rows=(part if engine.sharded_embedding else config.vocab) if has_embedding else 0,
            lm_head_rows=(part if engine.sharded_lm_head else config.vocab) if has_lm_head else 0,
        )

    def query(self, width: int) -> slice:
        """Features of this rank's heads among those of all query heads, `width` for each."""
        return slice(self.rank * self.heads * width, (self.rank + 1) * self.heads * width)

    def key_value(self, width: int) -> slice:
        """The same of the key/value heads."""
        return slice(self.kv_first * width, (self.kv_first + self.kv_heads) * width)

    def mlp(self, width: int) -> slice:
        """Part of an MLP of this width that this rank holds."""
        each = width // self.ranks
        return slice(self.rank * each, (self.rank + 1) * each)

    def experts(self, count: int) -> range:
        """The experts of this rank, out of `count`."""
        each = count // self.ep
        first = self.rank * self.ep // self.ranks * each
        return range(first, first + each)

    def expert(self, number: int, *, count: int, width: int) -> slice:
        """Part of the width of an expert that this rank holds: nothing, if it is another group's."""
        if number not in self.experts(count):
            return slice(0, 0)
        group = self.ranks // self.ep
        each = width // group
        first = self.rank % group * each
        return slice(first, first + each)

    def vocabulary(self, rows: int, vocab: int) -> slice:
        """Tokens whose embedding or LM head this rank holds in `rows` rows, without padding."""
        first = 0 if rows == vocab else min(self.rank * rows, vocab)
        return slice(first, min(first + rows, vocab))
