"""Mixing of tokens in general: recurrent states, attention to a choice of entries, and that choice."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ladder_sim.kernels.attention import InContext
from ladder_sim.kernels.shape import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class MixingShape(InContext):
    """Mixing of tokens that no table holds: a recurrent state, attention to some entries of a cache, their choice."""

    state_bytes: float = 0.0
    """State of one sequence, which is read and written."""
    token_bytes: float = 0.0
    """What enters and leaves for one new token."""
    token_flops: float = 0.0
    """Arithmetic of one new token, whatever the context."""
    entry_bytes: float = 0.0
    """One entry of the cache."""
    entry_flops: float = 0.0
    """Arithmetic of one new token with one entry."""
    every: int = 1
    """Tokens of context that one entry stands for."""
    top_k: int = 0
    """Entries that a new token reads at most; 0: all."""

    @property
    def work(self) -> Work:
        """State twice, entries once, and what enters and leaves; tokens of a prompt may share entries."""
        # that a new token reads on average, without those of later tokens
        entries: Any = (self.kv_len - (self.q_len - 1) / 2.0) / self.every
        entries = np.minimum(entries, self.top_k) if self.top_k else entries
        read = np.minimum(entries * self.q_len, self.kv_len / self.every)
        stored = self.batch * (self.state_bytes + read * self.entry_bytes)
        moved = stored + self.batch * (self.state_bytes + self.q_len * self.token_bytes)
        return Work(moved, self.batch * self.q_len * (self.token_flops + entries * self.entry_flops), stored)
