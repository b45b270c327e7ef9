"""Mixing of tokens in general: recurrent states, attention to a choice of entries, and that choice."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ladder_sim.kernels.attention import InContext


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
    def _entries(self) -> Any:
        """Entries that a new token reads on average, without those of later tokens."""
        entries: Any = (self.kv_len - (self.q_len - 1) / 2.0) / self.every
        return np.minimum(entries, self.top_k) if self.top_k else entries

    @property
    def stored_bytes(self) -> float:
        """State and entries of the cache, of which the tokens of a prompt may share some."""
        read: Any = np.minimum(self._entries * self.q_len, self.kv_len / self.every)
        stored: float = self.batch * (self.state_bytes + read * self.entry_bytes)
        return stored

    @property
    def flops(self) -> float:
        flops: float = self.batch * self.q_len * (self.token_flops + self._entries * self.entry_flops)
        return flops

    @property
    def moved_bytes(self) -> float:
        """State twice, entries once, and what enters and leaves."""
        return self.stored_bytes + self.batch * (self.state_bytes + self.q_len * self.token_bytes)
