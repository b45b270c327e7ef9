"""A request as it arrives."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as it arrives."""

    arrival_s: float
    """Since the start."""
    prompt: int
    """Tokens of its prompt."""
    gen: int
    """Tokens of its answer."""
    prefix: Sequence[Hashable] = ()
    """Names of the first parts of its prompt: prompts that begin with the same names begin with the same tokens."""
    prefix_tokens: int = 0
    """Tokens of each of these parts."""
    priority: int = 0
    """Smaller goes first, where the scheduler heeds it."""

    @property
    def shared_tokens(self) -> int:
        """Tokens at its beginning that others may have."""
        return min(self.prompt, len(self.prefix) * self.prefix_tokens)
