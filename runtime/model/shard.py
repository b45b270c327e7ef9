"""Which part of every weight a rank holds: Megatron's split.

Query, key, value, gate and up projections are split by output features (whole heads), output and down projections by
input features, so that a block needs one sum over the ranks. With more ranks than key/value heads, several ranks hold
the same head.
"""

from dataclasses import dataclass
from typing import Self

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
    intermediate: int
    """Width of the MLP on this rank."""
    embedding_rows: int
    """Rows of the embedding on this rank; the last of a split vocabulary may be padding."""
    lm_head_rows: int
    """The same for the LM head."""

    @classmethod
    def of(cls, config: ModelConfig, engine: EngineConfig, rank: int, ranks: int) -> Self:
        """Split `config` over `ranks`; raises InfeasibleError if they do not divide it."""
        config.check_ranks(ranks)
        part = -(-config.vocab // ranks)
        return cls(
            rank=rank,
            ranks=ranks,
            heads=config.heads // ranks,
            kv_heads=max(1, config.kv_heads // ranks),
            kv_first=rank * config.kv_heads // ranks,
            intermediate=config.intermediate // ranks,
            embedding_rows=part if engine.sharded_embedding else config.vocab,
            lm_head_rows=part if engine.sharded_lm_head else config.vocab,
        )

    def query(self, head_dim: int) -> slice:
        """Features of the full query projection that this rank holds."""
        width = self.heads * head_dim
        return slice(self.rank * width, (self.rank + 1) * width)

    def key_value(self, head_dim: int) -> slice:
        """The same of the key and of the value projection."""
        return slice(self.kv_first * head_dim, (self.kv_first + self.kv_heads) * head_dim)

    def mlp(self) -> slice:
        """Part of the MLP's width that this rank holds."""
        return slice(self.rank * self.intermediate, (self.rank + 1) * self.intermediate)

    def vocabulary(self, rows: int, vocab: int) -> slice:
        """Tokens whose embedding or LM head this rank holds in `rows` rows, without padding."""
        first = 0 if rows == vocab else min(self.rank * rows, vocab)
        return slice(first, min(first + rows, vocab))
