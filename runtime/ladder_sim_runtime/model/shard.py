"""Which part of the model a rank holds: the layers of its pipeline stage, and of every weight Megatron's split.

Query, key, value, gate and up projections are split by output features (whole heads), output and down projections by
input features, so that a block needs one sum over the ranks. With more ranks than key/value heads, several ranks hold
the same head. Groups of such ranks may have requests of their own: each then has all of attention and of every MLP.
Routed experts are distributed over the ranks of all groups, whole or in parts of their width.
"""

from dataclasses import dataclass
from typing import Self

from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.config import EngineConfig, ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's part of a model."""

    rank: int
    """Number of this shard's rank."""
    ranks: int
    """Tensor-parallel degree."""
    heads: int
    """Query heads on this rank."""
    kv_heads: int
    """Key/value heads on this rank."""
    kv_first: int
    """Number of the first of them in the model."""
    group: int
    """Number of this rank's group among those with requests of their own."""
    groups: int
    """How many these are."""
    ep: int
    """Parts in which experts are distributed over the ranks of all groups."""
    layers: range
    """Layers of this rank's stage."""
    embedding_rows: int
    """Rows of the embedding on this rank, on the first stage; the last of a split vocabulary may be padding."""
    lm_head_rows: int
    """Rows of the LM head on this rank, on the last stage; the last of a split vocabulary may be padding."""

    @classmethod
    def of(cls, config: ModelConfig, engine: EngineConfig, comm: Communicator) -> Self:
        """Split `config` over the ranks of each group and stage; raises InfeasibleError if they do not divide it."""
        rank, ranks, pipeline, exchange = comm.rank, comm.size, comm.pipeline, comm.exchange
        config.check_ranks(ranks, engine.ep, exchange.size)
        engine.check_degrees(exchange.size, pipeline.stages)
        part = -(-config.vocab // ranks)
        layers = config.layers_of(pipeline.stage, pipeline.stages)
        has_embedding, has_lm_head = layers.start == 0, layers.stop == config.layers
        return cls(
            rank=rank,
            ranks=ranks,
            heads=config.heads // ranks,
            kv_heads=max(1, config.kv_heads // ranks),
            kv_first=rank * config.kv_heads // ranks,
            group=exchange.rank,
            groups=exchange.size,
            ep=engine.ep,
            layers=layers,
            embedding_rows=(part if engine.sharded_embedding else config.vocab) if has_embedding else 0,
            lm_head_rows=(part if engine.sharded_lm_head else config.vocab) if has_lm_head else 0,
        )

    @property
    def expert_ranks(self) -> int:
        """Ranks that hold a part of the experts: those of all groups."""
        return self.ranks * self.groups

    def query(self, width: int) -> slice:
        """Return the features of this rank's heads among those of all query heads, `width` for each."""
        return slice(self.rank * self.heads * width, (self.rank + 1) * self.heads * width)

    def key_value(self, width: int) -> slice:
        """Return the features of this rank's key/value heads, of `width` each."""
        return slice(self.kv_first * width, (self.kv_first + self.kv_heads) * width)

    def mlp(self, width: int) -> slice:
        """Return the part of an MLP of this width that this rank holds."""
        each = width // self.ranks
        return slice(self.rank * each, (self.rank + 1) * each)

    def experts(self, count: int, group: int | None = None) -> range:
        """Return the experts of this rank, out of `count`, or of the rank at its position in another group."""
        each = count // self.ep
        first = self._expert_rank(group) * self.ep // self.expert_ranks * each
        return range(first, first + each)

    def expert(self, number: int, *, count: int, width: int) -> slice:
        """Return the part of an expert's width that this rank holds: nothing, if the expert is on other ranks."""
        if number not in self.experts(count):
            return slice(0, 0)
        shares = self.expert_ranks // self.ep
        each = width // shares
        first = self._expert_rank() % shares * each
        return slice(first, first + each)

    def _expert_rank(self, group: int | None = None) -> int:
        """Return the number of a rank among those of all groups."""
        return (self.group if group is None else group) * self.ranks + self.rank

    def vocabulary(self, rows: int, vocab: int) -> slice:
        """Return the tokens whose embedding or LM head this rank holds in `rows` rows, without padding."""
        first = 0 if rows == vocab else min(self.rank * rows, vocab)
        return slice(first, min(first + rows, vocab))
